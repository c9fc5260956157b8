"""The event loop policy, by which asyncio can be told to create loops of ours."""

import asyncio

from ._pelton import Loop


class EventLoopPolicy(asyncio.DefaultEventLoopPolicy):
    """asyncio's own policy, but for the loops that it creates."""

    _loop_factory = Loop
