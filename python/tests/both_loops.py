"""Tests that run on asyncio's own loop and on pelton's."""

import asyncio
import socket
import sys
import unittest

import pelton

DEADLINE = 10


async def until(condition):
    """Wait for a condition; the caller has a time limit."""
    while not condition():
        await asyncio.sleep(0.001)


class BothLoops:
    """Shared by such tests; ``on_both_loops`` turns them into test cases."""

    def setUp(self):
        self.loop = self.new_loop()
        self.addCleanup(self.loop.close)
        # Even in development mode: in debug mode, pelton uses asyncio's implementation.
        self.loop.set_debug(False)
        self.errors = []
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))

    def run_main(self, main):
        return self.loop.run_until_complete(asyncio.wait_for(main, DEADLINE))

    def pair(self, kind=socket.SOCK_STREAM):
        one, other = socket.socketpair(type=kind)
        for sock in (one, other):
            sock.setblocking(False)
            self.addCleanup(sock.close)
        return one, other

    def bound(self, kind=socket.SOCK_STREAM):
        """Return a bound socket; for streams, a listening one."""
        sock = socket.socket(type=kind)
        self.addCleanup(sock.close)
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        return sock

    def ways_to_connect(self):
        """Return an address, and functions that connect to it."""
        host, port = self.bound().getsockname()

        async def create_connection():
            transport, _ = await self.loop.create_connection(asyncio.Protocol, host, port)
            transport.abort()

        async def sock_connect():
            with socket.socket() as sock:
                sock.setblocking(False)
                await self.loop.sock_connect(sock, (host, port))

        return (host, port), [create_connection, sock_connect]

    def ways_to_send_datagrams(self):
        """Return an address, and functions that send a datagram to it."""
        address = self.bound(socket.SOCK_DGRAM).getsockname()

        async def sendto():
            transport, _ = await self.loop.create_datagram_endpoint(FirstDatagram, local_addr=("127.0.0.1", 0))
            transport.sendto(b"x", address)
            transport.abort()

        async def sock_sendto():
            with socket.socket(type=socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                await self.loop.sock_sendto(sock, b"x", address)

        return address, [sendto, sock_sendto]


def on_both_loops(cls):
    """Create a test case for each loop from a class of tests."""
    make_case(cls, "OnAsyncio", asyncio.SelectorEventLoop)
    return on_pelton(cls)


def on_pelton(cls):
    """Create a test case for pelton's loop alone."""
    make_case(cls, "OnPelton", pelton.new_event_loop)
    return cls


def make_case(cls, suffix, new_loop):
    name = cls.__name__ + suffix
    bases = (cls, unittest.TestCase) if issubclass(cls, BothLoops) else (cls, BothLoops, unittest.TestCase)
    body = {"new_loop": staticmethod(new_loop), "__module__": cls.__module__}
    setattr(sys.modules[cls.__module__], name, type(name, bases, body))


class Recorder(asyncio.Protocol):
    """Records its callbacks."""

    def __init__(self, events):
        self.events = events

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def data_received(self, data):
        self.events.append(bytes(data))

    def eof_received(self):
        self.events.append("eof")

    def connection_lost(self, exc):
        self.events.append(("lost", exc))


class Buffered(asyncio.BufferedProtocol):
    """Records data received into its buffer."""

    def __init__(self, events, size=100):
        self.events = events
        self.buffer = bytearray(size)

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def get_buffer(self, _hint):
        # A view, because asyncio fills slices of it.
        return memoryview(self.buffer)

    def buffer_updated(self, count):
        self.events.append(("buffered", bytes(self.buffer[:count])))

    def eof_received(self):
        self.events.append("eof")

    def connection_lost(self, exc):
        self.events.append(("lost", exc))


class FirstDatagram(asyncio.DatagramProtocol):
    def __init__(self):
        self.received = asyncio.get_running_loop().create_future()

    def datagram_received(self, data, address):
        if not self.received.done():
            self.received.set_result(data)
