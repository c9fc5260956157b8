import asyncio
from collections.abc import Callable
from typing import TypedDict, final, type_check_only

from typing_extensions import disjoint_base

__version__: str

@type_check_only
class _Stats(TypedDict):
    engine: str
    debug: bool
    turns: int
    callbacks: int
    timers: int
    events: int
    polls: int
    sleeps: int
    posts: int
    most_ready: int
    ready: int
    timers_waiting: int
    descriptors: int
    slow_callbacks: int
    native_callbacks: int

@final
class Handle(asyncio.Handle): ...

@final
class TimerHandle(asyncio.TimerHandle): ...

@disjoint_base
class StreamTransport(asyncio.Transport): ...

@disjoint_base
class SSLProtocol(asyncio.BufferedProtocol): ...

@disjoint_base
class SSLTransport(asyncio.Transport): ...

@disjoint_base
class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None: ...
    def stats(self) -> _Stats: ...
    def on_slow_callback(
        self, seconds: float, callback: Callable[[asyncio.Handle, float], object] | None
    ) -> None: ...
