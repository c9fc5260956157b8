"""Measures asyncio loops against each other.

    python bench/python/loops.py                        every row, every loop that is installed
    python bench/python/loops.py -r call_soon -l uvloop  some rows, some loops
    python bench/python/loops.py --json results.json

Each loop is measured in a process of its own, in many short windows that take turns with those of the others, so that what
else the machine does hits all alike. What is printed is the best window of each, as multiples of asyncio's: differences
under 15 % are noise. Where a server is measured, what it costs is printed too: microseconds of CPU time per message, which
depend less on what else the machine does.
"""

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
import time

WINDOW = 0.2
LOOPS = ["asyncio", "uvloop", "rloop", "pelton"]


def factory(name):
    if name == "asyncio":
        return asyncio.SelectorEventLoop
    return __import__(name).new_event_loop


# Each row is given a loop and how often to do it, and returns how many seconds that has taken.


def timed(loop, body):
    start = time.perf_counter()
    loop.run_until_complete(body)
    return time.perf_counter() - start


def call_soon_chain(loop, count):
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
    def nothing():
        pass

    start = time.perf_counter()
    for _ in range(count // 1000):
        for _ in range(1000):
            loop.call_soon(nothing)
        loop.call_soon(loop.stop)
        loop.run_forever()
    return time.perf_counter() - start


def call_later_cancel(loop, count):
    def nothing():
        pass

    async def main():
        for _ in range(count // 100):
            for handle in [loop.call_later(60, nothing) for _ in range(100)]:
                handle.cancel()
            await asyncio.sleep(0)

    return timed(loop, main())


def call_later_firing(loop, count):
    async def main():
        done = loop.create_future()
        left = count

        def fire():
            nonlocal left
            left -= 1
            if not left:
                done.set_result(None)

        for index in range(count):
            loop.call_later(0.0001 * (index % 10), fire)
        await done

    return timed(loop, main())


def create_task_await(loop, count):
    async def nothing():
        pass

    async def main():
        for _ in range(count):
            await loop.create_task(nothing())

    return timed(loop, main())


def gather_100(loop, count):
    async def nothing():
        pass

    async def main():
        for _ in range(count // 100):
            await asyncio.gather(*[nothing() for _ in range(100)])

    return timed(loop, main())


def sleep_0(loop, count):
    async def main():
        for _ in range(count):
            await asyncio.sleep(0)

    return timed(loop, main())


def wait_for(loop, count):
    async def nothing():
        await asyncio.sleep(0)

    async def main():
        for _ in range(count):
            await asyncio.wait_for(nothing(), 10)

    return timed(loop, main())


def add_remove_reader(loop, count):
    one, other = socket.socketpair()

    async def main():
        for _ in range(count):
            loop.add_reader(one.fileno(), print)
            loop.remove_reader(one.fileno())

    try:
        return timed(loop, main())
    finally:
        one.close()
        other.close()


def threadsafe(loop, count):
    async def main():
        def ask():
            for _ in range(count):
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()

        await loop.run_in_executor(None, ask)

    return timed(loop, main())


CLIENT = """
import selectors, socket, sys
host, port, clients, size, count = sys.argv[1], *map(int, sys.argv[2:])
message = b'x' * size
selector = selectors.DefaultSelector()
left = count
for _ in range(clients):
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    selector.register(sock, selectors.EVENT_READ, [sock, 0])
    sock.sendall(message)
into = memoryview(bytearray(1 << 18))
while left > 0:
    for key, _ in selector.select():
        state = key.data
        state[1] += state[0].recv_into(into)
        if state[1] == size:
            state[1] = 0
            left -= 1
            state[0].sendall(message)
"""


DATAGRAMS = """
import selectors, socket, sys
host, port, clients, size, count = sys.argv[1], *map(int, sys.argv[2:])
message = b'x' * size
selector = selectors.DefaultSelector()
for _ in range(clients):
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.connect((host, port))
    selector.register(sock, selectors.EVENT_READ)
    sock.send(message)
left = count
while left > 0:
    ready = selector.select(0.2)
    for key in [key for key, _ in ready] or selector.get_map().values():
        if ready:
            key.fileobj.recv(size)
            left -= 1
        # If nothing came back, all that was sent was lost.
        key.fileobj.send(message)
"""

COMING_AND_GOING = """
import socket, sys
host, port, _, _, count = sys.argv[1], *map(int, sys.argv[2:])
for _ in range(count):
    sock = socket.create_connection((host, port))
    sock.sendall(b'x')
    sock.recv(1)
    sock.close()
"""


def echo(loop, count, serve, size=1024, clients=8, client=CLIENT):
    """A server under the load of a few clients, in a process of their own that does not change with the loop."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    listener.setblocking(False)
    host, port = listener.getsockname()

    async def main():
        end = await serve(loop, listener)
        command = [sys.executable, "-c", client, host, str(port), str(clients), str(size), str(count)]
        process = await loop.run_in_executor(None, subprocess.Popen, command)
        start, used = time.perf_counter(), time.process_time()
        await loop.run_in_executor(None, process.wait)
        took, used = time.perf_counter() - start, time.process_time() - used
        await end()
        return took, used

    try:
        return loop.run_until_complete(main())
    finally:
        listener.close()


async def serve_sockets(loop, listener):
    tasks = []

    async def handle(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := await loop.sock_recv(sock, 65536):
                await loop.sock_sendall(sock, data)
        except OSError:
            pass
        sock.close()

    async def accept():
        while True:
            sock, _ = await loop.sock_accept(listener)
            sock.setblocking(False)
            tasks.append(loop.create_task(handle(sock)))

    accepting = loop.create_task(accept())

    async def end():
        accepting.cancel()
        await asyncio.gather(accepting, *tasks, return_exceptions=True)

    return end


async def serve_protocol(loop, listener, kind=None):
    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.transport.write(data)

    class Buffered(asyncio.BufferedProtocol):
        def connection_made(self, transport):
            self.transport = transport
            self.buffer = bytearray(1 << 18)

        def get_buffer(self, _hint):
            return self.buffer

        def buffer_updated(self, count):
            self.transport.write(bytes(memoryview(self.buffer)[:count]))

    server = await loop.create_server(Buffered if kind == "buffered" else Echo, sock=listener)

    async def end():
        server.close()

    return end


async def serve_datagrams(loop, listener):
    class Echo(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, address):
            self.transport.sendto(data, address)

    transport, _ = await loop.create_datagram_endpoint(Echo, local_addr=listener.getsockname())

    async def end():
        transport.close()

    return end


async def serve_streams(loop, listener):
    async def handle(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(handle, sock=listener)

    async def end():
        server.close()

    return end


def raw_sockets(loop, count):
    return echo(loop, count, serve_sockets)


def protocol(loop, count):
    return echo(loop, count, serve_protocol)


def protocol_100k(loop, count):
    return echo(loop, count, serve_protocol, size=100_000)


def buffered(loop, count):
    return echo(loop, count, lambda *args: serve_protocol(*args, kind="buffered"))


def streams(loop, count):
    return echo(loop, count, serve_streams)


def datagrams(loop, count):
    return echo(loop, count, serve_datagrams, client=DATAGRAMS)


def connections(loop, count):
    return echo(loop, count, serve_protocol, client=COMING_AND_GOING)


ROWS = {
    function.__name__: function
    for function in (
        call_soon_chain,
        call_soon_burst,
        call_later_cancel,
        call_later_firing,
        create_task_await,
        gather_100,
        sleep_0,
        wait_for,
        add_remove_reader,
        threadsafe,
        raw_sockets,
        protocol,
        protocol_100k,
        buffered,
        streams,
        connections,
        datagrams,
    )
}
# Those that start a process: a window has to be long enough for that not to matter.
WITH_CLIENTS = {"raw_sockets", "protocol", "protocol_100k", "buffered", "streams", "connections", "datagrams"}


def child(name):
    """Measures one window at a time, as it is told to: lines of JSON in, lines of JSON out."""
    make = factory(name)
    counts = {}
    for line in sys.stdin:
        row = line.strip()
        window = WINDOW * 5 if row in WITH_CLIENTS else WINDOW
        loop = make()
        asyncio.set_event_loop(loop)
        try:

            def measure(count):
                took = ROWS[row](loop, count)
                return took if isinstance(took, tuple) else (took, None)

            count = counts.get(row, 1000)
            took, used = measure(count)
            while row not in counts:
                if took > window / 2:
                    counts[row] = count
                else:
                    count = max(count * 2, int(count * window * 0.8 / max(took, 1e-4)) // 1000 * 1000)
                    took, used = measure(count)
            loop.run_until_complete(loop.shutdown_default_executor())
            cpu = None if used is None else used / count * 1e6
            print(json.dumps({"rate": count / took, "cpu_us": cpu}), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def version(name):
    if name == "asyncio":
        return platform.python_version()
    return getattr(__import__(name), "__version__", None) or importlib.metadata.version(name)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-r", "--row", action="append", help="rows whose name begins so")
    parser.add_argument("-l", "--loop", action="append", choices=LOOPS, help="beside asyncio")
    parser.add_argument("-w", "--windows", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child)

    loops = ["asyncio"] + [name for name in options.loop or LOOPS if name != "asyncio"]
    installed = []
    for name in loops:
        try:
            factory(name)
            installed.append(name)
        except ImportError:
            print(f"{name} is not installed")
    rows = [row for row in ROWS if not options.row or any(row.startswith(wanted) for wanted in options.row)]
    # Receive buffers of 256 KiB are mapped anew for each call otherwise, which halves asyncio's speed.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "8388608"}
    children = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--child", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in installed
    }
    results = []
    print(f"{'row':<20}{'asyncio op/s':>14}" + "".join(f"{name:>10}" for name in installed[1:]))
    for row in rows:
        rates = {name: [] for name in installed}
        costs = {name: [] for name in installed}
        errors = {}
        for _ in range(options.windows):
            for name, process in children.items():
                if name in errors:
                    continue
                process.stdin.write(row + "\n")
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                if "error" in answer:
                    errors[name] = answer["error"]
                else:
                    rates[name].append(answer["rate"])
                    if answer["cpu_us"] is not None:
                        costs[name].append(answer["cpu_us"])
        base = max(rates["asyncio"], default=0)
        line = f"{row:<20}{base:>14,.0f}"
        for name in installed[1:]:
            line += f"{max(rates[name]) / base:>10.2f}" if rates[name] and base else f"{'fails':>10}"
        if all(costs.values()):
            line += "   CPU µs " + " / ".join(f"{min(costs[name]):.1f}" for name in installed)
        print(line, flush=True)
        for name in installed:
            if rates[name]:
                windows = sorted(rates[name])
                results.append(
                    {
                        "case": row,
                        "contender": name,
                        "version": version(name),
                        "unit": "op/s",
                        "best": windows[-1],
                        "median": windows[len(windows) // 2],
                        "windows": rates[name],
                        "cpu_us": min(costs[name], default=None),
                    }
                )
        for name, error in errors.items():
            print(f"  {name}: {error}")
    for process in children.values():
        process.stdin.close()
        process.wait()
    if options.json:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"
        with open(options.json, "w") as file:
            json.dump({"schema": 1, "bench": "python-loops", "machine": machine, "rows": results}, file, indent=1)


if __name__ == "__main__":
    main()
