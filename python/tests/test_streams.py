"""Stream transports."""

import asyncio
import gc
import os
import resource
import socket
import struct
import tempfile
import unittest
import weakref

import pelton
from support import SocketTestCase


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

    def test_a_transport_is_an_instance_of_asyncios_class(self):
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

    def test_the_first_write_is_sent_at_once(self):
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

    def test_writing_more_than_the_socket_accepts_pauses_the_protocol(self):
        data = os.urandom(5_000_000)

        async def main():
            for kind in (bytes, bytearray, memoryview):
                transport, protocol, other = await self.connect()
                mutable = bytearray(data)
                transport.write(kind(data) if kind is not bytearray else mutable)
                # The transport has copied the rest by now.
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

    def test_received_data_is_delivered_in_one_piece_whatever_was_received_before(self):
        class Pieces(Recorder):
            def __init__(self):
                super().__init__()
                self.pieces = []

            def data_received(self, data):
                self.pieces.append(data)

        async def main():
            transport, protocol, other = await self.connect(Pieces)
            other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 400_000)
            # Small after large and large after small; slightly and much larger than the previous one.
            for size in (10, 40_000, 40_001, 10, 90_000, 35_000, 150_000, 36_000, 33_000, 80_000, 1, 150_000):
                message = os.urandom(size)
                # What the socket accepts, which is less on some systems.
                message = message[: other.send(message)]
                await self.soon(lambda: protocol.pieces)
                self.assertEqual([len(piece) for piece in protocol.pieces], [len(message)])
                self.assertEqual(protocol.pieces.pop(), message)
            transport.close()

        self.run_main(main())

    def test_write_eof(self):
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

    def test_writing_to_a_lost_connection_is_ignored(self):
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

    def test_a_reused_descriptor_number_is_left_alone(self):
        async def main():
            # Closed with unsent data, which was sent then; and closed behind the transport's back.
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

    def test_a_reset_by_the_peer_is_passed_to_connection_lost(self):
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

    def test_a_reset_after_a_large_message_is_passed_to_connection_lost(self):
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
                # Less than expected, so there is an attempt to receive the rest, which fails.
                client.sendall(bytes(50_000))
            await self.soon(lambda: "lost" in made[0].events)
            self.assertIsInstance(made[0].lost, ConnectionResetError)
            self.assertEqual(made[0].events, ["made", "lost"])
            server.close()
            await server.wait_closed()

        self.run_main(main())

    def test_addresses_of_connections(self):
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

    def test_a_failing_protocol_factory_closes_the_connection(self):
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
            # No descriptor is left, so the next one fails.
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
            # asyncio retries after a second.
            await asyncio.sleep(1.1)
            client.send(b"x")
            self.assertEqual(self.loop.stats()["descriptors"], 3)
            server.close()
            client.close()
            await asyncio.sleep(0.05)

        self.run_main(main())

    def test_data_that_is_not_bytes_is_refused(self):
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

    def test_buffered_protocols(self):
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

    def test_an_unreferenced_transport_is_collected(self):
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


if __name__ == "__main__":
    unittest.main()
