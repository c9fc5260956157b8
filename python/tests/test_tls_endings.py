"""Start and end of TLS connections, where bytes get lost and programs hang.

Tests that pass on asyncio's own loop run on both; where asyncio hangs or loses data, they run on pelton's loop only.
"""

import asyncio
import socket
import ssl
import unittest

from both_loops import BothLoops, Buffered, Recorder, on_both_loops, on_pelton, until
from test_tls_torture import Peer, server_context


class TlsEnds(BothLoops):
    """A server with TLS, and a client that lets a test see every byte."""

    def setUp(self):
        super().setUp()
        self.events = []

    async def serve(self, factory=None, **options):
        made = []

        def make():
            made.append((factory or (lambda: Recorder(self.events)))())
            return made[-1]

        server = await self.loop.create_server(make, "127.0.0.1", 0, ssl=server_context(), **options)
        self.addCleanup(server.close)
        sock = socket.socket()
        self.addCleanup(sock.close)
        sock.setblocking(False)
        await self.loop.sock_connect(sock, server.sockets[0].getsockname())
        peer = Peer(self.loop, sock)
        return peer, made

    async def connected(self, factory=None, **options):
        peer, made = await self.serve(factory, **options)
        await peer.handshake()
        await until(lambda: self.events == ["made"])
        return peer, made[0].transport

    def close_notify(self, peer):
        """Return the client's close_notify record."""
        try:
            peer.session.unwrap()
        except ssl.SSLWantReadError:
            pass
        return peer.outgoing.read()

    async def lost(self):
        await until(lambda: self.events and self.events[-1][0] == "lost")
        return self.events[-1][1]

    async def read_all(self, peer):
        """Return everything the server sends until its close_notify."""
        received = bytearray()
        while True:
            try:
                chunk = await peer.run(peer.session.read, 1 << 16)
            except ssl.SSLZeroReturnError:
                chunk = b""
            if not chunk:
                return bytes(received)
            received += chunk


@on_both_loops
class TlsEndings(TlsEnds):
    def test_data_arrives_together_with_the_end(self):
        async def main():
            peer, _ = await self.connected()
            await self.loop.sock_sendall(peer.sock, peer.records(b"last words") + self.close_notify(peer))
            self.assertIsNone(await self.lost())
            self.assertEqual(self.events, ["made", b"last words", "eof", ("lost", None)])

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_data_arrives_with_the_end_of_tls_and_of_the_connection(self):
        async def main():
            peer, _ = await self.connected()
            await self.loop.sock_sendall(peer.sock, peer.records(b"last words") + self.close_notify(peer))
            peer.sock.shutdown(socket.SHUT_WR)
            self.assertIsNone(await self.lost())
            self.assertEqual(self.events, ["made", b"last words", "eof", ("lost", None)])

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_data_after_the_end_is_ignored(self):
        async def main():
            peer, _ = await self.connected()
            await self.loop.sock_sendall(peer.sock, self.close_notify(peer) + b"in clear")
            self.assertIsNone(await self.lost())
            self.assertEqual(self.events, ["made", "eof", ("lost", None)])

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_the_end_arrives_while_reading_is_paused(self):
        for shut_down in False, True:

            async def main():
                self.events.clear()
                peer, transport = await self.connected()
                transport.pause_reading()
                await self.loop.sock_sendall(peer.sock, peer.records(b"last words") + self.close_notify(peer))
                if shut_down:
                    peer.sock.shutdown(socket.SHUT_WR)
                await asyncio.sleep(0.02)
                self.assertEqual(self.events, ["made"])
                transport.resume_reading()
                self.assertIsNone(await self.lost())
                self.assertEqual(self.events, ["made", b"last words", "eof", ("lost", None)])

            with self.subTest(shut_down=shut_down):
                self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_the_peer_ends_while_much_is_queued(self):
        message = bytes(range(256)) * (20 << 12)

        async def main():
            peer, transport = await self.connected()
            transport.write(message)
            await self.loop.sock_sendall(peer.sock, self.close_notify(peer))
            await until(lambda: "eof" in self.events)
            self.assertEqual(await self.read_all(peer), message)
            self.assertIsNone(await self.lost())

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_closing_while_much_is_queued_and_reading_is_paused(self):
        message = bytes(range(256)) * (20 << 12)

        async def main():
            peer, transport = await self.connected()
            transport.pause_reading()
            transport.write(message)
            transport.close()
            self.assertEqual(await self.read_all(peer), message)
            await self.loop.sock_sendall(peer.sock, self.close_notify(peer))
            self.assertIsNone(await self.lost())

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_a_close_notify_that_is_never_answered(self):
        for write, pause in (b"", False), (b"", True), (bytes(20 << 20), False), (bytes(20 << 20), True):

            async def main():
                self.events.clear()
                peer, transport = await self.connected(ssl_shutdown_timeout=0.1)
                if pause:
                    transport.pause_reading()
                transport.write(write)
                transport.close()
                self.assertIsInstance(await self.lost(), (TimeoutError, asyncio.TimeoutError))
                peer.sock.close()

            with self.subTest(write=len(write), pause=pause):
                self.run_main(main())

    def test_the_first_data_arrives_with_the_handshake(self):
        async def main():
            peer, _ = await self.serve()
            with self.assertRaises(ssl.SSLWantReadError):
                peer.session.do_handshake()
            await peer.flush()
            while True:
                peer.incoming.write(await self.loop.sock_recv(peer.sock, 1 << 16))
                try:
                    peer.session.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await peer.flush()
            # The last message of the handshake has not been sent yet.
            self.assertTrue(peer.outgoing.pending)
            peer.session.write(b"first")
            await peer.flush()
            await until(lambda: len(self.events) > 1)
            self.assertEqual(self.events, ["made", b"first"])

        self.run_main(main())

    def test_the_first_data_arrives_with_the_handshake_of_an_upgrade(self):
        for kind in Recorder, Buffered:

            async def main():
                self.events.clear()
                plain = []
                one, other = self.pair()
                transport, protocol = await self.loop.connect_accepted_socket(lambda: Recorder(plain), other)
                upgraded = kind(self.events)
                upgrade = self.loop.create_task(
                    self.loop.start_tls(transport, upgraded, server_context(), server_side=True)
                )
                peer = Peer(self.loop, one)
                with self.assertRaises(ssl.SSLWantReadError):
                    peer.session.do_handshake()
                await peer.flush()
                while True:
                    peer.incoming.write(await self.loop.sock_recv(one, 1 << 16))
                    try:
                        peer.session.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        await peer.flush()
                peer.session.write(b"first")
                await peer.flush()
                tls = await upgrade
                await until(lambda: self.events)
                self.assertEqual(self.events, [b"first" if kind is Recorder else ("buffered", b"first")])
                self.assertEqual(plain, ["made"])
                tls.abort()
                await until(lambda: len(self.events) > 1)

            with self.subTest(kind.__name__):
                self.run_main(main())

    def test_a_protocol_set_in_connection_made_gets_the_first_bytes(self):
        async def main():
            class Switching(Recorder):
                def connection_made(self, transport):
                    super().connection_made(transport)
                    transport.set_protocol(Buffered(self.events))

            peer, made = await self.serve(lambda: Switching(self.events))
            await peer.handshake()
            await until(lambda: self.events)
            await self.loop.sock_sendall(peer.sock, peer.records(b"one") + peer.records(b"two"))
            await until(lambda: len(self.events) > 1)
            self.assertEqual(self.events, ["made", ("buffered", b"onetwo")])
            made[0].transport.set_protocol(Recorder(self.events))
            await self.loop.sock_sendall(peer.sock, peer.records(b"three"))
            await until(lambda: len(self.events) > 2)
            self.assertEqual(self.events[2:], [b"three"])
            made[0].transport.abort()

        self.run_main(main())

    def test_changing_between_kinds_of_protocols_with_every_message(self):
        events = self.events

        async def main():
            class Plain(Recorder):
                def data_received(self, data):
                    super().data_received(data)
                    change(Buffered)

            class WithBuffer(Buffered):
                def buffer_updated(self, count):
                    super().buffer_updated(count)
                    change(Recorder)

            def change(kind):
                protocol = {Buffered: WithBuffer, Recorder: Plain}[kind](events)
                made[0].transport.set_protocol(protocol)

            peer, made = await self.serve(lambda: Plain(events))
            await peer.handshake()
            await until(lambda: events)
            sent = b""
            # Buffers of 100 bytes, and records that are larger.
            for size in [10, 350, 5000, 100, 99, 20_000] * 3:
                message = bytes(number % 251 for number in range(size))
                sent += message
                await self.loop.sock_sendall(peer.sock, peer.records(message))
                got = lambda: b"".join(event if type(event) is bytes else event[1] for event in events[1:])
                await until(lambda: len(got()) >= len(sent))
            self.assertEqual(got(), sent)
            made[0].transport.abort()

        self.run_main(main())
        self.assertEqual(self.errors, [])


@on_pelton
class TlsEndingsWhereAsyncioHangs(TlsEnds):
    def test_closing_after_the_peer_ended_while_reading_was_paused(self):
        for notice in True, False:

            async def main():
                self.events.clear()
                peer, transport = await self.connected()
                transport.pause_reading()
                await self.loop.sock_sendall(peer.sock, peer.records(b"unread"))
                if notice:
                    await self.loop.sock_sendall(peer.sock, self.close_notify(peer))
                peer.sock.shutdown(socket.SHUT_WR)
                await asyncio.sleep(0.02)
                transport.close()
                await self.lost()
                self.assertEqual(self.events[0], "made")
                self.assertNotIn(b"unread", self.events)

            with self.subTest(notice=notice):
                self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_closing_with_more_data_received_than_is_read_ahead(self):
        async def main():
            peer, transport = await self.connected()
            transport.pause_reading()
            flood = peer.records(bytes(1 << 20))
            sending = self.loop.create_task(self.loop.sock_sendall(peer.sock, flood))
            await asyncio.sleep(0.05)
            transport.close()
            # The end can only be answered after all of it was read.
            self.assertEqual(await self.read_all(peer), b"")
            await sending
            await self.loop.sock_sendall(peer.sock, self.close_notify(peer))
            self.assertIsNone(await self.lost())

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_closing_while_the_peer_keeps_sending(self):
        async def main():
            peer, transport = await self.connected()
            transport.close()
            for _ in range(10):
                await self.loop.sock_sendall(peer.sock, peer.records(bytes(1000)))
                await asyncio.sleep(0.001)
            self.assertEqual(await self.read_all(peer), b"")
            await self.loop.sock_sendall(peer.sock, self.close_notify(peer))
            self.assertIsNone(await self.lost())

        self.run_main(main())
        self.assertEqual(self.errors, [])


if __name__ == "__main__":
    unittest.main()
