"""Guarded, replaced and overridden sockets. Every test also runs on asyncio's own loop."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import unittest
from unittest import mock

import pelton
from both_loops import FirstDatagram, Recorder, on_both_loops


class Auditing(unittest.TestCase):
    def test_sockets_are_audited(self):
        program = os.path.join(os.path.dirname(__file__), "audited.py")
        ended = subprocess.run([sys.executable, program], stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stderr, "Ran 8 tests")


class Noticing(unittest.TestCase):
    """Guards are detected when they appear and when they disappear; otherwise everything would stay slow."""

    def test_replaced_methods(self):
        loop = pelton.new_event_loop()
        self.addCleanup(loop.close)
        for _ in range(3):
            self.assertFalse(loop._sockets_are_guarded())
            for name in "connect", "sendto", "recv", "accept", "close":
                with mock.patch.object(socket.socket, name):
                    self.assertTrue(loop._sockets_are_guarded(), name)
        self.assertFalse(loop._sockets_are_guarded())

    def test_guards_installed_before_the_import(self):
        program = """
import socket
original = socket.socket
class Guarded(original):
    def connect(self, address):
        raise PermissionError("guarded")
if %r:
    socket.socket = Guarded
else:
    original.connect = Guarded.connect
import asyncio, pelton
async def main():
    await asyncio.get_running_loop().create_connection(asyncio.Protocol, "127.0.0.1", 1)
try:
    pelton.run(main())
except PermissionError as error:
    print(error)
"""
        for replaced in True, False:
            said = subprocess.run([sys.executable, "-c", program % replaced], stdout=subprocess.PIPE, text=True, timeout=60)
            self.assertEqual(said.stdout, "guarded\n")


@on_both_loops
class Guards:
    """Code that observes or forbids the creation and use of sockets."""

    def test_methods_of_the_socket_class_can_be_replaced(self):
        def forbidden(*_):
            raise PermissionError("forbidden")

        _, connecting = self.ways_to_connect()
        _, sending = self.ways_to_send_datagrams()
        for name, ways in ("connect", connecting), ("sendto", sending):
            for way in ways:
                if (way.__name__, name) == ("sendto", "sendto"):
                    # A transport reports the error to its protocol.
                    continue
                with self.subTest(way.__name__), mock.patch.object(socket.socket, name, forbidden):
                    with self.assertRaisesRegex(PermissionError, "forbidden"):
                        self.run_main(way())
                with self.subTest(way.__name__, then="restored"):
                    self.run_main(way())

    def test_a_replaced_sendto_is_called_for_a_transport(self):
        address, (way, _) = self.ways_to_send_datagrams()
        with mock.patch.object(socket.socket, "sendto") as replaced:
            self.run_main(way())
        replaced.assert_called_once_with(b"x", address)

    def test_replaced_methods_of_the_socket_class_are_called_for_open_connections(self):
        one, other = self.pair()
        received, sent = [], []

        def recv(sock, size):
            received.append(size)
            return super(socket.socket, sock).recv(1)

        def send(sock, data):
            sent.append(bytes(data))
            return super(socket.socket, sock).send(data[:1])

        async def main():
            events = []
            transport, _ = await self.loop.create_connection(lambda: Recorder(events), sock=one)
            with mock.patch.object(socket.socket, "recv", recv):
                await self.loop.sock_sendall(other, b"ab")
                while len(events) < 3:
                    await asyncio.sleep(0)
            self.assertEqual(events, ["made", b"a", b"b"])
            self.assertGreaterEqual(len(received), 2)
            with mock.patch.object(socket.socket, "send", send):
                transport.write(b"xyz")
            self.assertEqual(sent, [b"xyz"])
            await self.loop.sock_sendall(other, b"more")
            while len(events) < 4:
                await asyncio.sleep(0)
            self.assertEqual(events[3:], [b"more"])
            transport.close()
            data = b""
            while piece := await self.loop.sock_recv(other, 10):
                data += piece
            self.assertEqual(data, b"xyz")

        self.run_main(main())

    def test_replaced_methods_are_called_for_sock_operations(self):
        one, other = self.pair()
        other.send(b"data")

        async def main():
            for name, operation, value in [
                ("recv", lambda: self.loop.sock_recv(one, 4), b"own"),
                ("recv_into", lambda: self.loop.sock_recv_into(one, bytearray(4)), 3),
                ("recvfrom", lambda: self.loop.sock_recvfrom(one, 4), (b"own", None)),
                ("send", lambda: self.loop.sock_sendall(one, b"all"), 3),
            ]:
                with self.subTest(name), mock.patch.object(socket.socket, name, return_value=value) as replaced:
                    self.assertIn(await operation(), (value, None))
                    replaced.assert_called_once()

        self.run_main(main())

    def test_the_socket_class_can_be_replaced(self):
        class Guarded(socket.socket):
            def connect(self, address):
                raise PermissionError(f"no connection to {address}")

        _, (create_connection, _) = self.ways_to_connect()
        with mock.patch.object(socket, "socket", Guarded):
            with self.assertRaisesRegex(PermissionError, "no connection"):
                self.run_main(create_connection())

    def test_sock_connect_of_the_loop_can_be_replaced(self):
        address, (create_connection, _) = self.ways_to_connect()
        connected = []

        async def sock_connect(sock, address):
            connected.append(address)
            sock.connect_ex(address)

        self.loop.sock_connect = sock_connect
        self.run_main(create_connection())
        self.assertEqual(connected, [address])


class Counting(socket.socket):
    """A socket that records its calls, and sends and receives less than requested."""

    def __init__(self, sock):
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        self.setblocking(False)
        self.asked = []

    def recv(self, size):
        self.asked.append("recv")
        return super().recv(min(size, 3))

    def recv_into(self, buffer, *arguments):
        self.asked.append("recv_into")
        return super().recv_into(memoryview(buffer)[:3], *arguments)

    def recvfrom(self, size):
        self.asked.append("recvfrom")
        data, address = super().recvfrom(size)
        return data.upper(), address

    def send(self, data):
        self.asked.append("send")
        return super().send(memoryview(data)[:3])

    def sendmsg(self, buffers):
        self.asked.append("sendmsg")
        return super().sendmsg([memoryview(b"".join(buffers))[:5]])

    def sendto(self, data, *arguments):
        self.asked.append("sendto")
        return super().sendto(data.upper(), *arguments)

    def shutdown(self, how):
        self.asked.append("shutdown")
        super().shutdown(how)


@on_both_loops
class OwnSockets:
    """Sockets of a class that overrides the methods that transports call."""

    def connected(self, *factory):
        one, other = self.pair()
        one = Counting(one)
        self.addCleanup(one.close)
        return one, other

    async def read(self, sock, size):
        data = b""
        while len(data) < size:
            data += await self.loop.sock_recv(sock, size - len(data))
        return data

    def test_a_transport_calls_overridden_methods(self):
        one, other = self.connected()

        async def main():
            events = []
            transport, _ = await self.loop.create_connection(lambda: Recorder(events), sock=one)
            await self.loop.sock_sendall(other, b"abcdef")
            while len(events) < 3:
                await asyncio.sleep(0)
            self.assertEqual(events, ["made", b"abc", b"def"])
            transport.write(b"uvwxyz")
            transport.write(bytearray(b"0123456789"))
            transport.writelines([b"A", bytearray(b"BC"), b"D"])
            self.assertEqual(await self.read(other, 20), b"uvwxyz0123456789ABCD")
            self.assertEqual(one.asked.count("send" if sys.version_info < (3, 12) else "sendmsg") > 1, True)
            self.assertEqual(transport.get_write_buffer_size(), 0)
            transport.write(b"last words")
            transport.write_eof()
            self.assertEqual(await self.read(other, 10), b"last words")
            self.assertEqual(await self.loop.sock_recv(other, 1), b"")
            self.assertIn("shutdown", one.asked)
            other.close()
            while events[-1] != ("lost", None):
                await asyncio.sleep(0)
            self.assertEqual(events[-2], "eof")

        self.run_main(main())

    def test_a_transport_uses_overridden_addresses(self):
        class Named(socket.socket):
            def getsockname(self):
                return "ours"

            def getpeername(self):
                return "theirs"

        async def addresses(sock):
            transport, _ = await self.loop.create_connection(asyncio.Protocol, sock=sock)
            transport.abort()
            await asyncio.sleep(0)
            return transport.get_extra_info("sockname"), transport.get_extra_info("peername")

        one, _ = self.pair()
        named = Named(fileno=one.detach())
        self.addCleanup(named.close)
        self.assertEqual(self.run_main(addresses(named)), ("ours", "theirs"))
        replaced = mock.patch.multiple(socket.socket, getsockname=Named.getsockname, getpeername=Named.getpeername)
        with replaced:
            self.assertEqual(self.run_main(addresses(self.pair()[0])), ("ours", "theirs"))

    def test_a_transport_of_a_buffered_protocol_calls_overridden_methods(self):
        one, other = self.connected()

        class Buffered(asyncio.BufferedProtocol):
            def __init__(self):
                self.buffer, self.received = bytearray(100), []

            def get_buffer(self, _hint):
                return self.buffer

            def buffer_updated(self, count):
                self.received.append(bytes(self.buffer[:count]))

        async def main():
            transport, protocol = await self.loop.create_connection(Buffered, sock=one)
            await self.loop.sock_sendall(other, b"abcdef")
            while len(protocol.received) < 2:
                await asyncio.sleep(0)
            self.assertEqual(protocol.received, [b"abc", b"def"])
            self.assertIn("recv_into", one.asked)
            transport.abort()

        self.run_main(main())

    def test_an_exception_of_an_overridden_method_ends_the_connection(self):
        for name in "recv", "send":
            one, other = self.connected()
            setattr(one, name, mock.Mock(side_effect=ZeroDivisionError))

            async def main():
                events = []
                transport, _ = await self.loop.create_connection(lambda: Recorder(events), sock=one)
                if name == "recv":
                    await self.loop.sock_sendall(other, b"abcdef")
                else:
                    transport.write(b"x")
                while len(events) < 2:
                    await asyncio.sleep(0)
                self.assertEqual(events[0], "made")
                self.assertEqual(events[1][0], "lost")
                self.assertIsInstance(events[1][1], ZeroDivisionError)

            with self.subTest(name):
                self.run_main(main())

    def test_an_overridden_method_that_is_not_ready_is_called_again(self):
        for name in "recv", "send":
            one, other = self.connected()
            real = getattr(one, name)
            setattr(one, name, mock.Mock(side_effect=[BlockingIOError, InterruptedError, b"own" if name == "recv" else 2]))

            async def main():
                events = []
                transport, _ = await self.loop.create_connection(lambda: Recorder(events), sock=one)
                if name == "recv":
                    await self.loop.sock_sendall(other, b"x")
                    while len(events) < 2:
                        await asyncio.sleep(0)
                    self.assertEqual(events, ["made", b"own"])
                else:
                    transport.write(b"xy")
                    self.assertEqual(transport.get_write_buffer_size(), 2)
                    setattr(one, name, real)
                    self.assertEqual(await self.read(other, 2), b"xy")
                transport.abort()

            with self.subTest(name):
                self.run_main(main())

    def test_a_transport_with_tls_calls_overridden_methods(self):
        one, other = self.connected()
        certificate = os.path.join(os.path.dirname(__file__), "certificate.pem")
        server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server_side.load_cert_chain(certificate)
        client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client_side.check_hostname, client_side.verify_mode = False, ssl.CERT_NONE

        async def main():
            events, theirs = [], []
            server = self.loop.connect_accepted_socket(lambda: Recorder(theirs), sock=other, ssl=server_side)
            client = self.loop.create_connection(
                lambda: Recorder(events), sock=one, ssl=client_side, server_hostname=""
            )
            (accepted, _), (transport, _) = await asyncio.gather(server, client)
            accepted.write(b"to client")
            transport.write(b"to server")
            while len(events) < 2 or len(theirs) < 2:
                await asyncio.sleep(0)
            self.assertEqual((events, theirs), (["made", b"to client"], ["made", b"to server"]))
            self.assertIn("recv_into", one.asked)
            self.assertIn("send", one.asked)
            transport.abort()
            accepted.abort()
            await asyncio.sleep(0)

        self.run_main(main())

    def test_an_object_that_only_wraps_a_socket(self):
        one, other = self.pair()

        class Wrapper:
            """Has a socket but is not one."""

            def __init__(self, sock):
                self._sock = sock

            def __getattr__(self, name):
                return getattr(self._sock, name)

            def recv(self, size):
                return self._sock.recv(size).upper()

        async def main():
            events = []
            wrapper = Wrapper(one)
            transport, _ = await self.loop.create_connection(lambda: Recorder(events), sock=wrapper)
            await self.loop.sock_sendall(other, b"abc")
            while len(events) < 2:
                await asyncio.sleep(0)
            self.assertEqual(events, ["made", b"ABC"])
            transport.write(b"xyz")
            self.assertEqual(await self.read(other, 3), b"xyz")
            transport.abort()

        self.run_main(main())

    def test_a_datagram_endpoint_calls_overridden_methods(self):
        def bound(cls=lambda sock: sock):
            sock = socket.socket(type=socket.SOCK_DGRAM)
            sock.bind(("127.0.0.1", 0))
            sock.setblocking(False)
            sock = cls(sock)
            self.addCleanup(sock.close)
            return sock

        async def main():
            one, other = bound(Counting), bound()
            transport, protocol = await self.loop.create_datagram_endpoint(FirstDatagram, sock=one)
            await self.loop.sock_sendto(other, b"to one", one.getsockname())
            self.assertEqual(await protocol.received, b"TO ONE")
            transport.sendto(b"to other", other.getsockname())
            self.assertEqual(await self.loop.sock_recv(other, 100), b"TO OTHER")
            self.assertIn("recvfrom", one.asked)
            self.assertIn("sendto", one.asked)
            transport.abort()

        self.run_main(main())


if __name__ == "__main__":
    unittest.main()
