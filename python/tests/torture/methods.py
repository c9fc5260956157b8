"""Every public method of loops, handles, servers and transports, with valid, hostile, missing or too many arguments.

The tables in `tables.py` list the arguments of each method.
"""

import asyncio
import concurrent.futures
import os
import selectors
import signal
import socket
import tempfile
import traceback

from .hostile import Callback, Mortal, World
from .hostile import change_debug, collect, fail, nothing, set_variable, switch_threads
from .servers import HostileDatagrams
from .streams import WRITELINES_IS_LIKE_WRITE, HostileStream, settle
from .tables import TABLES, HostilePipe, HostileProcess

STEPS = 12

# Time limit in seconds for operations that must finish.
DEADLINE = 5

# Methods on which asyncio's transports fail after they are closed; ours ignore them.
NOT_AFTER_THE_END = {"sendto", "writelines"}

# asyncio accepts any object as a time, and fails when it compares two. It keeps any object as the debug mode, and returns it.
TAKES_ANYTHING = {"call_at", "call_later", "set_debug"}

# Methods that finish by themselves, but through a thread or a process.
PATIENT = {"run_in_executor", "getaddrinfo", "getnameinfo", "shutdown_default_executor", "subprocess_exec", "subprocess_shell", "sock_sendfile"}

# asyncio adds the reader of a pipe that its protocol has already closed. The next file with that number then cannot be watched.
STALE = "asyncio's selector still has a descriptor that was closed"


class Stage:
    """The objects whose methods a scenario calls, and the arguments."""

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
        # Numbered by kind, because the system decides when events of processes arrive.
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


def play(seed, new_loop):
    world = World(seed, new_loop)
    world.log = {}
    loop = world.loop
    loop.slow_callback_duration = 1e9
    # The order in which hostile objects are released, and would schedule others, is compared elsewhere.
    world.actions = [collect, collect, fail, set_variable, switch_threads, change_debug, nothing, nothing]
    loop.set_exception_handler(lambda loop, context: world.log.setdefault("told", []).append(type(context.get("exception")).__name__))
    for number in signal.SIGUSR1, signal.SIGUSR2:
        signal.signal(number, signal.SIG_IGN)
    stage = Stage(world)
    things = {"loop": [loop]}
    world.log["calls"] = []
    try:
        world.opening = True
        kinds = world.random("kinds").sample(sorted(OPENERS), 2)
        for kind in kinds:
            try:
                things[kind] = [loop.run_until_complete(asyncio.wait_for(OPENERS[kind](stage), DEADLINE))]
            except BaseException as exc:
                world.log["calls"].append((kind, "not opened", type(exc).__name__))
            # In asyncio, accepted connections take more turns until their protocols are called.
            settle(world)
            note_stale(stage)
        world.opening = False
        for _ in range(STEPS):
            kind = world.choose("kind", ["loop", *sorted(things)])
            step(stage, kind, world.choose("thing", things[kind]))
            note_stale(stage)
            if loop.is_closed():
                break
    finally:
        world.ended = True
        for kind, opened in things.items():
            if kind != "loop":
                for each in opened:
                    end(each)
        finish(stage)
    if STALE in world.log:
        return STALE
    # How often a callback of a descriptor fails before it is removed depends on timing.
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
    # Remaining tasks must not report anything in the next scenario.
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
        note_raised(stage, kind, name, exc)
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
            # When that is noticed depends on the system.
            wait_for_processes(stage, [stage.process])


def note(stage, kind, name, *outcome):
    # Numbers that the system gives, and the debug mode, which hostile objects change when they are released.
    if name in ("get_pid", "getaddrinfo", "time", "get_debug"):
        outcome = outcome[:1] if outcome[0] == "raised" else ("done",)
    stage.world.log["calls"].append((kind, name, *outcome))


def note_raised(stage, kind, name, exc):
    note(stage, kind, name, "raised", type(exc).__name__)
    if isinstance(exc, FileNotFoundError) and failed_in_selector(exc):
        stage.world.log[STALE] = []


def note_stale(stage):
    """Notice that asyncio's selector still has a pipe that its transport has closed. The next file with that number is not watched."""
    selector = getattr(stage.loop, "_selector", None)
    if isinstance(selector, selectors.DefaultSelector):
        for key in list((selector.get_map() or {}).values()):
            callbacks = [handle._callback for handle in key.data if handle is not None]
            if any(getattr(getattr(callback, "__self__", None), "_pipe", stage) is None for callback in callbacks):
                stage.world.log[STALE] = []


def failed_in_selector(exc):
    *_, (frame, _) = traceback.walk_tb(exc.__traceback__)
    return frame.f_code.co_name == "modify" and frame.f_globals["__name__"] == "selectors"


def wait(stage, kind, name, called):
    """Wait for something for a while, and record the result."""
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
        note_raised(stage, kind, name, task.exception())
    else:
        result = task.result()
        note(stage, kind, name, len(result) if isinstance(result, bytes) else result if isinstance(result, (int, type(None))) else "done")
        end_result(stage, result)
    return None


def end_result(stage, result):
    """Make sure that transports and servers are closed in the end."""
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
