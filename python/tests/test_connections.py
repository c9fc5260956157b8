"""Stream transports are connections of the reactor: their queue, their descriptor and their end."""

import asyncio
import gc
import os
import socket
import threading
import unittest
import warnings

import pelton
from both_loops import on_both_loops
from support import SocketTestCase


class Recorder(asyncio.Protocol):
    def __init__(self):
        self.events = []
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data):
        self.events.append(data)

    def eof_received(self):
        self.events.append("eof")
        return True

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, exc):
        self.events.append("lost")
        self.lost.set_result(exc)


LARGE = 5_000_000


@on_both_loops
class Queues:
    async def connect(self):
        one, other = self.pair()
        transport, protocol = await self.loop.create_connection(Recorder, sock=one)
        return transport, protocol, other

    async def read(self, sock, size):
        data = bytearray()
        while len(data) < size:
            piece = await self.loop.sock_recv(sock, size - len(data))
            self.assertTrue(piece)
            data += piece
        return bytes(data)

    def test_a_queue_that_cannot_be_sent_ends_the_connection_with_an_oserror(self):
        async def main():
            transport, protocol, other = await self.connect()
            transport.pause_reading()
            transport.write(bytes(LARGE))
            self.assertGreater(transport.get_write_buffer_size(), 0)
            other.close()
            self.assertIsInstance(await asyncio.wait_for(protocol.lost, 10), (BrokenPipeError, ConnectionResetError))
            self.assertEqual(protocol.events, ["pause", "lost"])
            self.assertEqual(transport.get_write_buffer_size(), 0)
            transport.write(b"ignored")

        self.run_main(main())

    def test_input_that_came_before_a_failure_of_sending_is_delivered(self):
        async def main():
            transport, protocol, other = await self.connect()
            transport.write(bytes(LARGE))
            other.send(b"last words")
            other.close()
            self.assertIsInstance(await asyncio.wait_for(protocol.lost, 10), (BrokenPipeError, ConnectionResetError))
            self.assertEqual(protocol.events, ["pause", b"last words", "lost"])

        self.run_main(main())

    def test_write_eof_follows_the_queue(self):
        async def main():
            transport, protocol, other = await self.connect()
            transport.write(bytes(LARGE))
            transport.write_eof()
            with self.assertRaises(RuntimeError):
                transport.write(b"late")
            await self.read(other, LARGE)
            self.assertEqual(await self.loop.sock_recv(other, 1), b"")
            self.assertEqual(protocol.events, ["pause", "resume"])
            await self.loop.sock_sendall(other, b"answer")
            while protocol.events[-1] != b"answer":
                await asyncio.sleep(0)
            transport.close()
            self.assertIsNone(await protocol.lost)

        self.run_main(main())

    def test_abort_drops_the_queue(self):
        async def main():
            transport, protocol, other = await self.connect()
            transport.write(bytes(LARGE))
            transport.abort()
            self.assertEqual(transport.get_write_buffer_size(), 0)
            self.assertIsNone(await protocol.lost)
            received = 0
            while piece := await self.loop.sock_recv(other, 1 << 20):
                received += len(piece)
            self.assertLess(received, LARGE)

        self.run_main(main())

    def test_water_marks_that_change_while_something_is_queued(self):
        async def main():
            transport, protocol, other = await self.connect()
            transport.set_write_buffer_limits(high=10 * LARGE)
            transport.write(bytes(LARGE))
            self.assertEqual(protocol.events, [])
            transport.set_write_buffer_limits(high=1000, low=10)
            transport.write(b"x")
            self.assertEqual(protocol.events, ["pause"])
            await self.read(other, LARGE + 1)
            while protocol.events[-1] != "resume":
                await asyncio.sleep(0)
            self.assertLessEqual(transport.get_write_buffer_size(), 10)
            transport.close()
            await protocol.lost

        self.run_main(main())

    def test_a_protocol_that_writes_while_it_is_resumed(self):
        async def main():
            transport, protocol, other = await self.connect()
            rounds = 0

            def resume_writing():
                nonlocal rounds
                rounds += 1
                if rounds < 4:
                    transport.write(bytes(LARGE))
                else:
                    transport.close()

            protocol.resume_writing = resume_writing
            transport.write(bytes(LARGE))
            await self.read(other, 4 * LARGE)
            self.assertIsNone(await protocol.lost)
            self.assertEqual(await self.loop.sock_recv(other, 1), b"")

        self.run_main(main())

    def test_sendfile_to_a_socket_that_is_full(self):
        with open(__file__, "rb") as file:
            contents = file.read()

        async def main():
            transport, protocol, other = await self.connect()
            transport.write(bytes(LARGE))
            with open(__file__, "rb") as file:
                sending = asyncio.ensure_future(self.loop.sendfile(transport, file))
                await asyncio.sleep(0)
                with self.assertRaises(RuntimeError):
                    transport.write(b"in between")
                self.assertEqual(await self.read(other, LARGE + len(contents)), bytes(LARGE) + contents)
                await sending
            transport.write(b"after")
            self.assertEqual(await self.read(other, 5), b"after")
            await self.loop.sock_sendall(other, b"still reading")
            while protocol.events[-1] != b"still reading":
                await asyncio.sleep(0)
            transport.close()
            await protocol.lost

        self.run_main(main())

    def test_a_socket_closed_behind_the_transports_back(self):
        async def main():
            transport, protocol, other = await self.connect()
            number = transport._sock_fd
            transport._sock.close()
            # Another socket gets the number. Nothing may reach it.
            new, peer = self.pair()
            self.addCleanup(new.close)
            spare = []
            while new.fileno() != number and len(spare) < 50:
                spare.append(new)
                new = new.dup()
                self.addCleanup(new.close)
            self.assertEqual(new.fileno(), number)
            transport.write(b"astray")
            self.assertIsInstance(await protocol.lost, OSError)
            self.assertRaises(BlockingIOError, peer.recv, 10)

        self.run_main(main())


class Descriptors(SocketTestCase):
    """What belongs to the descriptor of a transport, on Pelton's loop only."""

    async def connect(self):
        one, other = self.pair()
        transport, protocol = await self.loop.create_connection(Recorder, sock=one)
        return transport, protocol, other

    def test_a_new_transport_for_the_number_of_a_dropped_one(self):
        async def main():
            for _ in range(3):
                transport, protocol, other = await self.connect()
                transport.pause_reading()
                number = transport._sock_fd
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    del transport, protocol
                    gc.collect()
                self.assertRaises(OSError, os.fstat, number)
                # The same number as a watched descriptor, and then as a transport again.
                other.close()
                new, peer = self.pair()
                if peer.fileno() == number:
                    new, peer = peer, new
                self.assertEqual(new.fileno(), number)
                ready = self.loop.create_future()
                self.loop.add_reader(number, lambda: ready.done() or ready.set_result(new.recv(1)))
                peer.send(b"x")
                self.assertEqual(await asyncio.wait_for(ready, 10), b"x")
                self.loop.remove_reader(number)
                transport, protocol = await self.loop.create_connection(Recorder, sock=new)
                peer.send(b"y")
                while not protocol.events:
                    await asyncio.sleep(0)
                self.assertEqual(protocol.events, [b"y"])
                transport.abort()
                await protocol.lost
                peer.close()

        self.run_main(main())

    def test_writes_from_another_thread(self):
        async def main():
            transport, protocol, other = await self.connect()

            def write():
                for index in range(100):
                    transport.write(b"%04d" % index)
                transport.writelines([b"the ", bytearray(b"end")])

            thread = threading.Thread(target=write)
            thread.start()
            expected = b"".join(b"%04d" % index for index in range(100)) + b"the end"
            received = b""
            while len(received) < len(expected):
                received += await asyncio.wait_for(self.loop.sock_recv(other, 1000), 10)
            self.assertEqual(received, expected)
            thread.join()
            transport.close()
            await protocol.lost

        self.run_main(main())

    def test_a_loop_that_is_closed_with_open_transports(self):
        async def main():
            transport, protocol, other = await self.connect()
            transport.write(bytes(LARGE))
            return transport, other

        loop = pelton.new_event_loop()
        old, self.loop = self.loop, loop
        transport, other = loop.run_until_complete(main())
        loop.close()
        self.loop = old
        self.assertEqual(transport.get_write_buffer_size(), 0)
        with self.assertRaisesRegex(RuntimeError, "Event loop is closed"):
            transport.write(b"x")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            del transport
            gc.collect()

    def test_private_attributes_that_a_program_sets(self):
        async def main():
            transport, protocol, other = await self.connect()
            with self.assertRaisesRegex(RuntimeError, "open already"):
                transport.__init__(self.loop, self.pair()[0], Recorder())

            class Wrapper:
                def __getattr__(self, name):
                    return getattr(other, name)

            # The reactor cannot ask a foreign object for its descriptor.
            transport._sock = Wrapper()
            gc.collect()
            transport.write(b"x")
            self.assertIsInstance(await protocol.lost, OSError)

            # A connection of another reactor with the same id.
            elsewhere = pelton.new_event_loop()
            try:
                one, peer = self.pair()
                victim = pelton.StreamTransport(elsewhere, one, Recorder())
                transport, protocol, other = await self.connect()
                mine = transport._loop
                transport._loop = elsewhere
                self.assertEqual(transport.get_write_buffer_size(), 0)
                transport.write(b"astray")
                transport._loop = mine
                self.assertRaises(BlockingIOError, peer.recv, 10)
                transport.abort()
                victim.abort()
            finally:
                elsewhere.close()
            await asyncio.sleep(0)

        self.run_main(main())

    def test_sockets_with_overridden_methods_have_asyncios_transport(self):
        class Own(socket.socket):
            def recv(self, size):
                return super().recv(size)

        async def main():
            one, other = self.pair()
            own = Own(one.family, one.type, one.proto, one.detach())
            self.addCleanup(own.close)
            with self.assertRaisesRegex(TypeError, "override"):
                pelton.StreamTransport(self.loop, own, Recorder())
            transport, protocol = await self.loop.create_connection(Recorder, sock=own)
            self.assertNotIsInstance(transport, pelton.StreamTransport)
            transport.abort()
            await protocol.lost

        self.run_main(main())


if __name__ == "__main__":
    unittest.main()
