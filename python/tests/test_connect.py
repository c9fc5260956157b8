"""Connecting and accepting without asyncio's Python code, and the information that transports provide."""

import asyncio
import gc
import os
import pathlib
import socket
import ssl
import tempfile
import unittest
import warnings
import weakref

import pelton

DEADLINE = 10


class Recorder(asyncio.Protocol):
    """Records its callbacks."""

    def __init__(self, loop):
        self.loop = loop
        self.events = []
        self.transport = None
        self.lost = loop.create_future()
        self.made = loop.create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")
        if not self.made.done():
            self.made.set_result(None)

    def data_received(self, data):
        self.events.append(data)

    def eof_received(self):
        self.events.append("eof")

    def connection_lost(self, exc):
        self.events.append(("lost", exc))
        self.lost.set_result(None)


class Connecting(unittest.TestCase):
    def setUp(self):
        self.loop = pelton.new_event_loop()
        self.addCleanup(self.loop.close)
        self.accepted = []

    def run_async(self, main):
        return self.loop.run_until_complete(asyncio.wait_for(main, DEADLINE))

    def accept(self):
        protocol = Recorder(self.loop)
        self.accepted.append(protocol)
        return protocol

    async def serve(self, host="127.0.0.1"):
        server = await self.loop.create_server(self.accept, host, 0)
        return server, server.sockets[0].getsockname()[1]

    async def connect(self, host, port):
        transport, protocol = await self.loop.create_connection(lambda: Recorder(self.loop), host, port)
        while not self.accepted or not self.accepted[-1].made.done():
            await asyncio.sleep(0.001)
        return transport, protocol, self.accepted[-1]

    def test_connecting_to_numeric_addresses(self):
        async def main():
            for host in ("127.0.0.1", "::1"):
                server, port = await self.serve(host)
                transport, protocol, other = await self.connect(host, port)
                self.assertIsInstance(transport, pelton.StreamTransport)
                self.assertEqual(protocol.events, ["made"])
                self.assertIs(protocol.transport, transport)
                transport.write(b"hello")
                transport.close()
                await other.lost
                await protocol.lost
                self.assertEqual(other.events, ["made", b"hello", "eof", ("lost", None)])
                self.assertEqual(protocol.events, ["made", ("lost", None)])
                server.close()

        self.run_async(main())

    def test_extra_info_of_a_connection(self):
        async def main():
            server, port = await self.serve()
            transport, _, other = await self.connect("127.0.0.1", port)
            for end in (transport, other.transport):
                # In any order of requests.
                self.assertIsNone(end.get_extra_info("sslcontext"))
                self.assertEqual(end.get_extra_info("sslcontext", 7), 7)
                self.assertEqual(end.get_extra_info("sslcontext", default=7), 7)
                peer, name = end.get_extra_info("peername"), end.get_extra_info(name="sockname")
                sock = end.get_extra_info("socket")
                self.assertIs(end.get_extra_info("socket"), sock)
                self.assertEqual(sock.fileno(), end._sock_fd)
                self.assertEqual((sock.getpeername(), sock.getsockname()), (peer, name))
                self.assertEqual(end.get_extra_info("peername"), peer)
                self.assertEqual(sock.family, socket.AF_INET)
                self.assertEqual(sock.type, socket.SOCK_STREAM)
                self.assertEqual(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), 1)
                self.assertFalse(os.get_inheritable(sock.fileno()))
                self.assertFalse(os.get_blocking(sock.fileno()))
                with self.assertRaises(TypeError):
                    end.get_extra_info()
                with self.assertRaises(TypeError):
                    end.get_extra_info("socket", what=1)
            self.assertEqual(transport.get_extra_info("sockname"), other.transport.get_extra_info("peername"))
            transport.abort()
            other.transport.abort()
            server.close()
            await other.lost

        self.run_async(main())

    def test_extra_info_is_available_after_closing(self):
        async def main():
            server, port = await self.serve()
            transport, protocol, other = await self.connect("127.0.0.1", port)
            name = transport.get_extra_info("sockname")
            transport.close()
            await protocol.lost
            await other.lost
            self.assertEqual(transport.get_extra_info("sockname"), name)
            self.assertEqual(other.transport.get_extra_info("peername"), name)
            # Requested here for the first time.
            self.assertEqual(other.transport.get_extra_info("socket").fileno(), -1)
            self.assertIsNone(other.transport._sock)
            self.assertIn("closed", repr(other.transport))
            server.close()

        self.run_async(main())

    def test_extra_info_has_paths_of_unix_sockets(self):
        async def main():
            with tempfile.TemporaryDirectory() as folder:
                path, own = os.path.join(folder, "server"), os.path.join(folder, "client")
                server = await self.loop.create_unix_server(self.accept, path)
                sock = socket.socket(socket.AF_UNIX)
                sock.bind(own)
                sock.setblocking(False)
                await self.loop.sock_connect(sock, path)
                transport, protocol = await self.loop.create_unix_connection(
                    lambda: Recorder(self.loop), sock=sock
                )
                while not self.accepted:
                    await asyncio.sleep(0.001)
                await self.accepted[0].made
                other = self.accepted[0].transport
                self.assertEqual(transport.get_extra_info("peername"), path)
                self.assertEqual(transport.get_extra_info("sockname"), own)
                self.assertEqual(other.get_extra_info("peername"), own)
                self.assertEqual(other.get_extra_info("sockname"), path)
                transport.close()
                await protocol.lost
                await self.accepted[0].lost
                server.close()

        self.run_async(main())

    def test_small_writes_are_not_delayed(self):
        # A socket created without naming TCP, as servers with their own sockets do, is still TCP.
        listener = socket.socket()
        self.addCleanup(listener.close)
        self.assertEqual(listener.proto, 0)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pathlib.Path(__file__).with_name("certificate.pem"))

        async def main():
            for tls in None, context:
                server = await self.loop.create_server(self.accept, sock=listener.dup(), ssl=tls)
                client = socket.socket()
                client.setblocking(False)
                await self.loop.sock_connect(client, listener.getsockname())
                if tls:
                    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
                    connecting = await self.loop.create_connection(
                        lambda: Recorder(self.loop), sock=client, ssl=trusting, server_hostname=""
                    )
                else:
                    connecting = await self.loop.create_connection(lambda: Recorder(self.loop), sock=client)
                while not self.accepted or not self.accepted[-1].made.done():
                    await asyncio.sleep(0.001)
                for transport in self.accepted[-1].transport, connecting[0]:
                    sock = transport.get_extra_info("socket")
                    self.assertTrue(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                    transport.abort()
                await connecting[1].lost
                server.close()
                self.accepted.clear()

        self.run_async(main())

    def test_a_refused_connection_is_an_error_that_names_the_address(self):
        async def main():
            for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
                with socket.socket(family) as sock:
                    # Bound but not listening.
                    sock.bind((host, 0))
                    port = sock.getsockname()[1]
                    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None
                    message = f"Connect call failed \\('{host}', {port}"
                    with self.assertRaisesRegex(ConnectionRefusedError, message):
                        await self.loop.create_connection(asyncio.Protocol, host, port)
                    if before is not None:
                        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

        self.run_async(main())

    def test_invalid_addresses_and_options_are_refused(self):
        async def main():
            server, port = await self.serve()
            for host, options, error in (
                # The part before the null byte is an address.
                ("127.0.0.1\0", {}, ValueError),
                ("127.0.0.1\ud800", {}, UnicodeError),
                ("127.0.0.1", {"no_such_option": None}, TypeError),
            ):
                with self.assertRaises(error):
                    await self.loop.create_connection(asyncio.Protocol, host, port, **options)
            self.assertEqual(self.accepted, [])
            server.close()

        self.run_async(main())

    def test_a_failing_protocol_factory_leaves_no_descriptor(self):
        async def main():
            server, port = await self.serve()

            def fail():
                raise ZeroDivisionError

            for _ in range(3):
                with self.assertRaises(ZeroDivisionError):
                    await self.loop.create_connection(fail, "127.0.0.1", port)
            while len(self.accepted) < 3:
                await asyncio.sleep(0.001)
            for protocol in self.accepted:
                await protocol.lost
            server.close()

        self.run_async(main())

    def test_cancelling_a_connect_leaves_nothing_behind(self):
        async def main():
            # With a full backlog, the next connection attempt waits forever.
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen(0)
                others = []
                for _ in range(4):
                    sock = socket.socket()
                    sock.setblocking(False)
                    sock.connect_ex(listener.getsockname())
                    others.append(sock)
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(
                        self.loop.create_connection(asyncio.Protocol, *listener.getsockname()), 0.05
                    )
                # Except for the loop's own.
                watched = self.loop._watched_descriptors()
                self.assertEqual(watched, [self.loop._ssock.fileno()])
                for sock in others:
                    sock.close()

        self.run_async(main())

    def test_a_replaced_socket_class_is_used(self):
        made = []

        class Proxied(socket.socket):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                made.append(self)

        async def main():
            server, port = await self.serve()
            socket.socket, kept = Proxied, socket.socket
            try:
                transport, protocol = await self.loop.create_connection(
                    lambda: Recorder(self.loop), "127.0.0.1", port
                )
            finally:
                socket.socket = kept
            self.assertIn(transport._sock, made)
            transport.close()
            await protocol.lost
            while not self.accepted:
                await asyncio.sleep(0.001)
            await self.accepted[0].lost
            server.close()

        self.run_async(main())

    def test_an_unclosed_transport_warns_and_is_closed(self):
        async def main():
            server, port = await self.serve()
            _, protocol, other = await self.connect("127.0.0.1", port)
            transport = weakref.ref(other.transport)
            fd = other.transport._sock_fd
            self.loop._remove_reader(fd)
            self.accepted.clear()
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                del other
                gc.collect()
            self.assertIsNone(transport())
            self.assertTrue(any("unclosed transport" in str(warning.message) for warning in seen), seen)
            await protocol.lost
            server.close()

        self.run_async(main())

    def test_a_descriptor_is_free_again_when_its_transport_is_closed(self):
        async def main():
            server, port = await self.serve()
            transport, protocol, other = await self.connect("127.0.0.1", port)
            fd = transport._sock_fd
            with self.assertRaises(RuntimeError):
                self.loop.add_reader(fd, print)
            self.assertIs(self.loop._transports[fd], transport)
            transport.close()
            await protocol.lost
            self.assertNotIn(fd, self.loop._transports)
            await other.lost
            server.close()

        self.run_async(main())

    def test_an_exception_in_connection_lost_is_reported_and_everything_closed(self):
        reported = []

        class Failing(Recorder):
            def connection_lost(self, exc):
                super().connection_lost(exc)
                raise ZeroDivisionError

        async def main():
            self.loop.set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
            server, port = await self.serve()
            transport, protocol = await self.loop.create_connection(
                lambda: Failing(self.loop), "127.0.0.1", port
            )
            transport.close()
            await protocol.lost
            await asyncio.sleep(0)
            self.assertIsNone(transport._sock)
            self.assertIsNone(transport.get_protocol())
            while not self.accepted:
                await asyncio.sleep(0.001)
            await self.accepted[0].lost
            server.close()

        self.run_async(main())
        self.assertEqual([type(error) for error in reported], [ZeroDivisionError])

    def test_setting_private_attributes_raises_and_does_not_crash(self):
        async def main():
            server, port = await self.serve()
            transport, protocol, other = await self.connect("127.0.0.1", port)
            for value in (5, "loop", object()):
                with self.assertRaises(TypeError):
                    transport._loop = value
                with self.assertRaises(TypeError):
                    pelton.StreamTransport(value, None, protocol)
            with self.assertRaises(ValueError):
                self.loop._open_stream(-1, socket.AF_INET, protocol, None)
            with self.assertRaises(TypeError):
                transport.get_extra_info("socket", None, None)
            transport._call_connection_lost(None)
            await protocol.lost
            for method in (transport.close, transport._start_reading, transport._read_ready, transport._write_ready):
                method()
            transport.write(b"nobody is there")
            await other.lost
            server.close()

        self.run_async(main())

    def test_large_messages_arrive_whole(self):
        async def main():
            server, port = await self.serve()
            transport, protocol, other = await self.connect("127.0.0.1", port)
            message = os.urandom(3 << 20)
            for _ in range(3):
                transport.write(message)
            transport.close()
            await other.lost
            received = b"".join(event for event in other.events if isinstance(event, bytes))
            self.assertEqual(len(received), 3 * len(message))
            self.assertEqual(received, message * 3)
            await protocol.lost
            server.close()

        self.run_async(main())


class Sockets(unittest.TestCase):
    def setUp(self):
        self.loop = pelton.new_event_loop()
        self.addCleanup(self.loop.close)

    def run_async(self, main):
        return self.loop.run_until_complete(asyncio.wait_for(main, DEADLINE))

    def pair(self):
        pair = socket.socketpair()
        for sock in pair:
            sock.setblocking(False)
            self.addCleanup(sock.close)
        return pair

    def datagram_socket(self):
        sock = socket.socket(type=socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        self.addCleanup(sock.close)
        return sock

    def test_receiving_into_a_buffer(self):
        async def main():
            one, other = self.pair()
            buffer = bytearray(8)
            one.send(b"at once")
            self.assertEqual(await self.loop.sock_recv_into(other, buffer), 7)
            self.assertEqual(bytes(buffer), b"at once\0")
            for _ in range(3):
                self.loop.call_later(0.001, one.send, b"later")
                self.assertEqual(await self.loop.sock_recv_into(other, memoryview(buffer)[1:]), 5)
                self.assertEqual(bytes(buffer), b"alatere\0")
            one.send(b"x")
            with self.assertRaises((BufferError, TypeError)):
                await self.loop.sock_recv_into(other, b"read only")

        self.run_async(main())

    def test_recvfrom(self):
        async def main():
            one, other = self.datagram_socket(), self.datagram_socket()
            sent = await self.loop.sock_sendto(one, b"at once", other.getsockname())
            self.assertEqual(sent, 7)
            self.assertEqual(await self.loop.sock_recvfrom(other, 100), (b"at once", one.getsockname()))
            for _ in range(3):
                self.loop.call_later(0.001, one.sendto, b"later", other.getsockname())
                self.assertEqual(await self.loop.sock_recvfrom(other, 3), (b"lat", one.getsockname()))

        self.run_async(main())

    def test_recvfrom_into(self):
        async def main():
            one, other = self.datagram_socket(), self.datagram_socket()
            buffer = bytearray(8)
            for options in ((), (3,)):
                self.loop.call_later(0.001, one.sendto, b"hello", other.getsockname())
                count, address = await self.loop.sock_recvfrom_into(other, buffer, *options)
                self.assertEqual(address, one.getsockname())
                self.assertEqual(count, options[0] if options else 5)
                self.assertEqual(buffer[:5], b"hello")
            with self.assertRaises(ValueError):
                await self.loop.sock_recvfrom_into(other, buffer, 9)
            one.sendto(b"x", other.getsockname())
            with self.assertRaises((BufferError, TypeError)):
                await self.loop.sock_recvfrom_into(other, b"read only")

        self.run_async(main())

    def test_cancelling_loses_no_data(self):
        async def main():
            one, other = self.pair()
            buffer = bytearray(8)
            task = self.loop.create_task(self.loop.sock_recv_into(other, buffer))
            await asyncio.sleep(0)
            one.send(b"kept")
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(await self.loop.sock_recv_into(other, buffer), 4)

        self.run_async(main())

    def test_accepting_and_connecting(self):
        async def main():
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                listener.setblocking(False)
                for _ in range(3):
                    accepting = self.loop.create_task(self.loop.sock_accept(listener))
                    await asyncio.sleep(0)
                    sock = socket.socket()
                    sock.setblocking(False)
                    await self.loop.sock_connect(sock, listener.getsockname())
                    other, address = await accepting
                    self.assertIs(type(other), socket.socket)
                    self.assertEqual(address, sock.getsockname())
                    self.assertEqual(other.gettimeout(), 0)
                    self.assertEqual((other.family, other.type), (socket.AF_INET, socket.SOCK_STREAM))
                    await self.loop.sock_sendall(sock, b"x")
                    self.assertEqual(await self.loop.sock_recv(other, 1), b"x")
                    sock.close()
                    other.close()

        self.run_async(main())

    def test_connecting_without_a_listener_is_refused(self):
        async def main():
            with socket.socket() as bound, socket.socket() as sock:
                bound.bind(("127.0.0.1", 0))
                sock.setblocking(False)
                with self.assertRaises(ConnectionRefusedError):
                    await self.loop.sock_connect(sock, bound.getsockname())

        self.run_async(main())


if __name__ == "__main__":
    unittest.main()
