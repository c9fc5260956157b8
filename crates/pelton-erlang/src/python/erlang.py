"""What Python code can do with the Erlang virtual machine that it runs in."""

import asyncio
import logging
import sys

import _erlang
import pelton
from _erlang import Atom, Pid, Ref, send, whereis

__all__ = [
    "Atom", "ByteChannel", "Channel", "ChannelClosed", "Pid", "Ref", "ProcessError", "async_call", "atom", "call", "new_event_loop", "run", "send", "setup_logging",
    "sleep", "spawn_task", "state_clear", "state_decr", "state_fetch", "state_incr", "state_keys", "state_remove",
    "state_store", "whereis",
]

ProcessError = RuntimeError
Loop = ErlangEventLoop = pelton.Loop
new_event_loop = pelton.new_event_loop


def atom(name):
    """Return an atom. Strings become binaries in Erlang."""
    return Atom(name)


def call(name, *args, timeout=None):
    """Call a function that Erlang registered, and wait for its answer."""
    return _erlang.call(str(name), args, timeout)


async def async_call(name, *args):
    """Call a function that Erlang registered, without blocking the loop."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    _erlang.call_later(loop, future, str(name), args)
    return await future


# What to do with an answer that comes after its task was cancelled.
_undo = {}


def _settle(future, value, error):
    undo = _undo.pop(future, None)
    if future.done():
        if undo is not None and error is None:
            undo(value)
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def run(main, *, debug=None):
    """Run a coroutine on a loop of its own, as ``asyncio.run`` does."""
    with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
        return runner.run(main)


def sleep(seconds):
    """Sleep. Inside of a task, await the result; elsewhere it blocks this thread only."""
    if asyncio._get_running_loop() is not None:
        return asyncio.sleep(seconds)
    import time

    return time.sleep(seconds)


_spawned = set()


def spawn_task(coroutine, *, name=None):
    """Start a task on the running loop, and keep it until it is done."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _spawned.add(task)
    task.add_done_callback(_spawned.discard)
    return task


def state_fetch(key):
    """Return the value of a key that Erlang and Python share, or None."""
    return call("_py_state_fetch", key)


def state_store(key, value):
    call("_py_state_store", key, value)


def state_remove(key):
    call("_py_state_remove", key)


def state_keys():
    return call("_py_state_keys")


def state_clear():
    call("_py_state_clear")


def state_incr(key, amount=1):
    """Add to a number, which starts at 0, and return the sum."""
    return call("_py_state_incr", key, amount)


def state_decr(key, amount=1):
    return call("_py_state_incr", key, -amount)


state_get, state_set = state_fetch, state_store


class ChannelClosed(Exception):
    """The channel was closed, and everything in it was received."""


class Channel:
    """A bounded queue that Erlang made: ``Channel(pid)`` for the value of ``py_channel:new/0``."""

    def __init__(self, pid):
        self.pid = pid

    def send(self, item):
        """Send an item. Return False if the channel is full."""
        answer = call("_py_channel_send", self.pid, self._pack(item))
        if answer == "closed":
            raise ChannelClosed
        return answer == "ok"

    def receive(self, timeout=None):
        """Wait for an item. It blocks this thread; in a task, await ``async_receive``."""
        return self._item(call("_py_channel_receive", self.pid, timeout))

    def try_receive(self):
        """Return an item, or None if there is none."""
        try:
            return self.receive(0)
        except TimeoutError:
            return None

    async def async_receive(self):
        """Await an item. If the task is cancelled, the item stays in the channel."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        _undo[future] = self._put_back
        _erlang.call_later(loop, future, "_py_channel_receive", (self.pid, None))
        return self._item(await future)

    def _put_back(self, answer):
        if answer[0] == "ok":
            # Not by a call, which would block the loop.
            send(self.pid, (Atom("$gen_cast"), (Atom("put_back"), self._pack(answer[1]))))

    def close(self):
        call("_py_channel_close", self.pid)

    def _pack(self, item):
        return item

    def _item(self, answer):
        if answer[0] == "ok":
            return answer[1]
        if answer[1] == "timeout":
            raise TimeoutError("nothing was received in time")
        raise ChannelClosed

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.receive()
        except ChannelClosed:
            raise StopIteration from None

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return await self.async_receive()
        except ChannelClosed:
            raise StopAsyncIteration from None


class ByteChannel(Channel):
    """A channel of bytes, made by ``py_byte_channel:new/0``."""

    def _pack(self, item):
        return (Atom("bytes"), bytes(item))

    def _item(self, answer):
        item = super()._item(answer)
        return item[1].encode() if isinstance(item, tuple) else item


class _Handler(logging.Handler):
    def emit(self, record):
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            send("py_logger", (Atom("py_log"), record.levelno, record.name, text))
        except Exception:
            self.handleError(record)


def setup_logging(level=logging.INFO):
    """Forward log records to Erlang's logger."""
    root = logging.getLogger()
    if not any(type(handler).__qualname__ == "_Handler" for handler in root.handlers):
        root.addHandler(_Handler())
    root.setLevel(level)


async def _stream(function, sink, reference):
    """Send the items of a generator to a process. See py:stream_start in Erlang."""
    data, kind = Atom("data"), Atom("py_stream")
    source = function()
    if hasattr(source, "__await__"):
        source = await source
    try:
        if hasattr(source, "__aiter__"):
            async for item in source:
                send(sink, (kind, reference, (data, item)))
        else:
            for count, item in enumerate(source, 1):
                send(sink, (kind, reference, (data, item)))
                if count % 64 == 0:
                    # Others on this loop, a cancellation among them, have their turn.
                    await asyncio.sleep(0)
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
        elif hasattr(source, "close"):
            source.close()


_streams = {}


async def _stream_call(module, name, args, kwargs, sink, reference):
    import importlib

    target = importlib.import_module(module)
    for part in name.split("."):
        target = getattr(target, part)
    _streams[reference] = asyncio.current_task()
    try:
        await _stream(lambda: target(*args, **kwargs), sink, reference)
    finally:
        del _streams[reference]


def _stream_cancel(reference):
    task = _streams.get(reference)
    return task is not None and task.cancel()


def _gather_memory():
    import gc

    counts = gc.get_count()
    return {"gc_stats": gc.get_stats(), "gc_count": list(counts), "gc_threshold": list(gc.get_threshold())}


def _collect(generation=2):
    import gc

    return gc.collect(generation)


def _activate(path):
    import pelton._host

    problem = pelton._host.activate(path)
    if problem is not None:
        raise ValueError(f"{path}: {problem}")


def _reload(name):
    import importlib

    module = sys.modules.get(name)
    if module is not None:
        importlib.reload(module)


def _call_method(target, name, args):
    return getattr(target, name)(*args)


def _identity(value):
    return value


def __getattr__(name):
    if not name.startswith("__") and _erlang.is_registered(name):
        def function(*args):
            return call(name, *args)

        function.__name__ = function.__qualname__ = name
        return function
    raise AttributeError(f"module 'erlang' has no attribute {name!r}: Erlang has registered no such function")
