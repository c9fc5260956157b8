"""aiohttp on asyncio's own loop."""

import asyncio
import ssl
import sys

import aiohttp

url, in_flight, certificate = sys.argv[1], int(sys.argv[2]), sys.argv[3]
left = 0


async def worker(session):
    global left
    while left > 0:
        left -= 1
        async with session.get(url) as response:
            assert response.status == 200, response.status
            async for _ in response.content.iter_any():
                pass


async def main():
    global left
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context(cafile=certificate) if url.startswith("https:") else True
    connector = aiohttp.TCPConnector(limit=0, ssl=context)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            left = count = int(line)
            await asyncio.gather(*(worker(session) for _ in range(min(in_flight, count))))
            print(count, flush=True)


asyncio.run(main())
