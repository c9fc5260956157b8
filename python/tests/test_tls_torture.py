"""TLS under torture: peers that disconnect, truncated records, garbage, missing close_notify."""

import asyncio
import pathlib
import random
import socket
import ssl
import unittest

from support import LoopTestCase

DEADLINE = 60

CERTIFICATE = pathlib.Path(__file__).with_name("certificate.pem")


def server_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def client_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(CERTIFICATE)
    return context


class Recorder(asyncio.Protocol):
    """Echoes, and records its callbacks."""

    def __init__(self, made):
        self.events = []
        self.received = b""
        self.lost = asyncio.get_running_loop().create_future()
        made.append(self)

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def data_received(self, data):
        self.received += data
        self.transport.write(data)

    def eof_received(self):
        self.events.append("eof")

    def connection_lost(self, exc):
        self.events.append("lost")
        self.lost.set_result(exc)


class Peer:
    """A TLS client made of two buffers and a socket, so that a test can see and corrupt every byte."""

    def __init__(self, loop, sock, context=None):
        self.loop, self.sock = loop, sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = context or client_context()
        self.session = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def flush(self):
        await self.loop.sock_sendall(self.sock, self.outgoing.read())

    async def run(self, operation, *arguments):
        while True:
            try:
                result = operation(*arguments)
            except ssl.SSLWantReadError:
                await self.flush()
                data = await self.loop.sock_recv(self.sock, 65536)
                if data:
                    self.incoming.write(data)
                else:
                    self.incoming.write_eof()
            else:
                await self.flush()
                return result

    async def handshake(self):
        await self.run(self.session.do_handshake)

    def records(self, data):
        """Return the encrypted records for data without sending them."""
        self.session.write(data)
        return self.outgoing.read()


class TlsTestCase(LoopTestCase):
    def setUp(self):
        super().setUp()
        self.made = []

    def run_main(self, main):
        return self.loop.run_until_complete(asyncio.wait_for(main, DEADLINE))

    async def serve(self, context=None, **options):
        """Start a server and return its address."""
        server = await self.loop.create_server(
            lambda: Recorder(self.made), "127.0.0.1", 0, ssl=context or server_context(), **options
        )
        self.addCleanup(server.close)
        return server.sockets[0].getsockname()

    async def connect(self, address):
        """Return a socket connected to it."""
        sock = socket.socket()
        self.addCleanup(sock.close)
        sock.setblocking(False)
        await self.loop.sock_connect(sock, address)
        return sock

    async def peer(self, address, context=None):
        """Return a peer that has finished the handshake."""
        peer = Peer(self.loop, await self.connect(address), context)
        await peer.handshake()
        # The server only knows the client after it has received a message.
        await peer.run(peer.session.write, b"hello")
        self.assertEqual(await peer.run(peer.session.read, 100), b"hello")
        return peer

    async def ended(self, sock):
        """Wait until the server ends the connection."""
        try:
            while await self.loop.sock_recv(sock, 65536):
                pass
        except ConnectionResetError:
            pass

    async def still_serving(self, address):
        """Check that a failed connection does not affect the next one."""
        peer = await self.peer(address)
        peer.sock.close()

    def reset(self, sock):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()

    def assertOnlyTls(self, *kinds):
        """Check that only TLS errors were reported, if any."""
        for context in self.errors:
            self.assertIsInstance(context.get("exception"), (OSError, ssl.SSLError), context)


class Handshakes(TlsTestCase):
    def test_peers_that_disconnect_at_every_point_of_a_handshake(self):
        async def main():
            address = await self.serve()
            for reset in (False, True):
                whole = await self.hello()
                for length in [0, 1, 3, 5, 6, 50, len(whole) - 1, len(whole)]:
                    sock = await self.connect(address)
                    await self.loop.sock_sendall(sock, whole[:length])
                    self.reset(sock) if reset else sock.close()
                await self.still_serving(address)
            # None of them became a connection.
            self.assertEqual(len(self.made_connections()), 2)
            self.assertOnlyTls()

        self.run_main(main())

    def made_connections(self):
        return [protocol for protocol in self.made if "made" in protocol.events]

    async def hello(self):
        """Return the first message of a client."""
        one, other = socket.socketpair()
        with one, other:
            peer = Peer(self.loop, one)
            try:
                peer.session.do_handshake()
            except ssl.SSLWantReadError:
                return peer.outgoing.read()

    def test_garbage_instead_of_a_handshake(self):
        async def main():
            address = await self.serve()
            dice = random.Random(2)
            for garbage in (
                b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                b"\x16\x03\x01\xff\xff" + bytes(70_000),
                b"\x15\x03\x01\x00\x02\x02\x28",
                b"\x00" * 100,
                *[dice.randbytes(dice.randrange(20, 5000)) for _ in range(20)],
            ):
                sock = await self.connect(address)
                try:
                    await self.loop.sock_sendall(sock, garbage)
                    # And the end: some garbage announces more.
                    sock.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                await self.ended(sock)
            await self.still_serving(address)
            self.assertEqual(len(self.made_connections()), 1)
            self.assertOnlyTls()

        self.run_main(main())

    def test_a_silent_peer_times_out(self):
        async def main():
            address = await self.serve(ssl_handshake_timeout=0.1)
            sock = await self.connect(address)
            await self.ended(sock)
            self.assertEqual(self.made_connections(), [])

        self.run_main(main())

    def test_a_server_that_disconnects_during_the_handshake_fails_the_connect(self):
        async def main():
            for reset in (False, True):
                listener = socket.create_server(("127.0.0.1", 0))
                listener.setblocking(False)

                async def vanish(listener=listener, reset=reset):
                    sock, _ = await self.loop.sock_accept(listener)
                    await self.loop.sock_recv(sock, 10)
                    self.reset(sock) if reset else sock.close()

                with listener:
                    vanishing = asyncio.ensure_future(vanish())
                    with self.assertRaises(OSError):
                        await self.loop.create_connection(
                            lambda: Recorder(self.made), *listener.getsockname(),
                            ssl=client_context(), server_hostname="localhost",
                        )
                    await vanishing
            self.assertEqual(self.made_connections(), [])
            self.assertOnlyTls()

        self.run_main(main())

    def test_a_wrong_server_name_is_refused(self):
        async def main():
            address = await self.serve()
            with self.assertRaises(ssl.SSLCertVerificationError):
                await self.loop.create_connection(
                    lambda: Recorder(self.made), *address, ssl=client_context(), server_hostname="elsewhere.example"
                )
            await self.still_serving(address)

        self.run_main(main())

    def test_a_connect_that_is_cancelled_during_the_handshake(self):
        async def main():
            with socket.create_server(("127.0.0.1", 0)) as listener:
                for _ in range(20):
                    task = asyncio.ensure_future(
                        self.loop.create_connection(
                            lambda: Recorder(self.made), *listener.getsockname(),
                            ssl=client_context(), server_hostname="localhost",
                        )
                    )
                    accepted, _ = await self.loop.run_in_executor(None, listener.accept)
                    with accepted:
                        # The client's first message has arrived; it waits for ours.
                        accepted.settimeout(DEADLINE)
                        await self.loop.run_in_executor(None, accepted.recv, 1)
                        task.cancel()
                        with self.assertRaises(asyncio.CancelledError):
                            await task
            self.assertEqual(self.made_connections(), [])

        self.run_main(main())
        self.assertEqual(self.errors, [])


class Records(TlsTestCase):
    def test_records_in_pieces_of_any_size(self):
        async def main():
            address = await self.serve()
            peer = await self.peer(address)
            message = random.Random(3).randbytes(40_000)
            sent = peer.records(message)
            for size, end in ((1, 200), (7, 2000), (5000, len(sent))):
                start = {1: 0, 7: 200, 5000: 2000}[size]
                for index in range(start, min(end, len(sent)), size):
                    await self.loop.sock_sendall(peer.sock, sent[index : min(index + size, end)])
                    await asyncio.sleep(0)
            received = b""
            while len(received) < len(message):
                received += await peer.run(peer.session.read, 65536)
            self.assertEqual(received, message)
            peer.sock.close()

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_a_peer_that_disconnects_during_a_record(self):
        async def main():
            address = await self.serve()
            for reset in (False, True):
                peer = await self.peer(address)
                record = peer.records(b"never to arrive" * 100)
                await self.loop.sock_sendall(peer.sock, record[:-1])
                self.reset(peer.sock) if reset else peer.sock.close()
                protocol = self.made[-1]
                await protocol.lost
                self.assertEqual(protocol.received, b"hello", "no part of an incomplete record")
            await self.still_serving(address)
            self.assertOnlyTls()

        self.run_main(main())

    def test_a_corrupted_record_ends_the_connection_before_any_of_it_is_delivered(self):
        async def main():
            address = await self.serve()
            for place in (0, 1, 3, 5, 20, -1):
                peer = await self.peer(address)
                record = bytearray(peer.records(b"spoiled" * 100))
                record[place] ^= 0x55
                try:
                    await self.loop.sock_sendall(peer.sock, bytes(record))
                    peer.sock.shutdown(socket.SHUT_WR)
                except OSError:
                    pass
                protocol = self.made[-1]
                await protocol.lost
                self.assertEqual((protocol.received, protocol.events[-1]), (b"hello", "lost"), place)
            await self.still_serving(address)
            self.assertOnlyTls()

        self.run_main(main())

    def test_a_replayed_record_is_refused(self):
        async def main():
            address = await self.serve()
            peer = await self.peer(address)
            record = peer.records(b"once")
            await self.loop.sock_sendall(peer.sock, record + record)
            await self.made[-1].lost
            # As in asyncio, data received right before an error may be lost with it.
            self.assertIn(self.made[-1].received, (b"hello", b"helloonce"))
            self.assertOnlyTls()

        self.run_main(main())

    def test_renegotiation_is_refused(self):
        """In TLS 1.2, where it still exists; the request is an unencrypted first message in the middle of a connection."""

        async def main():
            context = server_context()
            context.options |= ssl.OP_NO_RENEGOTIATION
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            address = await self.serve(context)
            peer = await self.peer(address)
            self.assertEqual(peer.session.version(), "TLSv1.2")
            self.assertFalse(hasattr(peer.session, "renegotiate"))
            another = Peer(self.loop, peer.sock)
            try:
                another.session.do_handshake()
            except ssl.SSLWantReadError:
                pass
            await self.loop.sock_sendall(peer.sock, another.outgoing.read())
            await self.made[-1].lost
            self.assertEqual(self.made[-1].received, b"hello")
            await self.still_serving(address)

        self.run_main(main())

    def test_the_peer_may_update_keys(self):
        """Many messages on one connection: other TLS 1.3 messages (tickets, key updates) must not interfere."""

        async def main():
            peer = await self.peer(await self.serve())
            for number in range(300):
                await peer.run(peer.session.write, b"%d" % number)
                self.assertEqual(await peer.run(peer.session.read, 100), b"%d" % number)
            peer.sock.close()
            await self.made[-1].lost

        self.run_main(main())


class Endings(TlsTestCase):
    def test_an_end_with_close_notify(self):
        async def main():
            peer = await self.peer(await self.serve())
            await peer.run(peer.session.unwrap)
            self.assertIsNone(await self.made[-1].lost)
            self.assertEqual(self.made[-1].events, ["made", "eof", "lost"])

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_an_end_without_close_notify(self):
        async def main():
            peer = await self.peer(await self.serve())
            peer.sock.close()
            await self.made[-1].lost
            self.assertEqual(self.made[-1].events[-1], "lost")
            self.assertOnlyTls()

        self.run_main(main())

    def test_a_peer_that_never_answers_our_close_notify(self):
        async def main():
            address = await self.serve(ssl_shutdown_timeout=0.1)
            peer = await self.peer(address)
            # It does not even read.
            self.made[-1].transport.close()
            await self.made[-1].lost
            peer.sock.close()
            self.assertOnlyTls()

        self.run_main(main())

    def test_closing_sends_everything_and_then_close_notify(self):
        async def main():
            peer = await self.peer(await self.serve())
            message = bytes(range(256)) * 4000
            self.made[-1].transport.write(message)
            self.made[-1].transport.close()
            received = b""
            while chunk := await peer.run(peer.session.read, 65536):
                received += chunk
            self.assertEqual(received, message, "all of it, then close_notify")
            peer.sock.close()
            await self.made[-1].lost

        self.run_main(main())

    def test_aborting_a_peer_that_does_not_read(self):
        async def main():
            peer = await self.peer(await self.serve())
            transport = self.made[-1].transport
            transport.write(bytes(5_000_000))
            transport.abort()
            await self.made[-1].lost
            transport.write(b"let pass")
            peer.sock.close()

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_many_peers_disconnect_at_random(self):
        async def one(address, number):
            dice = random.Random(number)
            sock = await self.connect(address)
            peer = Peer(self.loop, sock)
            try:
                if dice.random() < 0.8:
                    await peer.handshake()
                    for _ in range(dice.randrange(4)):
                        records = peer.records(dice.randbytes(dice.randrange(1, 50_000)))
                        await self.loop.sock_sendall(sock, records[: dice.randrange(len(records) + 1)])
            except (OSError, ssl.SSLError):
                pass
            self.reset(sock) if dice.random() < 0.5 else sock.close()

        async def main():
            address = await self.serve()
            for start in range(0, 200, 20):
                await asyncio.gather(*[one(address, start + number) for number in range(20)])
            await self.still_serving(address)
            for protocol in self.made:
                if "made" in protocol.events:
                    await protocol.lost
                    self.assertEqual(protocol.events.count("lost"), 1)
            self.assertOnlyTls()

        self.run_main(main())


if __name__ == "__main__":
    unittest.main()
