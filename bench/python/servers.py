"""Echo servers, written with each API of a loop.

Each is a coroutine that takes a loop. Once it listens, it returns the port, or the path of a Unix socket, and an object that
the caller must keep. Nothing is specific to a loop.
"""

import asyncio
import os
import socket
import ssl
import tempfile


def listener():
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen(1024)
    sock.setblocking(False)
    return sock


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class BufferedEcho(asyncio.BufferedProtocol):
    def connection_made(self, transport):
        self.transport = transport
        self.buffer = bytearray(1 << 18)
        self.view = memoryview(self.buffer)

    def get_buffer(self, _hint):
        return self.buffer

    def buffer_updated(self, count):
        # A copy, because the transport may keep the data and the buffer is reused.
        self.transport.write(bytes(self.view[:count]))


class CopyingEcho(BufferedEcho):
    """A common way to write one: a buffer of the size of a message, and a slice of it, which is already a copy."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self.buffer = bytearray(100 << 10)

    def buffer_updated(self, count):
        self.transport.write(bytes(self.buffer[:count]))


class DatagramEcho(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


async def sockets(loop, _options):
    async def handle(sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while data := await loop.sock_recv(sock, 65536):
                await loop.sock_sendall(sock, data)
        except OSError:
            pass
        sock.close()

    async def accept():
        while True:
            sock, _ = await loop.sock_accept(sock_listening)
            sock.setblocking(False)
            # The loop keeps only a weak reference to a task.
            task = loop.create_task(handle(sock))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    sock_listening = listener()
    tasks = set()
    tasks.add(loop.create_task(accept()))
    return sock_listening.getsockname()[1], tasks


async def streams(loop, _options):
    async def handle(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(handle, sock=listener())
    return server.sockets[0].getsockname()[1], server


async def protocol(loop, _options):
    server = await loop.create_server(Echo, sock=listener())
    return server.sockets[0].getsockname()[1], server


async def buffered(loop, _options):
    server = await loop.create_server(BufferedEcho, sock=listener())
    return server.sockets[0].getsockname()[1], server


async def copying(loop, _options):
    server = await loop.create_server(CopyingEcho, sock=listener())
    return server.sockets[0].getsockname()[1], server


async def unix(loop, _options):
    path = os.path.join(tempfile.mkdtemp(), "socket")
    return path, await loop.create_unix_server(Echo, path)


async def tls(loop, options):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options["certificate"])
    server = await loop.create_server(Echo, sock=listener(), ssl=context)
    return server.sockets[0].getsockname()[1], server


async def datagrams(loop, _options):
    transport, _ = await loop.create_datagram_endpoint(DatagramEcho, local_addr=("127.0.0.1", 0))
    return transport.get_extra_info("sockname")[1], transport


SERVERS = {function.__name__: function for function in (sockets, streams, protocol, buffered, copying, unix, tls, datagrams)}
