"""arq. Reads numbers, and answers when it has done as much."""

import asyncio
import sys
import time

from arq.connections import ArqRedis
from arq.worker import Worker, func
from redis.asyncio import ConnectionPool, UnixDomainSocketConnection

MODE, PATH = sys.argv[1:]
BATCH = 100


async def main():
    pool = ArqRedis(ConnectionPool(connection_class=UnixDomainSocketConnection, path=PATH))
    done, goal, finished, ran = 0, 0, asyncio.Event(), 0.0

    async def work(_, payload):
        nonlocal done, ran
        ran = time.perf_counter()
        done += 1
        if done >= goal:
            finished.set()

    # The shortest wait that its documentation mentions; the default is half a second.
    worker = Worker([func(work, name="work")], redis_pool=pool, max_jobs=50, poll_delay=0.01, keep_result=0, handle_signals=False)
    working = asyncio.create_task(worker.main())
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        total, took, sent = int(line), [], 0
        if MODE == "jobs":
            goal = done + total
            finished.clear()
            while sent < total:
                count = min(BATCH, total - sent)
                await asyncio.gather(*(pool.enqueue_job("work", "x" * 64) for _ in range(count)))
                sent += count
            await finished.wait()
            print(0, flush=True)
        else:
            # It polls: a few are enough.
            for _ in range(min(total, 50)):
                goal = done + 1
                finished.clear()
                started = time.perf_counter()
                await pool.enqueue_job("work", "x" * 64)
                await finished.wait()
                took.append((ran - started) * 1e6)
            took.sort()
            print(took[min(len(took) - 1, int(len(took) * 0.99))], flush=True)
    working.cancel()


asyncio.run(main())
