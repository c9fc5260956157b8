"""Rows that need no load: callbacks, tasks, threads, descriptors, connections to itself, processes.

Each row takes a loop and a number of repetitions, and returns how many seconds they took. It does the same on every loop.
"""

import asyncio
import socket
import sys
import time


def timed(loop, body):
    start = time.perf_counter()
    loop.run_until_complete(body)
    return time.perf_counter() - start


def nothing():
    pass


async def nothing_to_await():
    pass


def call_soon_chain(loop, count):
    """Callbacks that each schedule the next, one per turn."""
    left = count

    def step():
        nonlocal left
        left -= 1
        if left:
            loop.call_soon(step)
        else:
            loop.stop()

    start = time.perf_counter()
    loop.call_soon(step)
    loop.run_forever()
    return time.perf_counter() - start


def call_soon_burst(loop, count):
    """A thousand callbacks in a turn."""
    start = time.perf_counter()
    for _ in range(count // 1000):
        for _ in range(1000):
            loop.call_soon(nothing)
        loop.call_soon(loop.stop)
        loop.run_forever()
    return time.perf_counter() - start


def call_later_cancel(loop, count):
    """Timers that are cancelled, like most timeouts."""

    async def main():
        for _ in range(count // 100):
            for handle in [loop.call_later(60, nothing) for _ in range(100)]:
                handle.cancel()
            await asyncio.sleep(0)

    return timed(loop, main())


def call_later_firing(loop, count):
    """Timers that fire, after whole milliseconds: uvloop rounds to those."""

    async def main():
        done = loop.create_future()
        left = count

        def fire():
            nonlocal left
            left -= 1
            if not left:
                done.set_result(None)

        for index in range(count):
            loop.call_later(0.001 * (1 + index % 10), fire)
        await done

    return timed(loop, main())


def create_task_await(loop, count):
    async def main():
        for _ in range(count):
            await loop.create_task(nothing_to_await())

    return timed(loop, main())


def gather_100(loop, count):
    async def main():
        for _ in range(count // 100):
            await asyncio.gather(*[nothing_to_await() for _ in range(100)])

    return timed(loop, main())


def sleep_0(loop, count):
    async def main():
        for _ in range(count):
            await asyncio.sleep(0)

    return timed(loop, main())


def wait_for(loop, count):
    async def turn():
        await asyncio.sleep(0)

    async def main():
        for _ in range(count):
            await asyncio.wait_for(turn(), 10)

    return timed(loop, main())


def run_in_executor(loop, count):
    """Work on a thread, one piece at a time."""

    async def main():
        for _ in range(count):
            await loop.run_in_executor(None, nothing)

    return timed(loop, main())


def call_soon_threadsafe(loop, count):
    """Another thread that runs a coroutine on the loop and waits for it, one at a time."""

    async def main():
        def ask():
            for _ in range(count):
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

        await loop.run_in_executor(None, ask)

    return timed(loop, main())


def connect_close(loop, count):
    """Connections to a server on the same loop, one after the other, each closed by the client. The server must have noticed all
    of them at the end, but not before the next connection, because rloop notices late.
    """

    class Accepted(asyncio.Protocol):
        def connection_lost(self, _exc):
            gone.release()

    class Connected(asyncio.Protocol):
        def connection_lost(self, _exc):
            lost.set_result(None)

    gone = asyncio.Semaphore(0)
    lost = None

    async def main():
        nonlocal lost
        server = await loop.create_server(Accepted, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        start = time.perf_counter()
        for _ in range(count):
            lost = loop.create_future()
            transport, _ = await loop.create_connection(Connected, host, port)
            transport.close()
            await lost
        # Close the server only now: it would not accept connections that are still pending.
        for _ in range(count):
            await gone.acquire()
        elapsed = time.perf_counter() - start
        server.close()
        return elapsed

    # rloop sometimes loses a connection, and would wait for it forever.
    return loop.run_until_complete(asyncio.wait_for(main(), 20))


def add_remove_reader(loop, count):
    one, other = socket.socketpair()
    one.setblocking(False)
    # By number: rloop supports nothing else.
    fd = one.fileno()

    async def main():
        for _ in range(count):
            loop.add_reader(fd, nothing)
            loop.remove_reader(fd)

    try:
        return timed(loop, main())
    finally:
        one.close()
        other.close()


def subprocess_spawn(loop, count):
    """Starts processes that exit at once, and waits for them."""

    async def main():
        for _ in range(count):
            process = await asyncio.create_subprocess_exec("/bin/true")
            status = await process.wait()
            if status:
                sys.exit(f"/bin/true exited with {status}")

    if sys.version_info < (3, 12):
        asyncio.get_child_watcher().attach_loop(loop)
    return timed(loop, main())


# Each with the minimum number of repetitions: some do several at a time.
ROWS = {
    "call_soon chain": (call_soon_chain, 1000),
    "call_soon burst": (call_soon_burst, 1000),
    "call_later + cancel": (call_later_cancel, 1000),
    "call_later firing": (call_later_firing, 1000),
    "create_task + await": (create_task_await, 1000),
    "gather(100)": (gather_100, 1000),
    "sleep(0)": (sleep_0, 1000),
    "wait_for": (wait_for, 1000),
    "run_in_executor": (run_in_executor, 100),
    "call_soon_threadsafe": (call_soon_threadsafe, 100),
    "connect + close": (connect_close, 100),
    "add/remove_reader": (add_remove_reader, 1000),
    "subprocess spawn": (subprocess_spawn, 10),
}
