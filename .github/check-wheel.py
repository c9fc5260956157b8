"""That an installed wheel is complete and runs: imports it, runs a loop, and talks to itself over TCP."""

import asyncio

import pelton
from pelton import *  # noqa: F403


async def main():
    async def echo(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    writer.close()
    server.close()
    return type(asyncio.get_running_loop())


assert pelton.run(asyncio.wait_for(main(), 30)) is pelton.Loop
print("pelton", pelton.__version__, "runs")
