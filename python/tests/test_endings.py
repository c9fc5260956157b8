"""Sockets, transports and TLS at their beginnings and ends, where bytes get lost and programs hang.

What asyncio's own loop does right is tested on both; where it hangs or loses data, on pelton's alone.
"""

import asyncio
import contextvars
import errno
import socket
import ssl
import unittest

from both_loops import BothLoops, FirstDatagram, Recorder, on_both_loops, on_pelton
from test_tls_torture import Peer, client_context, server_context


async def until(condition):
    """Waits for what is about to happen; whoever calls has a time limit."""
    while not condition():
        await asyncio.sleep(0.001)


class Buffered(asyncio.BufferedProtocol):
    """Records what is received into its buffer."""

    def __init__(self, events, size=100):
        self.events = events
        self.buffer = bytearray(size)

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def get_buffer(self, _hint):
        # A view, since asyncio fills slices of it.
        return memoryview(self.buffer)

    def buffer_updated(self, count):
        self.events.append(("buffered", bytes(self.buffer[:count])))

    def eof_received(self):
        self.events.append("eof")

    def connection_lost(self, exc):
        self.events.append(("lost", exc))


@on_pelton
class ClosedMeanwhile:
    """A socket that is closed while somebody waits for it."""

    def operations(self):
        def pair():
            return self.pair()[0]

        def datagrams():
            return self.bound(socket.SOCK_DGRAM)

        return [
            ("sock_recv", pair, lambda sock: self.loop.sock_recv(sock, 10)),
            ("sock_recv_into", pair, lambda sock: self.loop.sock_recv_into(sock, bytearray(10))),
            ("sock_recvfrom", datagrams, lambda sock: self.loop.sock_recvfrom(sock, 10)),
            ("sock_recvfrom_into", datagrams, lambda sock: self.loop.sock_recvfrom_into(sock, bytearray(10))),
            ("sock_accept", self.bound, lambda sock: self.loop.sock_accept(sock)),
        ]

    async def waiting(self, operation):
        task = self.loop.create_task(operation)
        await asyncio.sleep(0)
        self.assertFalse(task.done())
        return task

    async def assertBadDescriptor(self, task):
        with self.assertRaises(OSError) as raised:
            await task
        self.assertEqual(raised.exception.errno, errno.EBADF)

    def test_it_is_an_error(self):
        async def main():
            for name, make, operation in self.operations():
                with self.subTest(name):
                    sock = make()
                    task = await self.waiting(operation(sock))
                    sock.close()
                    await self.assertBadDescriptor(task)

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_it_is_an_error_after_messages_were_received(self):
        async def main():
            one, other = self.pair()
            for _ in range(2):
                task = await self.waiting(self.loop.sock_recv(one, 10))
                other.send(b"x")
                self.assertEqual(await task, b"x")
            task = await self.waiting(self.loop.sock_recv(one, 10))
            one.close()
            await self.assertBadDescriptor(task)

        self.run_main(main())

    def test_it_is_an_error_if_its_number_is_another_sockets_by_then(self):
        async def main():
            for watch in (
                lambda sock: self.loop.create_task(self.loop.sock_recv(sock, 10)),
                lambda sock: self.loop.add_reader(sock, int),
                lambda sock: self.loop.add_reader(sock.fileno(), int),
            ):
                one, _ = self.pair()
                task = await self.waiting(self.loop.sock_recv(one, 10))
                number = one.fileno()
                one.close()
                while True:
                    pair = self.pair()
                    again = [sock for sock in pair if sock.fileno() == number]
                    if again:
                        break
                watched = watch(again[0])
                await self.assertBadDescriptor(task)
                # Which the new one has nothing to do with.
                if watched is None:
                    self.assertTrue(self.loop.remove_reader(again[0]))
                else:
                    pair[1 - pair.index(again[0])].send(b"data")
                    self.assertEqual(await watched, b"data")

        self.run_main(main())

    def test_all_of_many_are_noticed(self):
        async def main():
            socks = [self.pair()[0] for _ in range(300)]
            tasks = [await self.waiting(self.loop.sock_recv(sock, 10)) for sock in socks]
            for sock in socks[::3]:
                sock.close()
            for task in tasks[::3]:
                await self.assertBadDescriptor(task)
            for sock, task in zip(socks, tasks):
                self.assertEqual(task.done(), sock.fileno() < 0)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run_main(main())

    def test_the_loop_sleeps_while_many_wait(self):
        async def main():
            tasks = [await self.waiting(self.loop.sock_recv(self.pair()[0], 10)) for _ in range(300)]
            await asyncio.sleep(0.3)
            before = self.loop.stats()["turns"]
            await asyncio.sleep(0.5)
            self.assertLess(self.loop.stats()["turns"] - before, 20)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run_main(main())


class TlsEnds(BothLoops):
    """A server with TLS, and a client of which a test sees every byte."""

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
        """What says that there is no more to come."""
        try:
            peer.session.unwrap()
        except ssl.SSLWantReadError:
            pass
        return peer.outgoing.read()

    async def lost(self):
        await until(lambda: self.events and self.events[-1][0] == "lost")
        return self.events[-1][1]

    async def read_all(self, peer):
        """What the server sends until it says that there is no more."""
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
    def test_data_comes_with_the_end(self):
        async def main():
            peer, _ = await self.connected()
            await self.loop.sock_sendall(peer.sock, peer.records(b"last words") + self.close_notify(peer))
            self.assertIsNone(await self.lost())
            self.assertEqual(self.events, ["made", b"last words", "eof", ("lost", None)])

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_data_comes_with_the_end_and_the_connection_ends_too(self):
        async def main():
            peer, _ = await self.connected()
            await self.loop.sock_sendall(peer.sock, peer.records(b"last words") + self.close_notify(peer))
            peer.sock.shutdown(socket.SHUT_WR)
            self.assertIsNone(await self.lost())
            self.assertEqual(self.events, ["made", b"last words", "eof", ("lost", None)])

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_what_comes_after_the_end_is_ignored(self):
        async def main():
            peer, _ = await self.connected()
            await self.loop.sock_sendall(peer.sock, self.close_notify(peer) + b"in clear")
            self.assertIsNone(await self.lost())
            self.assertEqual(self.events, ["made", "eof", ("lost", None)])

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_the_end_comes_while_reading_is_paused(self):
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

    def test_the_other_side_ends_while_much_waits_to_be_sent(self):
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

    def test_closing_while_much_waits_to_be_sent_and_reading_is_paused(self):
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

    def test_an_end_that_is_never_answered(self):
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

    def test_the_first_data_comes_with_the_handshake(self):
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
            # What ends the handshake has not been sent yet.
            self.assertTrue(peer.outgoing.pending)
            peer.session.write(b"first")
            await peer.flush()
            await until(lambda: len(self.events) > 1)
            self.assertEqual(self.events, ["made", b"first"])

        self.run_main(main())

    def test_the_first_data_comes_with_the_handshake_of_an_upgrade(self):
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

    def test_a_protocol_that_is_set_late_gets_its_first_bytes(self):
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
            # Buffers of a hundred bytes, and records that are larger.
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
    def test_closing_when_the_other_side_has_ended_while_reading_is_paused(self):
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

    def test_closing_when_more_has_come_in_than_is_read_ahead(self):
        async def main():
            peer, transport = await self.connected()
            transport.pause_reading()
            flood = peer.records(bytes(1 << 20))
            sending = self.loop.create_task(self.loop.sock_sendall(peer.sock, flood))
            await asyncio.sleep(0.05)
            transport.close()
            # The end can be answered only when all of it was taken.
            self.assertEqual(await self.read_all(peer), b"")
            await sending
            await self.loop.sock_sendall(peer.sock, self.close_notify(peer))
            self.assertIsNone(await self.lost())

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_closing_while_the_other_side_goes_on_sending(self):
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


@on_both_loops
class Plain:
    def test_a_protocol_that_is_set_late_gets_its_first_bytes(self):
        async def main():
            events = []

            class Switching(Recorder):
                def connection_made(self, transport):
                    super().connection_made(transport)
                    transport.set_protocol(Buffered(self.events))

            one, other = self.pair()
            other.send(b"first")
            transport, _ = await self.loop.create_connection(lambda: Switching(events), sock=one)
            await until(lambda: len(events) > 1)
            transport.set_protocol(Recorder(events))
            other.send(b"second")
            await until(lambda: len(events) > 2)
            self.assertEqual(events, ["made", ("buffered", b"first"), b"second"])
            transport.abort()

        self.run_main(main())

    def test_the_socket_is_known_after_an_abort(self):
        async def main():
            for connected in True, False:
                events = []
                if connected:
                    one, other = self.pair()
                    transport, _ = await self.loop.create_connection(lambda: Recorder(events), sock=one)
                else:
                    listener = self.bound()
                    transport, _ = await self.loop.create_connection(
                        lambda: Recorder(events), *listener.getsockname()
                    )
                    other, _ = listener.accept()
                transport.abort()
                self.assertGreaterEqual(transport.get_extra_info("socket").fileno(), 0)
                await until(lambda: len(events) > 1)
                self.assertEqual(events, ["made", ("lost", None)])
                self.assertEqual(transport.get_extra_info("socket").fileno(), -1)
                self.assertEqual(transport.get_extra_info("socket").type, socket.SOCK_STREAM)
                other.close()

        self.run_main(main())

    def test_protocols_run_in_the_context_that_they_were_asked_for_in(self):
        variable = contextvars.ContextVar("variable")

        class Telling(asyncio.Protocol):
            def __init__(self, name):
                self.name = name
                seen.append((name, "factory", variable.get()))

            def connection_made(self, transport):
                self.transport = transport
                seen.append((self.name, "made", variable.get()))

            def data_received(self, data):
                seen.append((self.name, data, variable.get()))

            def eof_received(self):
                seen.append((self.name, "eof", variable.get()))

            def connection_lost(self, exc):
                seen.append((self.name, "lost", variable.get()))

        seen = []

        async def main():
            variable.set("server")
            server = await self.loop.create_server(lambda: Telling("server"), "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            variable.set("client")
            transport, client = await self.loop.create_connection(lambda: Telling("client"), *address)
            variable.set("later")
            transport.write(b"data")
            transport.write_eof()
            await until(lambda: len([name for name, *_ in seen if name == "server"]) == 5)
            await until(lambda: ("client", "lost", "client") in seen)
            server.close()
            self.assertEqual({(name, value) for name, _, value in seen}, {("server", "server"), ("client", "client")})

        self.run_main(main())

    def test_what_a_factory_sets_is_its_connections_alone(self):
        variable = contextvars.ContextVar("variable", default=0)
        seen = []

        class Telling(asyncio.Protocol):
            def __init__(self):
                seen.append(variable.get())
                variable.set(variable.get() + 1)

            def connection_made(self, transport):
                seen.append(variable.get())
                transport.abort()

        async def main():
            server = await self.loop.create_server(Telling, "127.0.0.1", 0)
            for count in range(1, 4):
                with socket.socket() as client:
                    client.setblocking(False)
                    client.connect_ex(server.sockets[0].getsockname())
                    await until(lambda: len(seen) == 2 * count)
            server.close()

        self.run_main(main())
        self.assertEqual(seen, [0, 1] * 3)


@on_pelton
class Datagrams:
    def test_over_a_pair_of_unix_sockets(self):
        async def main():
            one, other = self.pair(socket.SOCK_DGRAM)
            transport, protocol = await self.loop.create_datagram_endpoint(FirstDatagram, sock=one)
            other.send(b"to one")
            self.assertEqual(await protocol.received, b"to one")
            sent = [b"to other %d" % number for number in range(2000)]
            for message in sent:
                transport.sendto(message)
            self.assertGreater(transport.get_write_buffer_size(), 0)
            received = [await self.loop.sock_recv(other, 100) for _ in sent]
            self.assertEqual(received, sent)
            self.assertFalse(transport.is_closing())
            transport.abort()

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_sending_after_closing_is_let_pass(self):
        async def main():
            address = self.bound(socket.SOCK_DGRAM).getsockname()
            for remote in None, address:
                for end in "close", "abort":
                    transport, _ = await self.loop.create_datagram_endpoint(
                        FirstDatagram, local_addr=("127.0.0.1", 0), remote_addr=remote
                    )
                    getattr(transport, end)()
                    transport.sendto(b"let pass", None if remote else address)
                    await asyncio.sleep(0.01)
                    for _ in range(3):
                        transport.sendto(b"let pass", None if remote else address)
                    with self.assertRaises(TypeError):
                        transport.sendto("text", None if remote else address)
                    if remote:
                        with self.assertRaises(ValueError):
                            transport.sendto(b"to another", ("127.0.0.1", 1))

        self.run_main(main())
        self.assertEqual(self.errors, [])


if __name__ == "__main__":
    unittest.main()
