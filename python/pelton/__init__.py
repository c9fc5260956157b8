"""An asyncio event loop on the Pelton reactor.

    import pelton
    pelton.run(main())

runs a program like ``asyncio.run``. After ``pelton.install()``, every loop that asyncio creates is a Pelton loop.
"""

import asyncio
import sys

from . import _loop as _loop
from ._pelton import Handle, Loop, StreamTransport, TimerHandle, __version__

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
# Python 3.14 deprecates policies and later versions remove them; ``from pelton import *`` must still work there.
if sys.version_info < (3, 14) and hasattr(asyncio, "DefaultEventLoopPolicy"):
    __all__ += ["EventLoopPolicy"]


def new_event_loop():
    """Return a new loop."""
    return Loop()


def run(main, *, debug=None):
    """Run a coroutine on a new loop, and return its result.

    Like ``asyncio.run``, it closes the loop at the end, after its tasks, asynchronous generators and executor.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("pelton.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
        return runner.run(main)


def install():
    """Make asyncio create Pelton loops from now on, by setting an event loop policy."""
    try:
        from ._policy import EventLoopPolicy
    except AttributeError as error:
        raise RuntimeError(
            "this version of Python has no event loop policies; use pelton.run() or loop_factory=pelton.new_event_loop"
        ) from error
    asyncio.set_event_loop_policy(EventLoopPolicy())


def __getattr__(name):
    # Imported on first access: Python 3.14 deprecates policies, and later versions remove them.
    if name == "EventLoopPolicy":
        from ._policy import EventLoopPolicy

        return EventLoopPolicy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
