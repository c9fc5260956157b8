"""A program that uses all of pelton's interface and should pass a type checker. It is not run."""

import asyncio
from typing import assert_type

import pelton


async def number() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, pelton.Loop)
    handle = loop.call_soon(print, "hello")
    assert_type(handle, asyncio.Handle)
    if isinstance(handle, pelton.Handle):
        handle.cancel()
    timer = loop.call_later(1, print)
    assert_type(timer.when(), float)
    stats = loop.stats()
    assert_type(stats["turns"], int)
    assert_type(stats["engine"], str)
    loop.on_slow_callback(0.1, slow)
    loop.on_slow_callback(0, None)
    transport, _ = await loop.create_connection(asyncio.Protocol, "localhost", 80)
    if isinstance(transport, pelton.StreamTransport):
        transport.write(b"hello")
    return 1


def slow(handle: asyncio.Handle, seconds: float) -> None:
    print(handle, seconds)


assert_type(pelton.run(number()), int)
assert_type(pelton.run(number(), debug=True), int)
assert_type(pelton.new_event_loop(), pelton.Loop)
assert_type(pelton.__version__, str)
with asyncio.Runner(loop_factory=pelton.new_event_loop) as runner:
    assert_type(runner.run(number()), int)
pelton.install()
asyncio.set_event_loop_policy(pelton.EventLoopPolicy())


class MyLoop(pelton.Loop):
    def __init__(self) -> None:
        super().__init__()
        self.mine = 1
