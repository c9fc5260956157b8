"""The event loop policy that makes asyncio create Pelton loops."""

import asyncio

from ._pelton import Loop


class EventLoopPolicy(asyncio.DefaultEventLoopPolicy):
    """asyncio's own policy, which creates Pelton loops."""

    _loop_factory = Loop
