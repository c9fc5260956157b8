"""Connections leave nothing behind: objects and descriptors are counted over many of them.

The environment variable PELTON_LEAK_CONNECTIONS sets the total number of connections; the default is 4,000.
"""

import asyncio
import collections
import gc
import os
import socket
import ssl
import sys
import time
import unittest

from support import LoopTestCase
from test_tls_torture import client_context, server_context

CONNECTIONS = int(os.environ.get("PELTON_LEAK_CONNECTIONS", "4000"))
DEADLINE = 120 + CONNECTIONS / 50
AT_ONCE = 20

# Objects that the interpreter itself may add: caches and grown counters.
NOISE = 60


def descriptors():
    return len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def objects():
    """Return the number of objects of each type."""
    gc.collect()
    gc.collect()
    return collections.Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class Client(asyncio.Protocol):
    def __init__(self):
        self.answered = asyncio.get_running_loop().create_future()
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data):
        if not self.answered.done():
            self.answered.set_result(data)

    def connection_lost(self, exc):
        self.answered.cancel()
        self.lost.set_result(exc)


class Leaks(LoopTestCase):
    """One loop runs each kind a few times before the first count, and many times after it."""

    KINDS = 9

    def check(self, one, context=None):
        """Run `one(address)` very often, a few at a time, against an echo server."""
        count = max(CONNECTIONS // self.KINDS, AT_ONCE * 4)

        async def some(address, count):
            for _ in range(0, count, AT_ONCE):
                await asyncio.gather(*[one(address) for _ in range(AT_ONCE)])

        async def main():
            server = await self.loop.create_server(Echo, "127.0.0.1", 0, ssl=context)
            address = server.sockets[0].getsockname()
            # By then, everything that is created only once exists.
            await some(address, max(count // 10, AT_ONCE * 2))
            await self.settled()
            before = objects(), descriptors(), sys.getallocatedblocks()
            await some(address, count)
            await self.settled()
            after = objects(), descriptors(), sys.getallocatedblocks()
            server.close()
            return before, after

        before, after = self.loop.run_until_complete(asyncio.wait_for(main(), DEADLINE))
        more = {name: number - before[0][name] for name, number in after[0].items() if number > before[0][name]}
        self.assertLess(sum(more.values()), NOISE, f"objects left after {count} connections: {more}")
        self.assertLessEqual(after[1], before[1], "descriptors")
        # Half a block per connection would be a leak that the collector does not see. Caches may grow a little in
        # any case.
        self.assertLess(after[2] - before[2], max(count / 2, 2000), f"memory blocks left after {count} connections")
        self.assertEqual(self.errors, [])

    async def settled(self):
        """Wait until the server has noticed that all clients have disconnected."""
        end = time.monotonic() + DEADLINE
        while [each for each in gc.get_objects() if isinstance(each, Echo)]:
            self.assertLess(time.monotonic(), end, "connections remain on the server")
            await asyncio.sleep(0.005)
            gc.collect()
        # The object that woke this task stays referenced until the task waits for something else.
        await asyncio.sleep(0)

    async def echo(self, address, **options):
        transport, client = await self.loop.create_connection(Client, *address, **options)
        transport.write(b"hello")
        self.assertEqual(await client.answered, b"hello")
        return transport, client

    def test_closed(self):
        async def one(address):
            transport, client = await self.echo(address)
            transport.close()
            await client.lost

        self.check(one)

    def test_aborted_with_unsent_data(self):
        async def one(address):
            transport, client = await self.echo(address)
            transport.write(bytes(1_000_000))
            transport.abort()
            await client.lost

        self.check(one)

    def test_errors_are_released_with_their_callback(self):
        lost, all_lost = [], None

        class Listener(Echo):
            def connection_lost(self, exc):
                lost.append(type(exc))
                if len(lost) == 10:
                    all_lost.set_result(None)

        async def main():
            nonlocal all_lost
            all_lost = self.loop.create_future()
            server = await self.loop.create_server(Listener, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            for _ in range(10):
                transport, client = await self.echo(address)
                transport.write(bytes(1_000_000))
                transport.abort()
            await all_lost
            server.close()
            return [each for each in gc.get_objects() if isinstance(each, ConnectionResetError)]

        left = self.loop.run_until_complete(asyncio.wait_for(main(), DEADLINE))
        self.assertIn(ConnectionResetError, lost)
        self.assertEqual(left, [])

    def test_raw_sockets(self):
        async def one(address):
            with socket.socket() as sock:
                sock.setblocking(False)
                await self.loop.sock_connect(sock, address)
                await self.loop.sock_sendall(sock, b"hello")
                self.assertEqual(await self.loop.sock_recv(sock, 100), b"hello")

        self.check(one)

    def test_streams(self):
        async def one(address):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"hello")
            self.assertEqual(await reader.readexactly(5), b"hello")
            writer.close()
            await writer.wait_closed()

        self.check(one)

    def test_cancelled_while_connecting(self):
        async def one(address):
            task = asyncio.ensure_future(self.loop.create_connection(Client, *address))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled():
                task.result()[0].abort()

        self.check(one)

    def test_refused(self):
        async def one(_address):
            # Bound but not listening, so that nothing else gets the port meanwhile.
            with socket.socket() as nobody:
                nobody.bind(("127.0.0.1", 0))
                with self.assertRaises(ConnectionRefusedError):
                    await self.loop.create_connection(Client, *nobody.getsockname())

        self.check(one)

    def test_over_tls(self):
        context = client_context()

        async def one(address):
            transport, client = await self.echo(address, ssl=context, server_hostname="localhost")
            transport.close()
            await client.lost

        self.check(one, server_context())

    def test_tls_with_an_untrusted_certificate(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

        async def one(address):
            with self.assertRaises(ssl.SSLCertVerificationError):
                await self.loop.create_connection(Client, *address, ssl=context, server_hostname="localhost")

        self.check(one, server_context())

    def test_garbage_instead_of_tls(self):
        async def one(address):
            with socket.socket() as sock:
                sock.setblocking(False)
                await self.loop.sock_connect(sock, address)
                await self.loop.sock_sendall(sock, b"not a handshake\r\n\r\n")
                try:
                    while await self.loop.sock_recv(sock, 1000):
                        pass
                except ConnectionResetError:
                    pass

        self.check(one, server_context())


class TheCounting(LoopTestCase):
    """The counting itself detects leaks."""

    def test_a_leak_is_detected(self):
        kept = []

        class Leaking(Leaks):
            def runTest(self):
                async def one(address):
                    transport, client = await self.echo(address)
                    transport.close()
                    await client.lost
                    kept.append(client)

                self.check(one)

        result = Leaking().run()
        self.assertEqual((len(result.failures), len(result.errors)), (1, 0), result.errors)
        self.assertIn("test_leaks.Client", result.failures[0][1])


if __name__ == "__main__":
    unittest.main()
