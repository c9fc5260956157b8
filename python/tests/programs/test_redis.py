"""redis-py, against a real server."""

import asyncio
import contextlib
import pathlib
import subprocess
import tempfile
import time

import redis.asyncio as redis
from on_pelton import DEADLINE, OURS, ProgramTestCase, loop_name


@contextlib.contextmanager
def server():
    """Start a server that is only reachable through a Unix socket, and remove it with all its data afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "socket"
        options = ["--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", directory]
        process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        try:
            end = time.monotonic() + DEADLINE
            while not path.exists():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError("redis-server did not start")
                time.sleep(0.01)
            yield str(path)
        finally:
            process.kill()
            process.wait()


class Redis(ProgramTestCase):
    def test_commands_subscriptions_and_blocking(self):
        with server() as path:

            async def main():
                async with redis.Redis(unix_socket_path=path, decode_responses=True) as client:
                    await self.commands(client)
                    await self.many_at_once(client)
                    await self.subscriptions(client)
                    await self.blocking(client)

            self.run_on_pelton(main)

    async def commands(self, client):
        await client.set("loop", loop_name())
        self.assertEqual(await client.get("loop"), OURS)
        async with client.pipeline(transaction=True) as pipeline:
            for _ in range(1000):
                pipeline.incr("counter")
            self.assertEqual((await pipeline.execute())[-1], 1000)
        large = "x" * 5_000_000
        await client.set("large", large)
        self.assertEqual(await client.get("large"), large)

    async def many_at_once(self, client):
        await asyncio.gather(*[client.incrby("sum", number) for number in range(80)])
        self.assertEqual(await client.get("sum"), str(sum(range(80))))

    async def subscriptions(self, client):
        async with client.pubsub() as subscription:
            await subscription.subscribe("channel")
            await client.publish("channel", "news")
            messages = subscription.listen()
            self.assertEqual((await anext(messages))["type"], "subscribe")
            self.assertEqual((await anext(messages))["data"], "news")

    async def blocking(self, client):
        """A command that the server answers only after another one, and a command that is cancelled."""
        waiting = asyncio.create_task(client.blpop("queue", timeout=DEADLINE))
        await asyncio.sleep(0)
        await client.rpush("queue", "item")
        self.assertEqual(list(await waiting), ["queue", "item"])
        with self.assertRaises(asyncio.TimeoutError):
            await asyncio.wait_for(client.blpop("queue", timeout=DEADLINE), 0.05)
        self.assertTrue(await client.ping())
