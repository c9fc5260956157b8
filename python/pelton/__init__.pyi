import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from ._pelton import Handle as Handle
from ._pelton import Loop as Loop
from ._pelton import StreamTransport as StreamTransport
from ._pelton import TimerHandle as TimerHandle
from ._pelton import __version__ as __version__
from ._policy import EventLoopPolicy as EventLoopPolicy

__all__ = [
    "Handle",
    "Loop",
    "StreamTransport",
    "TimerHandle",
    "install",
    "new_event_loop",
    "run",
    "__version__",
]
if sys.version_info < (3, 14):
    __all__ += ["EventLoopPolicy"]

_T = TypeVar("_T")

def new_event_loop() -> Loop: ...
def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T: ...
def install() -> None: ...
