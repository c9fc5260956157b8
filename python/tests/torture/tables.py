"""The public methods of loops, handles, servers and transports, and what makes the arguments of each.

`test_torture.py` fails if a public method is in none of the tables.
"""

import asyncio
import gc
import os
import signal
import socket

from .hostile import Callback, Data, Moment, Mortal, Pieces, Text, Whole, generator
from .servers import HostileDatagrams
from .streams import HostileBuffer, HostileStream


class HostileProcess(HostileStream, asyncio.SubprocessProtocol):
    """The system determines the order of its callbacks, and so what a transport reports in each. Only callbacks are recorded, each in
    its own log, and not in how many pieces output arrives."""

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
        # Not by its callback: another protocol may have been set by then.
        return self.transport is not None and self.transport.get_returncode() is None


class HostilePipe(HostileStream):
    pass


# Arguments of methods. Each function takes a stage.
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
            # So that there is something to read, and an end.
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
        # Since Python 3.13.
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

# Methods without a table, and why.
ELSEWHERE = {
    # Only our loop has these.
    ("loop", "stats"),
    ("loop", "on_slow_callback"),
    # asyncio inherits them into transports that do not support them.
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
