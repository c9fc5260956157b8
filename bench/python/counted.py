"""Rows whose instructions callgrind counts, for `pelton-bench python-instructions`.

Each runs a loop once, and prints its name and how many operations that was.
"""

import asyncio
import gc
import socket
import subprocess
import sys

import pelton

COUNT = 2000

# The other side of an echo, in its own process. It pauses, because the loop must be asleep when a message comes.
CLIENT = """
import socket, sys, time
sock = socket.socket(fileno=int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    sock.sendall(bytes(1024))
    got = 0
    while got < 1024:
        got += len(sock.recv(1024))
    time.sleep(0.001)
"""


def nothing():
    pass


async def callbacks(loop):
    """Callbacks, each in a turn of its own."""
    done = loop.create_future()
    left = COUNT

    def step():
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(step)
        else:
            done.set_result(None)

    loop.call_soon(step)
    await done


async def tasks(_loop):
    """Tasks that do nothing, and are awaited."""

    async def nothing_to_await():
        pass

    for _ in range(COUNT):
        await asyncio.create_task(nothing_to_await())


async def readers(loop):
    """Descriptors that are watched, and not any more."""
    with socket.socket() as sock:
        fd = sock.fileno()
        for _ in range(COUNT):
            loop.add_reader(fd, nothing)
            loop.remove_reader(fd)


async def messages(loop):
    """Messages to echo, each of which the loop sleeps for."""

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

        def connection_lost(self, _exc):
            lost.set_result(None)

    lost = loop.create_future()
    ours, theirs = socket.socketpair()
    await loop.create_connection(Echo, sock=ours)
    command = [sys.executable, "-c", CLIENT, str(theirs.fileno()), str(COUNT)]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]):
        theirs.close()
        await lost


def main():
    gc.disable()
    for row in callbacks, tasks, readers, messages:
        loop = pelton.new_event_loop()
        loop.run_until_complete(row(loop))
        loop.close()
        print(row.__name__, COUNT, flush=True)


if __name__ == "__main__":
    main()
