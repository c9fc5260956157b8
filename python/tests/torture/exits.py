"""Programs that end while a daemon thread is in a loop."""

import os
import threading
import time

from .hostile import World

# Returned in the child instead of events: the worker must exit like any program.
NOW = object()

# Time limit of a child in seconds.
DEADLINE = 10


class Slow:
    """Takes a while to be deleted, without the lock."""

    def __del__(self, sleep=time.sleep):
        sleep(0.05)


def play(seed, new_loop):
    child = os.fork()
    if child == 0:
        # The parent reports for both.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        global slow
        slow = Slow()
        begin(seed, new_loop)
        return NOW
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return [["ended", os.waitstatus_to_exitcode(status)]]
        time.sleep(0.001)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return [["did not end"]]


def begin(seed, new_loop):
    world = World(seed, new_loop)
    started = threading.Event()
    loop = world.loop
    kind = world.random("kind").randrange(3)

    def callback():
        started.set()
        if kind == 0:
            time.sleep(0.001)
            loop.call_soon(callback)
        elif kind == 1:
            loop.call_later(0.001, callback)
        else:
            sum(range(10000))
            loop.call_soon(callback)

    loop.call_soon(callback)
    threading.Thread(target=loop.run_forever, daemon=True).start()
    started.wait(DEADLINE)
