"""Every public method of loops, handles, servers and transports, with arguments that are right, hostile, missing or too many.

The tables below say what each method is called with. `test_torture.py` fails if a public method is in none of them.
"""

import asyncio
import concurrent.futures
import gc
import os
import signal
import socket
import tempfile

from .hostile import Callback, Data, Moment, Mortal, Pieces, Text, Whole, World
from .hostile import change_debug, collect, fail, generator, nothing, set_variable, switch_threads
from .servers import HostileDatagrams
from .streams import WRITELINES_IS_LIKE_WRITE, HostileBuffer, HostileStream, settle

STEPS = 12

# How long something is waited for that must come to an end, in seconds.
DEADLINE = 5


class Stage:
    """What the methods of a scenario are called on, and with."""

    def __init__(self, world):
        self.world, self.loop = world, world.loop
        self.pair = socket.socketpair()
        self.datagrams = socket.socketpair(type=socket.SOCK_DGRAM)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.file = tempfile.TemporaryFile()
        self.file.write(b"file" * 100)
        self.directory = tempfile.TemporaryDirectory()
        self.closing = [*self.pair, *self.datagrams, self.listener, self.file]
        for each in self.closing[:-1]:
            each.setblocking(False)
        self.made, self.count = [], {}

    def own(self, *closing):
        self.closing += closing
        return closing

    def protocol(self, kind):
        # Numbered by kind: processes, for one, are heard of when it pleases the system.
        self.count[kind] = self.count.get(kind, 0) + 1
        made = kind(self.world, f"{kind.__name__}{self.count[kind]}")
        self.made.append(made)
        return made

    def end(self):
        for each in self.closing:
            try:
                each.close()
            except Exception:
                pass
        self.directory.cleanup()


class HostileProcess(HostileStream, asyncio.SubprocessProtocol):
    """The order in which its callbacks come is the system's business, and with it what a transport says in each: only callbacks are noted, each
    in a log of its own, and in how many pieces output comes is not."""

    CALLBACKS = {"made", "exited", "lost", "lost0", "lost1", "lost2"}

    def note(self, *event):
        if event[0] in self.CALLBACKS:
            self.world.log.setdefault(f"{self.name}.{event[0]}", []).append(event)

    def pipe_data_received(self, fd, data):
        self.note(f"pipe{fd}")
        self.act(f"pipe{fd}")

    def pipe_connection_lost(self, fd, exc):
        self.note(f"lost{fd}")
        self.act(f"lost{fd}")

    def process_exited(self):
        self.note("exited")
        self.act("exited")


    def runs(self):
        # Not whether it was told of the end: another protocol may be in its place by then.
        return self.transport is not None and self.transport.get_returncode() is None


class HostilePipe(HostileStream):
    pass


# What methods are called with. Each takes a stage.
def some(name, *choices):
    return lambda stage: stage.world.choose(name, choices)


def function(stage):
    return stage.world.choose("function", [Callback(stage.world, stage.world.name("callback")), int, None, 5])


def argument(stage):
    return stage.world.choose("argument", [Mortal(stage.world, stage.world.name("argument")), Text("x"), 1])


def sock(stage):
    return stage.world.choose("sock", [*stage.pair, *stage.pair, stage.listener, *stage.datagrams, None, stage.pair[0].fileno(), "x"])


def stream_sock(stage):
    return stage.world.choose("stream_sock", [*stage.pair, *stage.pair, *stage.pair, None, "x"])


def fresh_sock(stage):
    one, other = stage.own(*socket.socketpair())
    one.setblocking(False)
    return stage.world.choose("fresh", [one, one, one, None, 5, stage.listener])


def descriptor(stage):
    return stage.world.choose("descriptor", [*stage.pair, stage.pair[0].fileno(), Whole(stage.pair[1].fileno()), -1, 10**6, None, "x", Moment(3.5)])


def address(stage):
    host, port = stage.address
    return stage.world.choose("address", [(host, port), (Text(host), Whole(port)), [host, port], (host,), 5, None, (host, "x"), (host, 1 << 20)])


def host(stage):
    return stage.world.choose("host", ["127.0.0.1", "127.0.0.1", Text("127.0.0.1"), b"127.0.0.1", 5, "127.0.0.1\0"])


def port(stage):
    right = stage.address[1]
    return stage.world.choose("port", [right, right, Whole(right), str(right), -1, 1 << 20, "x", 1.5])


def data(stage):
    return stage.world.choose("data", [b"x", b"", Data(b"y" * 100), bytearray(b"z" * 1000), memoryview(b"w"), memoryview(bytearray(8))[::2], "text", None, 5])


def lines(stage):
    name = stage.world.name("generator")
    texts = (text.encode() for text in generator(stage.world, name))
    return stage.world.choose("lines", [[b"a", b"b"], Pieces([b"c", Data(b"d")]), texts, [], [b"g", "text"], 5, None])


def size(stage):
    return stage.world.choose("size", [10, Whole(20), 0, 100_000, "x", None, -1, 1.5])


def buffer(stage):
    return stage.world.choose("buffer", [bytearray(100), memoryview(bytearray(10)), bytearray(0), b"fixed", None, "x", memoryview(bytearray(8))[::2]])


def delay(stage):
    return stage.world.choose("delay", [0, -1, 1e6, Whole(10**6), 9e9, float("inf"), "x", None, True])


def moment(stage):
    return stage.world.choose("moment", [0, Moment(1.5), -1.5, Whole(1), 9e9, float("inf"), None])


def a_signal(stage):
    return stage.world.choose("signal", [signal.SIGUSR1, signal.SIGUSR1, Whole(signal.SIGUSR1), signal.SIGUSR2, -1, 10**6, "x", signal.SIGKILL])


def coroutine(stage):
    name = stage.world.name("coroutine")

    async def body():
        await asyncio.sleep(0)
        stage.world.act(name)
        return Mortal(stage.world, stage.world.name("result"))

    return stage.world.choose("coroutine", [body, body, lambda: 5, lambda: None, int])()


def factory(kind):
    def make(stage):
        def right():
            return stage.protocol(kind)

        def fails():
            raise LookupError

        return stage.world.choose("factory", [right, right, right, right, fails, lambda: None, 5])

    return make


def factory_of_tasks(stage):
    def make(loop, coroutine, **options):
        gc.collect()
        return asyncio.Task(coroutine, loop=loop)

    return stage.world.choose("factory_of_tasks", [make, None, None, 5])


def handler(stage):
    return stage.world.choose("handler", [lambda loop, context: stage.world.log.setdefault("told", []).append(type(context.get("exception")).__name__), 5, "x"])


def context_of_error(stage):
    return stage.world.choose("context", [{"message": Text("x")}, {"message": "x", "exception": ZeroDivisionError()}, {}, {"message": Mortal(stage.world, "message")}])


def path(stage):
    return os.path.join(stage.directory.name, stage.world.choose("path", ["one", "two", "none\0"]))


def file(stage):
    return stage.world.choose("file", [stage.file, stage.file, stage.file, None, 5])


def pipe(index):
    def make(stage):
        ends = [os.fdopen(fd, mode, 0) for fd, mode in zip(os.pipe(), ("rb", "wb"))]
        stage.own(*ends)
        if index == 0:
            # So that there is something to be read, and an end.
            ends[1].write(b"through a pipe")
            if stage.world.random("end").random() < 0.5:
                ends[1].close()
        return stage.world.choose("pipe", [ends[index], ends[index], ends[index], stage.file, None, 5])

    return make


def command(stage):
    return stage.world.choose("command", ["cat", "true", Text("true"), b"true", "no such command", 5])


def protocol_object(stage):
    return stage.world.choose("protocol", [lambda: stage.protocol(HostileStream), lambda: stage.protocol(HostileBuffer), lambda: None])()


def transport(stage):
    return stage.world.choose("transport", [None, 5, "x"])


yes_or_no = some("bool", True, False, Whole(1))
name_of_info = some("info", "peername", "sockname", Text("socket"), "nothing", [], None)
limit = some("limit", 0, 100, Whole(50), -1, None, "x")

COMMON = {
    "get_extra_info": [name_of_info],
    "is_closing": [],
    "close": [],
    "get_protocol": [],
    "set_protocol": [protocol_object],
}
READING = {"is_reading": [], "pause_reading": [], "resume_reading": []}
WRITING = {
    "write": [data],
    "writelines": [lines],
    "write_eof": [],
    "can_write_eof": [],
    "abort": [],
    "get_write_buffer_size": [],
    "get_write_buffer_limits": [],
    "set_write_buffer_limits": [limit, limit],
}

TABLES = {
    "loop": {
        "add_reader": [descriptor, function, argument],
        "add_writer": [descriptor, function, argument],
        "remove_reader": [descriptor],
        "remove_writer": [descriptor],
        "add_signal_handler": [a_signal, function],
        "remove_signal_handler": [a_signal],
        "call_soon": [function, argument],
        "call_soon_threadsafe": [function, argument],
        "call_later": [delay, function, argument],
        "call_at": [moment, function, argument],
        "call_exception_handler": [context_of_error],
        "default_exception_handler": [context_of_error],
        "set_exception_handler": [handler],
        "get_exception_handler": [],
        "set_task_factory": [factory_of_tasks],
        "get_task_factory": [],
        "create_future": [],
        "create_task": [coroutine],
        "set_debug": [yes_or_no],
        "get_debug": [],
        "is_running": [],
        "is_closed": [],
        "time": [],
        "stop": [],
        "close": [],
        "run_forever": [],
        "run_until_complete": [coroutine],
        "run_in_executor": [some("executor", None, None, 5), function, argument],
        "set_default_executor": [some("executor", 5, None)],
        "getaddrinfo": [host, port],
        "getnameinfo": [address],
        "shutdown_asyncgens": [],
        "shutdown_default_executor": [],
        "sock_recv": [sock, size],
        "sock_recv_into": [sock, buffer],
        "sock_recvfrom": [sock, size],
        "sock_recvfrom_into": [sock, buffer, some("count", 0, 5, Whole(3), 10**6, -1, "x")],
        "sock_sendall": [stream_sock, data],
        "sock_sendto": [sock, data, address],
        "sock_sendfile": [stream_sock, file],
        "sock_accept": [sock],
        "sock_connect": [sock, address],
        "create_connection": [factory(HostileStream), host, port],
        "create_server": [factory(HostileStream), host, some("any", 0, 0, -1, "x", 1 << 20)],
        "create_unix_connection": [factory(HostileStream), path],
        "create_unix_server": [factory(HostileStream), path],
        "create_datagram_endpoint": [factory(HostileDatagrams), some("local", ("127.0.0.1", 0), ("127.0.0.1", Whole(0)), None, 5, ("127.0.0.1",))],
        "connect_accepted_socket": [factory(HostileStream), fresh_sock],
        "connect_read_pipe": [factory(HostilePipe), pipe(0)],
        "connect_write_pipe": [factory(HostilePipe), pipe(1)],
        "sendfile": [transport, file],
        "start_tls": [transport, protocol_object, some("context", None, 5)],
        "subprocess_exec": [factory(HostileProcess), command],
        "subprocess_shell": [factory(HostileProcess), command],
    },
    "handle": {"cancel": [], "cancelled": [], "get_context": []},
    "timer": {"cancel": [], "cancelled": [], "get_context": [], "when": []},
    "server": {
        "close": [],
        "get_loop": [],
        "is_serving": [],
        "start_serving": [],
        "serve_forever": [],
        "wait_closed": [],
        # From Python 3.13 on.
        "close_clients": [],
        "abort_clients": [],
    },
    "stream": {**COMMON, **READING, **WRITING},
    "datagrams": {
        **COMMON,
        "abort": [],
        "sendto": [data, address],
        "get_write_buffer_size": [],
        "get_write_buffer_limits": [],
        "set_write_buffer_limits": [limit, limit],
    },
    "read pipe": {**COMMON, **READING},
    "write pipe": {**COMMON, **WRITING},
    "process": {
        **COMMON,
        "get_pid": [],
        "get_returncode": [],
        "get_pipe_transport": [some("fd", 0, 1, 5, "x", None)],
        "send_signal": [some("signal", 0, "x", -1)],
        "terminate": [],
        "kill": [],
    },
}

# Methods that have no table, and why.
ELSEWHERE = {
    # What it counts is ours alone.
    ("loop", "stats"),
    ("loop", "on_slow_callback"),
    # asyncio inherits them into transports that cannot do it, or that have no use for it.
    ("datagrams", "write"),
    ("datagrams", "writelines"),
    ("datagrams", "write_eof"),
    ("datagrams", "can_write_eof"),
    ("datagrams", "is_reading"),
    ("datagrams", "pause_reading"),
    ("datagrams", "resume_reading"),
    ("write pipe", "is_reading"),
    ("write pipe", "pause_reading"),
    ("write pipe", "resume_reading"),
}

# What asyncio's transports stumble over once they are closed; ours let it pass.
NOT_AFTER_THE_END = {"sendto", "writelines"}

# asyncio takes any object for a time, and fails when it compares two.
TAKES_ANYTHING = {"call_at", "call_later"}

# What ends by itself, but by way of a thread or a process.
PATIENT = {"run_in_executor", "getaddrinfo", "getnameinfo", "shutdown_default_executor", "subprocess_exec", "subprocess_shell", "sock_sendfile"}


def play(seed, new_loop):
    world = World(seed, new_loop)
    world.log = {}
    loop = world.loop
    loop.slow_callback_duration = 1e9
    # When hostile objects are released, and so in which order they would schedule others, is compared elsewhere.
    world.actions = [collect, collect, fail, set_variable, switch_threads, change_debug, nothing, nothing]
    loop.set_exception_handler(lambda loop, context: world.log.setdefault("told", []).append(type(context.get("exception")).__name__))
    for number in signal.SIGUSR1, signal.SIGUSR2:
        signal.signal(number, signal.SIG_IGN)
    stage = Stage(world)
    things = {"loop": [loop]}
    world.log["calls"] = []
    try:
        kinds = world.random("kinds").sample(sorted(OPENERS), 2)
        for kind in kinds:
            try:
                things[kind] = [loop.run_until_complete(asyncio.wait_for(OPENERS[kind](stage), DEADLINE))]
            except BaseException as exc:
                world.log["calls"].append((kind, "not opened", type(exc).__name__))
            # Connections that a server has accepted take more turns in asyncio until their protocols are told.
            settle(world)
        for _ in range(STEPS):
            kind = world.choose("kind", ["loop", *sorted(things)])
            step(stage, kind, world.choose("thing", things[kind]))
            if loop.is_closed():
                break
    finally:
        world.ended = True
        for kind, opened in things.items():
            if kind != "loop":
                for each in opened:
                    end(each)
        finish(stage)
    # How often a callback for a descriptor fails before somebody removes it is a matter of time.
    world.log["told"] = sorted(set(world.log.get("told", [])))
    return sorted([name, *events] for name, events in world.log.items())


def end(thing):
    for name in "kill", "abort", "close", "cancel":
        try:
            getattr(thing, name)()
        except Exception:
            pass


def finish(stage):
    loop = stage.loop
    if loop.is_closed():
        stage.end()
        return
    loop.set_task_factory(None)
    for made in stage.made:
        if made.transport is not None:
            end(made.transport)
    settle(stage.world)
    wait_for_processes(stage, [made for made in stage.made if isinstance(made, HostileProcess)])
    # What is left of the tasks must not be heard of in the next scenario.
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    stage.end()
    for _ in range(3):
        settle(stage.world)
    if type(loop._default_executor) is concurrent.futures.ThreadPoolExecutor:
        loop._default_executor.shutdown(wait=True)
    loop._default_executor = None
    for number in signal.SIGUSR1, signal.SIGUSR2:
        signal.signal(number, signal.SIG_IGN)
    loop.close()


def wait_for_processes(stage, protocols):
    until = stage.loop.time() + DEADLINE
    while any(protocol.runs() for protocol in protocols) and stage.loop.time() < until:
        settle(stage.world)


def step(stage, kind, thing):
    world = stage.world
    table = TABLES[kind]
    name = world.choose(f"{kind}.method", sorted(name for name in table if hasattr(thing, name)))
    arguments = [make(stage) for make in table[name]]
    wrong = world.random("wrong").random()
    if wrong < 0.05 and arguments:
        arguments.pop()
    elif wrong < 0.1:
        arguments.append(Mortal(world, world.name("argument")))
    elif wrong < 0.15 and arguments and name not in TAKES_ANYTHING:
        arguments[world.random("wrong").randrange(len(arguments))] = Mortal(world, world.name("argument"))
    options = {}
    if name == "create_datagram_endpoint" and len(arguments) > 1:
        options["local_addr"] = arguments.pop(1)
    elif name == "connect_accepted_socket" and len(arguments) > 1:
        options["sock"] = arguments.pop(1)
    if name in NOT_AFTER_THE_END and thing.is_closing() or name == "writelines" and not WRITELINES_IS_LIKE_WRITE:
        return
    if name == "run_forever":
        stage.loop.call_later(0.01, stage.loop.stop)
    try:
        called = getattr(thing, name)(*arguments, **options)
    except Exception as exc:
        note(stage, kind, name, "raised", type(exc).__name__)
        if not stage.loop.is_closed():
            settle(world)
        return
    finally:
        arguments.clear()
        options.clear()
    if asyncio.iscoroutine(called) or isinstance(called, asyncio.Future):
        called = wait(stage, kind, name, called)
    elif name == "sendto" or not isinstance(called, (bool, int, str, bytes, type(None))):
        note(stage, kind, name, "done")
    else:
        note(stage, kind, name, called)
    del called
    if not stage.loop.is_closed():
        settle(world)
        if kind == "process" and name in ("kill", "terminate", "close"):
            # When that is noticed is the system's business.
            wait_for_processes(stage, [stage.process])


def note(stage, kind, name, *outcome):
    # Numbers that the system gives.
    if name in ("get_pid", "getaddrinfo", "time"):
        outcome = outcome[:1] if outcome[0] == "raised" else ("done",)
    stage.world.log["calls"].append((kind, name, *outcome))


def wait(stage, kind, name, called):
    """Waits for something for a while, and notes what came of it."""
    loop = stage.loop
    try:
        task = asyncio.ensure_future(called, loop=loop)
    except Exception as exc:
        if asyncio.iscoroutine(called):
            called.close()
        note(stage, kind, name, "no task", type(exc).__name__)
        return None
    if not isinstance(task, asyncio.Future):
        note(stage, kind, name, "another task")
        return None
    if name in PATIENT:
        watchdog = loop.call_later(DEADLINE, loop.stop)
        task.add_done_callback(lambda _: loop.stop())
        if not task.done():
            try:
                loop.run_forever()
            except BaseException as exc:
                note(stage, kind, "loop", type(exc).__name__)
        watchdog.cancel()
    settle(stage.world)
    if not task.done():
        note(stage, kind, name, "waits")
        task.cancel()
        settle(stage.world)
        return None
    if task.cancelled():
        note(stage, kind, name, "cancelled")
    elif task.exception() is not None:
        note(stage, kind, name, "raised", type(task.exception()).__name__)
    else:
        result = task.result()
        note(stage, kind, name, len(result) if isinstance(result, bytes) else result if isinstance(result, (int, type(None))) else "done")
        end_result(stage, result)
    return None


def end_result(stage, result):
    """Sees to it that transports and servers are closed in the end."""
    for each in result if isinstance(result, tuple) else [result]:
        if isinstance(each, (asyncio.BaseTransport, asyncio.AbstractServer)):
            stage.closing.append(each)
        elif isinstance(each, socket.socket):
            stage.closing.append(each)


async def open_handle(stage):
    return stage.loop.call_later(1000, Callback(stage.world, "handle"))


async def open_soon(stage):
    return stage.loop.call_soon(Callback(stage.world, "soon"))


async def open_server(stage):
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    stage.own(listener, client)
    client.send(b"hello")
    return await stage.loop.create_server(lambda: stage.protocol(HostileStream), sock=listener, start_serving=stage.world.random("serve").random() < 0.5)


async def open_stream(stage):
    one, other = stage.own(*socket.socketpair())
    for each in one, other:
        each.setblocking(False)
    other.send(b"hello")
    made, _ = await stage.loop.create_connection(lambda: stage.protocol(HostileStream), sock=one)
    return made


async def open_datagrams(stage):
    made, _ = await stage.loop.create_datagram_endpoint(lambda: stage.protocol(HostileDatagrams), local_addr=("127.0.0.1", 0))
    with socket.socket(type=socket.SOCK_DGRAM) as peer:
        peer.sendto(b"hello", made.get_extra_info("sockname"))
    return made


async def open_read_pipe(stage):
    reading, writing = [os.fdopen(fd, mode, 0) for fd, mode in zip(os.pipe(), ("rb", "wb"))]
    stage.own(reading, writing)
    writing.write(b"hello")
    made, _ = await stage.loop.connect_read_pipe(lambda: stage.protocol(HostilePipe), reading)
    return made


async def open_write_pipe(stage):
    reading, writing = [os.fdopen(fd, mode, 0) for fd, mode in zip(os.pipe(), ("rb", "wb"))]
    stage.own(reading, writing)
    made, _ = await stage.loop.connect_write_pipe(lambda: stage.protocol(HostilePipe), writing)
    return made


async def open_process(stage):
    made, stage.process = await stage.loop.subprocess_exec(lambda: stage.protocol(HostileProcess), "cat", stderr=None)
    return made


OPENERS = {
    "timer": open_handle,
    "handle": open_soon,
    "server": open_server,
    "stream": open_stream,
    "datagrams": open_datagrams,
    "read pipe": open_read_pipe,
    "write pipe": open_write_pipe,
    "process": open_process,
}
