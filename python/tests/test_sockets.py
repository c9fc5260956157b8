"""Descriptors, sockets and stream transports."""

import asyncio
import gc
import os
import resource
import socket
import struct
import tempfile
import time
import unittest
import weakref

import pelton
from test_loop import DEADLINE, LoopTestCase


class SocketTestCase(LoopTestCase):
    def pair(self):
        one, other = socket.socketpair()
        for sock in (one, other):
            sock.setblocking(False)
            self.addCleanup(sock.close)
        return one, other

    def pair_with(self, number):
        """A pair of which one has this number, which is free; lower ones may be, too. That one comes first."""
        while True:
            pair = self.pair()
            if number in [sock.fileno() for sock in pair]:
                return sorted(pair, key=lambda sock: sock.fileno() != number)

    async def soon(self, condition):
        """Waits for a condition that something is about to bring about."""
        end = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), end, "nothing happened")
            await asyncio.sleep(0)


class Descriptors(SocketTestCase):
    def test_readers_and_writers_by_number_or_object(self):
        one, other = self.pair()
        called = []
        self.loop.add_reader(one, called.append, "reader")
        self.loop.add_writer(one.fileno(), called.append, "writer")
        self.turn()
        self.assertEqual(called, ["writer"])
        other.send(b"x")
        self.turn()
        self.assertEqual(sorted(called), ["reader", "writer", "writer"])
        self.assertTrue(self.loop.remove_writer(one))
        self.assertFalse(self.loop.remove_writer(one))
        self.assertTrue(self.loop.remove_reader(one.fileno()))
        self.turn()
        self.assertEqual(len(called), 3)

    def test_callbacks_cost_no_poll_each_unless_something_is_watched(self):
        def polls_per_turn():
            before = self.loop.stats()
            for _ in range(2000):
                self.loop.call_soon(int)
                self.loop._run_once()
            after = self.loop.stats()
            return (after["polls"] - before["polls"]) / (after["turns"] - before["turns"])

        one, _ = self.pair()
        self.assertLess(polls_per_turn(), 0.5)
        self.loop.add_reader(one, int)
        self.assertEqual(polls_per_turn(), 1)
        self.loop.remove_reader(one)
        self.assertLess(polls_per_turn(), 0.5)

    def test_arguments_by_name(self):
        one, _ = self.pair()
        called = []
        self.loop.add_writer(fd=one, callback=lambda: called.append(1))
        self.turn()
        self.assertEqual(called, [1])
        self.assertTrue(self.loop.remove_writer(fd=one))
        self.assertFalse(self.loop.remove_reader(fd=one))
        self.assertRaisesRegex(TypeError, "remove_reader.*'fd'", self.loop.remove_reader)
        self.assertRaisesRegex(TypeError, "remove_reader.*1.*2", self.loop.remove_reader, one, one)
        self.assertRaisesRegex(TypeError, "remove_reader.*'fdd'", self.loop.remove_reader, fdd=one)
        self.assertRaisesRegex(TypeError, "add_reader.*'callback'", self.loop.add_reader, one)
        self.assertRaisesRegex(TypeError, "add_reader.*'context'", self.loop.add_reader, one, print, context=one)

    def test_a_second_reader_takes_the_place_of_the_first(self):
        one, other = self.pair()
        called = []
        self.loop.add_reader(one, called.append, "first")
        self.loop.add_reader(one, called.append, "second")
        other.send(b"x")
        self.turn()
        self.assertEqual(called, ["second"])
        self.loop.remove_reader(one)

    def test_what_cannot_be_watched_is_refused_with_the_systems_error(self):
        if self.loop.stats()["engine"] == "epoll":
            with open(__file__) as file:
                self.assertRaises(PermissionError, self.loop.add_reader, file, print)
        one, _ = self.pair()
        number = os.dup(one.fileno())
        os.close(number)
        with self.assertRaises(OSError) as caught:
            self.loop.add_reader(number, print)
        self.assertEqual(caught.exception.errno, 9)
        self.assertRaises(OSError, self.loop.add_reader, 2**31 - 1, print)
        self.assertRaises(ValueError, self.loop.add_reader, 2**31, print)
        self.assertFalse(self.loop.remove_reader(2**31 - 1))
        self.assertRaises(ValueError, self.loop.add_reader, -1, print)
        self.assertRaises(ValueError, self.loop.add_reader, "no file", print)
        self.assertFalse(self.loop.remove_reader(number))

    def test_a_number_that_was_closed_and_is_another_file_now_can_be_watched(self):
        one, other = self.pair()
        number = one.fileno()
        self.loop.add_reader(number, print)
        one.close()
        third, fourth = self.pair()
        if third.fileno() != number:
            self.assertEqual(fourth.fileno(), number)
            third, fourth = fourth, third
        called = []
        self.loop.add_writer(number, called.append, 1)
        self.turn()
        self.assertEqual(called, [1])
        self.loop.remove_writer(number)
        self.loop.remove_reader(number)

    def test_a_socket_that_was_closed_first_can_still_be_taken_away(self):
        one, other = self.pair()
        self.loop.add_reader(one, self.fail)
        self.loop.add_writer(other, self.fail)
        one.close()
        other.close()
        self.assertTrue(self.loop.remove_reader(one))
        self.assertTrue(self.loop.remove_writer(other))
        self.assertRaisesRegex(ValueError, "Invalid file descriptor: -1", self.loop.remove_reader, one)

    def test_a_closed_socket_has_no_say_in_the_file_that_has_its_number_now(self):
        one, _ = self.pair()
        self.loop.add_reader(one, self.fail)
        number = one.fileno()
        one.close()
        again, _ = self.pair_with(number)
        self.loop.add_reader(number, self.fail)
        self.assertRaisesRegex(ValueError, "Invalid file descriptor: -1", self.loop.remove_reader, one)
        self.assertTrue(self.loop.remove_reader(again))

    def test_the_selector_tells_what_is_watched(self):
        one, _ = self.pair()
        selector = self.loop._selector
        self.assertRaises(KeyError, selector.get_key, one)
        self.loop.add_reader(one, print)
        self.assertEqual(selector.get_key(one).events, 1)
        self.assertIn(one.fileno(), selector.get_map())
        self.assertRaises(NotImplementedError, selector.select, 0)
        self.loop.remove_reader(one)


class RawSockets(SocketTestCase):
    def test_receiving_waits_and_goes_on_being_watched(self):
        one, other = self.pair()

        async def main():
            before = self.loop.stats()["events"]
            for number in range(50):
                receiving = asyncio.ensure_future(self.loop.sock_recv(one, 100))
                await asyncio.sleep(0)
                await self.loop.sock_sendall(other, b"%d" % number)
                self.assertEqual(await receiving, b"%d" % number)
            return self.loop.stats()["events"] - before

        self.assertGreaterEqual(self.run_main(main()), 50)
        self.assertEqual(self.loop._watched(one.fileno()), (None, None))

    def test_nothing_is_lost_when_receiving_is_cancelled(self):
        one, other = self.pair()

        async def main():
            for _ in range(3):
                receiving = asyncio.ensure_future(self.loop.sock_recv(one, 100))
                await asyncio.sleep(0)
                receiving.cancel()
                other.send(b"kept")
                with self.assertRaises(asyncio.CancelledError):
                    await receiving
                self.assertEqual(self.loop._watched(one.fileno()), (None, None))
                self.assertEqual(await self.loop.sock_recv(one, 100), b"kept")
                # And once more while it is watched for the next one.
                receiving = asyncio.ensure_future(self.loop.sock_recv(one, 100))
                await asyncio.sleep(0)
                other.send(b"next")
                self.assertEqual(await receiving, b"next")

        self.run_main(main())

    def test_a_socket_that_took_the_number_of_a_closed_one_is_received_from(self):
        async def main():
            numbers = set()
            for _ in range(5):
                one, other = socket.socketpair()
                one.setblocking(False)
                numbers.add(one.fileno())
                for data in (b"first", b"second"):
                    receiving = asyncio.ensure_future(self.loop.sock_recv(one, 100))
                    await asyncio.sleep(0)
                    other.send(data)
                    self.assertEqual(await receiving, data)
                one.close()
                other.close()
            self.assertEqual(len(numbers), 1, "the numbers were not reused")

        self.run_main(main())

    def test_a_watched_socket_can_be_given_to_a_reader_or_a_transport(self):
        one, other = self.pair()

        async def main():
            receiving = asyncio.ensure_future(self.loop.sock_recv(one, 100))
            await asyncio.sleep(0)
            other.send(b"raw")
            self.assertEqual(await receiving, b"raw")
            called = asyncio.Event()
            self.loop.add_reader(one, called.set)
            other.send(b"reader")
            await called.wait()
            self.loop.remove_reader(one)
            self.assertEqual(one.recv(100), b"reader")
            reader, writer = await asyncio.open_connection(sock=one)
            other.send(b"stream")
            self.assertEqual(await reader.read(100), b"stream")
            with self.assertRaisesRegex(RuntimeError, "is used by transport"):
                await self.loop.sock_recv(one, 1)
            writer.close()

        self.run_main(main())

    def test_what_comes_in_while_nobody_receives_does_not_keep_the_loop_busy(self):
        one, other = self.pair()

        async def main():
            receiving = asyncio.ensure_future(self.loop.sock_recv(one, 100))
            await asyncio.sleep(0)
            other.send(b"x")
            await receiving
            other.send(b"y")
            before = self.loop.stats()["polls"]
            await asyncio.sleep(0.1)
            self.assertLess(self.loop.stats()["polls"] - before, 20)
            self.assertEqual(await self.loop.sock_recv(one, 100), b"y")

        self.run_main(main())

    def test_the_end_and_errors(self):
        one, other = self.pair()

        async def main():
            receiving = asyncio.ensure_future(self.loop.sock_recv(one, 100))
            await asyncio.sleep(0)
            other.close()
            self.assertEqual(await receiving, b"")
            self.assertEqual(await self.loop.sock_recv(one, 100), b"")
            with self.assertRaises(BrokenPipeError):
                await self.loop.sock_sendall(one, b"x")
            one.close()
            with self.assertRaises(OSError):
                await self.loop.sock_recv(one, 100)

        self.run_main(main())

    def test_sending_more_than_there_is_room_for(self):
        one, other = self.pair()
        data = os.urandom(3_000_000)

        async def main():
            for kind in (bytes, bytearray, memoryview):
                sending = asyncio.ensure_future(self.loop.sock_sendall(one, kind(data)))
                received = bytearray()
                while len(received) < len(data):
                    received += await self.loop.sock_recv(other, 1 << 20)
                await sending
                self.assertEqual(received, data)

        self.run_main(main())

    def test_a_blocking_socket_does_not_block_the_loop(self):
        one, other = self.pair()
        one.setblocking(True)

        async def main():
            receiving = asyncio.ensure_future(self.loop.sock_recv(one, 100))
            await asyncio.sleep(0.01)
            other.send(b"x")
            self.assertEqual(await receiving, b"x")

        self.run_main(main())


class Recorder(asyncio.Protocol):
    def __init__(self):
        self.events = []
        self.received = bytearray()
        self.lost = None

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def data_received(self, data):
        self.received += data

    def eof_received(self):
        self.events.append("eof")

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, error):
        self.events.append("lost")
        self.lost = error


class Buffered(asyncio.BufferedProtocol):
    def __init__(self):
        self.buffer = bytearray(1000)
        self.received = bytearray()
        self.over = False

    def get_buffer(self, _hint):
        return self.buffer

    def buffer_updated(self, count):
        self.received += self.buffer[:count]

    def connection_lost(self, _error):
        self.over = True


class Streams(SocketTestCase):
    async def connect(self, protocol=Recorder):
        one, other = self.pair()
        transport, protocol = await self.loop.create_connection(protocol, sock=one)
        return transport, protocol, other

    def test_a_transport_is_asyncios(self):
        async def main():
            transport, protocol, other = await self.connect()
            self.assertIsInstance(transport, asyncio.Transport)
            self.assertIsInstance(transport, pelton.StreamTransport)
            self.assertIs(transport.get_protocol(), protocol)
            self.assertEqual(transport.get_extra_info("socket").fileno(), transport._sock_fd)
            self.assertRegex(repr(transport), r"<StreamTransport fd=\d+ read=polling write=<idle, bufsize=0>>")
            transport.close()
            await asyncio.sleep(0)
            self.assertRegex(repr(transport), "closed")

        self.run_main(main())

    def test_the_first_write_goes_out_at_once(self):
        async def main():
            transport, _, other = await self.connect()
            transport.write(b"at ")
            transport.writelines([b"o", bytearray(b"nc"), memoryview(b"e")])
            self.assertEqual(other.recv(100), b"at once")
            transport.close()

        self.run_main(main())

    def test_arguments_of_transports_by_name(self):
        async def main():
            transport, _, other = await self.connect()
            transport.write(data=b"by ")
            transport.writelines(list_of_data=[b"na", b"me"])
            self.assertEqual(other.recv(100), b"by name")
            protocol = Recorder()
            transport.set_protocol(protocol=protocol)
            self.assertIs(transport.get_protocol(), protocol)
            self.assertRaisesRegex(TypeError, "write.*'data'", transport.write)
            self.assertRaisesRegex(TypeError, "write.*1.*2", transport.write, b"1", b"2")
            self.assertRaisesRegex(TypeError, "write.*'dat'", transport.write, dat=b"1")
            self.assertRaisesRegex(TypeError, "write.*'data'", transport.write, b"1", data=b"2")
            transport.close()

        self.run_main(main())

    def test_writing_more_than_there_is_room_for_pauses_the_protocol(self):
        data = os.urandom(5_000_000)

        async def main():
            for kind in (bytes, bytearray, memoryview):
                transport, protocol, other = await self.connect()
                mutable = bytearray(data)
                transport.write(kind(data) if kind is not bytearray else mutable)
                # It is the transport's by now.
                mutable[:] = bytes(len(mutable))
                transport.write(b"more")
                transport.writelines([b"and ", b"more"])
                self.assertEqual(protocol.events, ["made", "pause"])
                self.assertGreater(transport.get_write_buffer_size(), 64 * 1024)
                transport.close()
                self.assertTrue(transport.is_closing())
                received = bytearray()
                while chunk := await self.loop.sock_recv(other, 1 << 20):
                    received += chunk
                self.assertEqual(received, data + b"moreand more")
                self.assertEqual(protocol.events, ["made", "pause", "resume", "lost"])
                self.assertIsNone(protocol.lost)
                self.assertEqual(transport.get_write_buffer_size(), 0)

        self.run_main(main())

    def test_what_has_come_in_is_told_of_in_one_piece_whatever_came_before(self):
        class Pieces(Recorder):
            def __init__(self):
                super().__init__()
                self.pieces = []

            def data_received(self, data):
                self.pieces.append(data)

        async def main():
            transport, protocol, other = await self.connect(Pieces)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
            # Small after large and large after small; a little and a lot more than the one before.
            for size in (10, 40_000, 40_001, 10, 90_000, 35_000, 150_000, 36_000, 33_000, 80_000, 1, 150_000):
                message = os.urandom(size)
                # What there is room for, which some systems have less of.
                message = message[: other.send(message)]
                await self.soon(lambda: protocol.pieces)
                self.assertEqual([len(piece) for piece in protocol.pieces], [len(message)])
                self.assertEqual(protocol.pieces.pop(), message)
            transport.close()

        self.run_main(main())

    def test_writing_the_end(self):
        async def main():
            transport, protocol, other = await self.connect()
            transport.write(b"x" * 1_000_000)
            transport.write_eof()
            with self.assertRaisesRegex(RuntimeError, "after write_eof"):
                transport.write(b"x")
            received = 0
            while chunk := await self.loop.sock_recv(other, 1 << 20):
                received += len(chunk)
            self.assertEqual(received, 1_000_000)
            other.send(b"still heard")
            await self.soon(lambda: protocol.received == b"still heard")
            transport.abort()

        self.run_main(main())

    def test_writing_after_the_end_of_the_connection_is_let_pass(self):
        async def main():
            transport, protocol, other = await self.connect()
            transport.abort()
            for _ in range(4):
                transport.write(b"x")
            with self.assertLogs("asyncio", "WARNING"):
                transport.write(b"x")
            await self.soon(lambda: "lost" in protocol.events)
            transport.write(b"x")
            transport.close()

        with self.assertLogs("asyncio", "WARNING"):
            self.run_main(main())

    def test_a_descriptor_that_is_another_file_by_now_is_left_alone(self):
        async def main():
            # Closed with something left to send, which has gone out; and closed behind the transport's back.
            for close in (lambda transport: transport.close(), lambda transport: transport._sock.close()):
                transport, protocol, other = await self.connect()
                number = transport._sock_fd
                transport.write(b"x" * 1_000_000)
                received = 0
                close(transport)
                if transport._sock.fileno() != -1:
                    while chunk := await self.loop.sock_recv(other, 1 << 20):
                        received += len(chunk)
                    self.assertEqual(received, 1_000_000)
                one, another = self.pair_with(number)
                transport.write(b"not for you")
                transport.writelines([b"not for you"])
                transport._read_ready()
                transport._write_ready()
                self.assertRaises(BlockingIOError, one.recv, 100)
                self.assertRaises(BlockingIOError, another.recv, 100)
                one.close()
                another.close()
                await self.soon(lambda: "lost" in protocol.events)

        self.run_main(main())

    def test_a_peer_that_goes_away_is_the_reason(self):
        async def main():
            server = await self.loop.create_server(Recorder, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            transport, protocol = await self.loop.create_connection(Recorder, *address)
            await asyncio.sleep(0)
            peer = transport.get_extra_info("socket")
            self.assertEqual(peer.getpeername(), address)
            server.close()
            transport.pause_reading()
            self.assertFalse(transport.is_reading())
            transport.resume_reading()
            transport.write(b"x" * 100)
            transport.close()
            await self.soon(lambda: "lost" in protocol.events)
            await self.soon(lambda: self.loop.stats()["descriptors"] == 1)

        self.run_main(main())

    def test_a_peer_that_goes_away_after_a_large_message_is_the_reason_too(self):
        async def main():
            made = []

            class Accepted(Recorder):
                def connection_made(self, transport):
                    super().connection_made(transport)
                    made.append(self)

            server = await self.loop.create_server(Accepted, "127.0.0.1", 0)
            with socket.create_connection(server.sockets[0].getsockname()) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await self.soon(lambda: made)
                client.sendall(bytes(60_000))
                await self.soon(lambda: len(made[0].received) == 60_000)
                # Less than is expected, so that there is an attempt to receive the rest; which fails.
                client.sendall(bytes(50_000))
            await self.soon(lambda: "lost" in made[0].events)
            self.assertIsInstance(made[0].lost, ConnectionResetError)
            self.assertEqual(made[0].events, ["made", "lost"])
            server.close()
            await server.wait_closed()

        self.run_main(main())

    def test_where_connections_come_from(self):
        async def main(serve, connect):
            accepted = []

            class Accepted(asyncio.Protocol):
                def connection_made(self, transport):
                    accepted.append(transport)

            server = await serve(Accepted)
            transport, _ = await connect(server)
            await self.soon(lambda: accepted)
            for end in (accepted[0], transport):
                sock = end.get_extra_info("socket")
                self.assertEqual(end.get_extra_info("peername"), sock.getpeername())
                self.assertEqual(end.get_extra_info("sockname"), sock.getsockname())
                self.assertEqual(sock.gettimeout(), 0)
                self.assertFalse(os.get_inheritable(sock.fileno()))
                if sock.family != socket.AF_UNIX:
                    self.assertTrue(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                end.close()
            self.assertIs(accepted[0].get_protocol().__class__, Accepted)
            server.close()
            await asyncio.sleep(0)

        for host in ("127.0.0.1", "::1"):
            self.run_main(
                main(
                    lambda factory: self.loop.create_server(factory, host, 0),
                    lambda server: self.loop.create_connection(
                        asyncio.Protocol, *server.sockets[0].getsockname()[:2]
                    ),
                )
            )
        path = self.enterContext(tempfile.TemporaryDirectory()) + "/socket"
        self.run_main(
            main(
                lambda factory: self.loop.create_unix_server(factory, path),
                lambda _server: self.loop.create_unix_connection(asyncio.Protocol, path),
            )
        )

    def test_a_protocol_that_cannot_be_made_closes_its_connection(self):
        def refuse():
            raise ValueError("on purpose")

        async def main():
            server = await self.loop.create_server(refuse, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            self.assertEqual(await reader.read(), b"")
            writer.close()
            server.close()

        self.run_main(main())

    def test_running_out_of_descriptors_is_reported_and_survived(self):
        async def main():
            server = await self.loop.create_server(Recorder, "127.0.0.1", 0)
            client = socket.socket()
            self.addCleanup(client.close)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            # As many as there are, so that the next one is one too many.
            spare = os.dup(0)
            os.close(spare)
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
            try:
                client.connect(server.sockets[0].getsockname())
                await self.soon(lambda: self.errors)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            self.assertEqual(self.errors[0]["message"], "socket.accept() out of system resource")
            self.assertEqual(len(self.errors), 1)
            # asyncio tries again after a second.
            await asyncio.sleep(1.1)
            client.send(b"x")
            self.assertEqual(self.loop.stats()["descriptors"], 3)
            server.close()
            client.close()
            await asyncio.sleep(0.05)

        self.run_main(main())

    def test_what_is_no_bytes_is_refused(self):
        async def main():
            transport, _, _ = await self.connect()
            with self.assertRaisesRegex(TypeError, "bytes-like object, not 'str'"):
                transport.write("text")
            with self.assertRaisesRegex(TypeError, "bytes-like object, not 'int'"):
                transport.writelines([b"x", 1])
            transport.close()

        self.run_main(main())

    def test_a_protocol_that_raises_loses_its_connection(self):
        class Raises(Recorder):
            def data_received(self, data):
                raise ValueError("on purpose")

        async def main():
            transport, protocol, other = await self.connect(Raises)
            other.send(b"x")
            await self.soon(lambda: "lost" in protocol.events)
            self.assertIsInstance(protocol.lost, ValueError)
            [context] = self.errors
            self.assertEqual(context["message"], "Fatal error: protocol.data_received() call failed.")

        self.run_main(main())

    def test_protocols_with_a_buffer_of_their_own(self):
        async def main():
            transport, protocol, other = await self.connect(Buffered)
            data = os.urandom(100_000)
            sending = asyncio.ensure_future(self.loop.sock_sendall(other, data))
            await self.soon(lambda: len(protocol.received) == len(data))
            await sending
            self.assertEqual(protocol.received, data)
            transport.set_protocol(recorder := Recorder())
            other.send(b"other protocol")
            await self.soon(lambda: recorder.received == b"other protocol")
            transport.set_protocol(protocol)
            protocol.buffer = bytearray()
            other.send(b"x")
            await self.soon(lambda: protocol.over)
            self.assertIn("get_buffer", self.errors[0]["message"])

        self.run_main(main())

    def test_a_transport_that_nobody_has_is_collected(self):
        async def main():
            transport, protocol, other = await self.connect()
            reference = weakref.ref(protocol)
            transport.close()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            del transport, protocol
            gc.collect()
            self.assertIsNone(reference())

        self.run_main(main())


class DatagramRecorder(asyncio.DatagramProtocol):
    def __init__(self):
        self.received = []
        self.errors = []
        self.closing = False

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.received.append((data, address))
        if self.closing:
            self.transport.close()

    def error_received(self, error):
        self.errors.append(error)


class Datagrams(SocketTestCase):
    async def bind(self, host="127.0.0.1", **options):
        transport, protocol = await self.loop.create_datagram_endpoint(
            DatagramRecorder, local_addr=(host, 0), **options
        )
        self.assertIsInstance(transport, asyncio.DatagramTransport)
        return transport, protocol

    def test_datagrams_go_to_and_fro(self):
        async def main():
            for host in ("127.0.0.1", "::1"):
                one, first = await self.bind(host)
                other, second = await self.bind(host)
                address = other.get_extra_info("sockname")
                for data in (b"bytes", bytearray(b"bytearray"), memoryview(b"memoryview")):
                    one.sendto(data, address)
                one.sendto(b"by two parts", address[:2])
                one.sendto(b"by name", ("localhost", address[1]) if host == "127.0.0.1" else address)
                await self.soon(lambda: len(second.received) == 5)
                self.assertEqual(
                    [data for data, _ in second.received],
                    [b"bytes", b"bytearray", b"memoryview", b"by two parts", b"by name"],
                )
                self.assertEqual({address for _, address in second.received}, {one.get_extra_info("sockname")})
                other.sendto(b"back", second.received[0][1])
                await self.soon(lambda: first.received == [(b"back", address)])
                one.close()
                other.close()

        self.run_main(main())

    def test_a_connected_socket_sends_to_nobody_else(self):
        async def main():
            other, second = await self.bind()
            address = other.get_extra_info("sockname")
            one, _ = await self.loop.create_datagram_endpoint(DatagramRecorder, remote_addr=address)
            one.sendto(b"without")
            one.sendto(b"with", address)
            with self.assertRaises(ValueError):
                one.sendto(b"x", ("127.0.0.1", 9))
            await self.soon(lambda: [data for data, _ in second.received] == [b"without", b"with"])
            one.close()
            other.close()

        self.run_main(main())

    def test_errors_are_told_and_the_socket_goes_on(self):
        async def main():
            gone, _ = await self.bind()
            address = gone.get_extra_info("sockname")
            gone.abort()
            await asyncio.sleep(0)
            one, first = await self.loop.create_datagram_endpoint(DatagramRecorder, remote_addr=address)
            await asyncio.sleep(0)
            one.sendto(b"nobody there")
            await self.soon(lambda: first.errors)
            self.assertIsInstance(first.errors[0], ConnectionRefusedError)
            one.sendto(b"x" * 100_000)
            self.assertEqual(first.errors[1].errno, 90)
            self.assertFalse(one.is_closing())
            one.close()
            await asyncio.sleep(0)
            one.sendto(b"tolerated")

        self.run_main(main())

    def test_closing_while_more_is_waiting(self):
        async def main():
            one, _ = await self.bind()
            other, second = await self.bind()
            await asyncio.sleep(0)
            second.closing = True
            for _ in range(5):
                one.sendto(b"x", other.get_extra_info("sockname"))
            await self.soon(lambda: second.received)
            await asyncio.sleep(0.01)
            self.assertEqual(len(second.received), 1)
            one.close()

        self.run_main(main())

    def test_unix_datagrams(self):
        path = self.enterContext(tempfile.TemporaryDirectory()) + "/"

        async def main():
            other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self.addCleanup(other.close)
            other.bind(path + "other")
            other.settimeout(DEADLINE)
            transport, protocol = await self.loop.create_datagram_endpoint(
                DatagramRecorder, local_addr=path + "one", family=socket.AF_UNIX
            )
            other.sendto(b"hello", path + "one")
            await self.soon(lambda: protocol.received == [(b"hello", path + "other")])
            transport.sendto(b"back", path + "other")
            self.assertEqual(other.recv(100), b"back")
            transport.close()

        self.run_main(main())


if __name__ == "__main__":
    unittest.main()
