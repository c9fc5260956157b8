"""TLS beyond asyncio's own tests. Certificates are created by the openssl program."""

import asyncio
import gc
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest
import weakref
from asyncio import sslproto

import pelton

DEADLINE = 20


def setUpModule():
    global folder, certificate, key
    if shutil.which("openssl") is None:
        raise unittest.SkipTest("there is no openssl program to create a certificate")
    folder = tempfile.TemporaryDirectory()
    certificate, key = os.path.join(folder.name, "certificate"), os.path.join(folder.name, "key")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext".split()
    command += [names, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def tearDownModule():
    folder.cleanup()


def server_context():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def client_context():
    return ssl.create_default_context(cafile=certificate)


class Echo(asyncio.Protocol):
    def __init__(self):
        self.events = []
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def data_received(self, data):
        self.events.append(bytes(data))
        # By name, because other tests pass it by position.
        self.transport.write(data=data)

    def eof_received(self):
        self.events.append("eof")

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, exc):
        self.events.append(("lost", exc))
        self.lost.set_result(exc)


class Collecting(Echo):
    """Collects received data, and signals when it has enough."""

    def __init__(self, enough=0):
        super().__init__()
        self.received = bytearray()
        self.enough = enough
        self.complete = asyncio.get_running_loop().create_future()

    def data_received(self, data):
        self.received += data
        if len(self.received) >= self.enough and not self.complete.done():
            self.complete.set_result(None)


class CollectingInto(asyncio.BufferedProtocol):
    """The same with its own buffer."""

    def __init__(self, enough, room):
        self.room = room
        self.received = bytearray()
        self.enough = enough
        loop = asyncio.get_running_loop()
        self.complete, self.lost = loop.create_future(), loop.create_future()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, hint):
        self.buffer = bytearray(self.room)
        return self.buffer

    def buffer_updated(self, count):
        self.received += self.buffer[:count]
        if len(self.received) >= self.enough and not self.complete.done():
            self.complete.set_result(None)

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class TLS(unittest.TestCase):
    def setUp(self):
        self.loop = pelton.new_event_loop()
        self.addCleanup(self.loop.close)
        self.reported = []
        self.loop.set_exception_handler(lambda _loop, context: self.reported.append(context))
        self.accepted = []

    def run_async(self, main):
        return self.loop.run_until_complete(asyncio.wait_for(main, DEADLINE))

    def accept(self):
        protocol = Echo()
        self.accepted.append(protocol)
        return protocol

    async def serve(self, factory=None, **options):
        server = await self.loop.create_server(
            factory or self.accept, "127.0.0.1", 0, ssl=server_context(), **options
        )
        return server, server.sockets[0].getsockname()[1]

    async def is_accepted(self):
        """Wait until the server has finished the handshake too."""
        while not self.accepted or "made" not in self.accepted[0].events:
            await asyncio.sleep(0.001)

    async def connect(self, factory, port, **options):
        return await self.loop.create_connection(
            factory, "127.0.0.1", port, ssl=client_context(), server_hostname="localhost", **options
        )

    def test_messages_of_all_sizes_are_echoed(self):
        async def main():
            server, port = await self.serve()
            for size in (1, 100, 16 * 1024, 16 * 1024 + 1, 100_000, 3 << 20):
                message = os.urandom(size)
                transport, protocol = await self.connect(lambda: Collecting(size), port)
                transport.write(message)
                await protocol.complete
                self.assertEqual(bytes(protocol.received), message)
                transport.close()
                self.assertIsNone(await protocol.lost)
                self.assertIsNone(await self.accepted[-1].lost)
            server.close()

        self.run_async(main())
        self.assertEqual(self.reported, [])

    def test_data_is_received_into_buffers_of_all_sizes(self):
        async def main():
            server, port = await self.serve()
            message = os.urandom(200_000)
            for room in (1000, 16 * 1024, 1 << 20):
                transport, protocol = await self.connect(lambda: CollectingInto(len(message), room), port)
                transport.write(message)
                await protocol.complete
                self.assertEqual(bytes(protocol.received), message)
                transport.close()
                await protocol.lost
            server.close()

        self.run_async(main())
        self.assertEqual(self.reported, [])

    def test_it_behaves_like_asyncios_transport(self):
        async def main():
            server, port = await self.serve()
            transport, protocol = await self.connect(Collecting, port)
            self.assertIsInstance(transport, sslproto._SSLProtocolTransport)
            self.assertIsInstance(transport, asyncio.Transport)
            self.assertIs(transport.get_protocol(), protocol)
            self.assertEqual(transport.get_extra_info("peername"), ("127.0.0.1", port))
            self.assertIsInstance(transport.get_extra_info("ssl_object"), ssl.SSLObject)
            self.assertIsInstance(transport.get_extra_info("sslcontext"), ssl.SSLContext)
            self.assertEqual(transport.get_extra_info("peercert")["subject"], ((("commonName", "localhost"),),))
            self.assertEqual(len(transport.get_extra_info("cipher")), 3)
            self.assertEqual(transport.get_extra_info("nothing", 7), 7)
            with self.assertRaises(TypeError):
                transport.write("text")
            transport.write(b"")
            transport.close()
            await protocol.lost
            with self.assertLogs("asyncio", "WARNING"):
                for _ in range(10):
                    transport.write(b"too late")
            transport.close()
            transport.write(b"too late")
            server.close()

        self.run_async(main())

    def test_data_written_in_data_received_is_sent_together(self):
        sent = []

        class Chatty(Echo):
            def data_received(self, data):
                for piece in (b"one ", b"two ", b"three"):
                    self.transport.write(piece)
                sent.append(self.transport.get_write_buffer_size())

        async def main():
            server, port = await self.serve(lambda: Chatty())
            transport, protocol = await self.connect(lambda: Collecting(13), port)
            transport.write(b"go")
            await protocol.complete
            self.assertEqual(bytes(protocol.received), b"one two three")
            # Encrypted, and held back until the protocol returned.
            self.assertGreater(sent[0], 13)
            transport.close()
            await protocol.lost
            server.close()

        self.run_async(main())

    def test_data_written_before_an_abort_is_sent(self):
        class Aborting(Echo):
            def data_received(self, data):
                self.transport.write(b"last words")
                self.transport.abort()

        async def main():
            server, port = await self.serve(Aborting)
            transport, protocol = await self.connect(lambda: Collecting(10), port)
            transport.write(b"go")
            await protocol.lost
            self.assertEqual(bytes(protocol.received), b"last words")
            server.close()

        self.run_async(main())

    def test_an_exception_in_data_received_is_reported_and_ends_the_connection(self):
        class Failing(Echo):
            def data_received(self, data):
                self.transport.write(b"before")
                raise ZeroDivisionError

        async def main():
            protocols = []

            def make():
                protocols.append(Failing())
                return protocols[-1]

            server, port = await self.serve(make)
            transport, protocol = await self.connect(lambda: Collecting(6), port)
            transport.write(b"go")
            await protocol.lost
            self.assertEqual(bytes(protocol.received), b"before")
            self.assertIsInstance(await protocols[0].lost, ZeroDivisionError)
            server.close()

        self.run_async(main())
        self.assertEqual([type(context["exception"]) for context in self.reported], [ZeroDivisionError])

    def test_reading_can_be_paused(self):
        async def main():
            server, port = await self.serve()
            transport, protocol = await self.connect(lambda: Collecting(5), port)
            transport.pause_reading()
            self.assertFalse(transport.is_reading())
            transport.write(b"hello")
            while len(self.accepted[0].events) < 2:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.02)
            self.assertEqual(bytes(protocol.received), b"")
            transport.resume_reading()
            await protocol.complete
            self.assertEqual(bytes(protocol.received), b"hello")
            transport.close()
            await protocol.lost
            server.close()

        self.run_async(main())

    def test_a_peer_that_does_not_read_pauses_the_writer(self):
        async def main():
            server, port = await self.serve()
            size = 16 << 20
            transport, protocol = await self.connect(lambda: Collecting(size), port)
            transport.pause_reading()
            await self.is_accepted()
            for _ in range(16):
                self.accepted[0].transport.write(bytes(size // 16))
            while "pause" not in self.accepted[0].events:
                await asyncio.sleep(0.001)
            self.assertGreater(self.accepted[0].transport.get_write_buffer_size(), 0)
            transport.resume_reading()
            await protocol.complete
            while "resume" not in self.accepted[0].events:
                await asyncio.sleep(0.001)
            self.assertEqual(protocol.received.count(0), size)
            transport.close()
            await protocol.lost
            server.close()

        self.run_async(main())

    def test_upgrading_a_connection(self):
        async def main():
            plain = []

            class Upgrading(Echo):
                def connection_made(self, transport):
                    super().connection_made(transport)
                    plain.append(self)

            listening = await self.loop.create_server(Upgrading, "127.0.0.1", 0)
            port = listening.sockets[0].getsockname()[1]
            transport, protocol = await self.loop.create_connection(lambda: Collecting(5), "127.0.0.1", port)
            while not plain:
                await asyncio.sleep(0.001)
            other = plain[0]
            server_side = self.loop.create_task(
                self.loop.start_tls(other.transport, other, server_context(), server_side=True)
            )
            transport = await self.loop.start_tls(
                transport, protocol, client_context(), server_hostname="localhost"
            )
            other.transport = await server_side
            self.assertIsInstance(transport, sslproto._SSLProtocolTransport)
            transport.write(b"hello")
            await protocol.complete
            self.assertEqual(bytes(protocol.received), b"hello")

            # And TLS in TLS.
            inner = Collecting(5)
            inner_server = Echo()
            server_side = self.loop.create_task(
                self.loop.start_tls(other.transport, inner_server, server_context(), server_side=True)
            )
            transport = await self.loop.start_tls(
                transport, inner, client_context(), server_hostname="localhost"
            )
            inner_server.transport = await server_side
            transport.write(b"again")
            await inner.complete
            self.assertEqual(bytes(inner.received), b"again")
            transport.close()
            await inner.lost
            listening.close()

        self.run_async(main())

    def test_a_custom_class_for_the_tls_object_is_used(self):
        calls = []

        class Counting(ssl.SSLObject):
            def read(self, *args):
                calls.append("read")
                return super().read(*args)

            def write(self, data):
                calls.append("write")
                return super().write(data)

        async def main():
            server, port = await self.serve()
            context = client_context()
            context.sslobject_class = Counting
            transport, protocol = await self.loop.create_connection(
                lambda: Collecting(5), "127.0.0.1", port, ssl=context, server_hostname="localhost"
            )
            transport.write(b"hello")
            await protocol.complete
            self.assertEqual(bytes(protocol.received), b"hello")
            self.assertIn("read", calls)
            self.assertIn("write", calls)
            transport.close()
            await protocol.lost
            server.close()

        self.run_async(main())

    def test_an_untrusted_certificate_is_refused(self):
        async def main():
            server, port = await self.serve()
            with self.assertRaises(ssl.SSLCertVerificationError):
                await self.loop.create_connection(
                    Collecting, "127.0.0.1", port, ssl=ssl.create_default_context(), server_hostname="localhost"
                )
            with self.assertRaises(ssl.SSLCertVerificationError):
                await self.loop.create_connection(
                    Collecting, "127.0.0.1", port, ssl=client_context(), server_hostname="example.org"
                )
            server.close()
            await asyncio.sleep(0.01)

        self.run_async(main())

    def test_a_handshake_that_never_ends_times_out(self):
        async def main():
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen()
                with self.assertRaises(ConnectionAbortedError):
                    await self.connect(Collecting, listener.getsockname()[1], ssl_handshake_timeout=0.05)

        self.run_async(main())

    def test_a_peer_that_never_sends_close_notify_times_out(self):
        async def main():
            server, port = await self.serve(ssl_shutdown_timeout=0.05)
            sock = socket.create_connection(("127.0.0.1", port))
            wrapping = self.loop.run_in_executor(
                None, lambda: client_context().wrap_socket(sock, server_hostname="localhost")
            )
            wrapped = await wrapping
            await self.is_accepted()
            self.accepted[0].transport.close()
            self.assertIsInstance(await self.accepted[0].lost, TimeoutError)
            wrapped.close()
            server.close()

        self.run_async(main())

    def peer(self, port, body):
        """Talk to the server from another thread, with Python's own sockets."""
        failed = []

        def run():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as sock:
                    body(sock)
            except OSError:
                pass
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread, failed

    def test_peers_that_disconnect_or_send_garbage(self):
        """During a handshake, during a record, after one; hundreds of times. They must leave nothing behind."""

        def client(sock):
            return client_context().wrap_socket(sock, server_hostname="localhost", suppress_ragged_eofs=True)

        def in_the_handshake(sock):
            sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")

        def nonsense(sock):
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            sock.recv(100)

        def half_a_record(sock):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(65536))
            tls.write(b"x" * 1000)
            record = outgoing.read()
            sock.sendall(record[: len(record) // 2])

        def a_broken_record(sock):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    sock.sendall(outgoing.read())
                    incoming.write(sock.recv(65536))
            tls.write(b"x" * 1000)
            record = bytearray(outgoing.read())
            record[-5] ^= 1
            sock.sendall(record)
            sock.recv(65536)

        def without_goodbye(sock):
            wrapped = client(sock)
            wrapped.sendall(b"hello")
            wrapped.recv(5)
            # Resets the connection.
            wrapped.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            wrapped.close()

        async def main():
            server, port = await self.serve(ssl_handshake_timeout=5, ssl_shutdown_timeout=5)
            for body in (in_the_handshake, nonsense, half_a_record, a_broken_record, without_goodbye):
                for _ in range(10):
                    thread, failed = self.peer(port, body)
                    await self.loop.run_in_executor(None, thread.join)
                    self.assertEqual(failed, [])
            for protocol in self.accepted:
                if "made" in protocol.events:
                    await protocol.lost
            # The server still works.
            transport, protocol = await self.connect(lambda: Collecting(5), port)
            transport.write(b"hello")
            await protocol.complete
            transport.close()
            await protocol.lost
            server.close()
            await asyncio.sleep(0.01)

        self.run_async(main())
        gc.collect()
        self.assertEqual(len(self.loop._watched_descriptors()), 1)

    def test_closed_connections_leave_nothing_behind(self):
        async def main():
            server, port = await self.serve()

            async def once():
                transport, protocol = await self.connect(lambda: Collecting(5), port)
                transport.write(b"hello")
                await protocol.complete
                transport.close()
                await protocol.lost
                await self.accepted.pop().lost
                return weakref.ref(transport), weakref.ref(transport._ssl_protocol), weakref.ref(protocol)

            await once()
            gc.collect()
            files = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
            references = [await once() for _ in range(20)]
            await asyncio.sleep(0)
            gc.collect()
            self.assertEqual([ref for refs in references for ref in refs if ref() is not None], [])
            if files:
                self.assertEqual(len(os.listdir("/proc/self/fd")), files)
            server.close()

        self.run_async(main())

    def test_setting_private_attributes_raises_and_does_not_crash(self):
        async def main():
            server, port = await self.serve()
            names = ["_incoming", "_outgoing", "_sslobj", "_app_protocol", "_transport", "_loop", "_write_backlog", "_state"]
            for name in names:
                transport, protocol = await self.connect(Collecting, port)
                tls = transport._ssl_protocol
                kept = getattr(tls, name)
                for value in (None, 5):
                    setattr(tls, name, value)
                    for use in (lambda: transport.write(b"x"), tls._do_read, tls._process_outgoing):
                        try:
                            use()
                        except (RuntimeError, TypeError, AttributeError):
                            pass
                setattr(tls, name, kept)
                transport.abort()
                if not protocol.lost.done():
                    await protocol.lost
            server.close()

        self.run_async(main())

    def test_streams_work_over_it(self):
        async def main():
            async def echo(reader, writer):
                writer.write(await reader.readline())
                writer.close()

            server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server_context())
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client_context(), server_hostname="localhost"
            )
            writer.writelines([b"one ", bytearray(b"two "), memoryview(b"three\n")])
            await writer.drain()
            self.assertEqual(await reader.read(), b"one two three\n")
            writer.close()
            await writer.wait_closed()
            server.close()

        self.run_async(main())


if __name__ == "__main__":
    unittest.main()
