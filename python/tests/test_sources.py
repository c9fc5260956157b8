"""Pipes, servers and datagrams, which are sources of the reactor: every test also runs on asyncio's own loop."""

import asyncio
import errno
import gc
import os
import pty
import socket
import sys
import tempfile
import unittest
import warnings
from asyncio import selector_events
from unittest import mock

from both_loops import BothLoops, Recorder, on_both_loops, on_pelton, until

# What asyncio counts for a queued datagram besides its bytes. Its first version that counts them does not subtract them again.
HEADER = getattr(selector_events._SelectorDatagramTransport, "_header_size", 8 if sys.version_info >= (3, 13) else 0)
MISCOUNTS = HEADER != 0 and not hasattr(selector_events._SelectorDatagramTransport, "_header_size")


class Events(asyncio.DatagramProtocol):
    def __init__(self, events):
        self.events = events

    def connection_made(self, transport):
        self.transport = transport
        self.events.append("made")

    def datagram_received(self, data, address):
        self.events.append((data, address))

    def error_received(self, exc):
        self.events.append(exc)

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, exc):
        self.events.append(("lost", exc))


class Tidy(BothLoops):
    """Leaves no transport behind that a later test would see being finalized."""

    def setUp(self):
        # After the loop is closed.
        self.addCleanup(gc.collect)
        super().setUp()


class Flow(Recorder):
    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")


@on_both_loops
class Datagrams(Tidy):
    def need_an_exact_size(self):
        if MISCOUNTS and type(self.loop).__module__.startswith("asyncio."):
            self.skipTest("this version of asyncio counts bytes that it does not subtract")

    def open(self, sock):
        events = []
        return self.loop.create_datagram_endpoint(lambda: Events(events), sock=sock), events

    async def connected(self):
        """Return a transport of a connected Unix socket with a name, its events, and its peer."""
        directory = self.enterContext(tempfile.TemporaryDirectory())
        names = [os.path.join(directory, name) for name in ("ours", "theirs")]
        ours, theirs = (socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in names)
        for sock, name in zip((ours, theirs), names):
            sock.setblocking(False)
            sock.bind(name)
            self.addCleanup(sock.close)
        ours.connect(names[1])
        opening, events = self.open(ours)
        transport, _ = await opening
        return transport, events, theirs

    def fill(self, transport):
        """Send numbered datagrams until one is queued, and return their number."""
        count = 0
        while not transport.get_write_buffer_size():
            transport.sendto(b"%06d" % count)
            count += 1
        return count

    async def drain(self, sock, count):
        received = []
        while len(received) < count:
            try:
                received.append(sock.recv(100))
            except BlockingIOError:
                await asyncio.sleep(0)
        return received

    def test_datagrams_without_room_are_queued_and_sent_in_order(self):
        self.need_an_exact_size()

        async def main():
            transport, events, theirs = await self.connected()
            transport.set_write_buffer_limits(high=100, low=50)
            count = self.fill(transport)
            self.assertEqual(transport.get_write_buffer_size(), 6 + HEADER)
            for _ in range(100):
                transport.sendto(b"%06d" % count)
                count += 1
            self.assertEqual(transport.get_write_buffer_size(), 101 * (6 + HEADER))
            self.assertEqual(events, ["made", "pause"])
            received = await self.drain(theirs, count)
            self.assertEqual(received, [b"%06d" % number for number in range(count)])
            await until(lambda: len(events) > 2)
            self.assertEqual(events, ["made", "pause", "resume"])
            self.assertEqual(transport.get_write_buffer_size(), 0)
            transport.sendto(b"more")
            self.assertEqual(theirs.recv(100), b"more")
            transport.close()
            await until(lambda: len(events) > 3)
            self.assertEqual(events[3], ("lost", None))

        self.run_main(main())

    def test_closing_sends_the_queue_first(self):
        async def main():
            transport, events, theirs = await self.connected()
            count = self.fill(transport)
            transport.close()
            self.assertTrue(transport.is_closing())
            await asyncio.sleep(0.01)
            self.assertEqual(events, ["made"])
            self.assertEqual(len(await self.drain(theirs, count)), count)
            await until(lambda: len(events) > 1)
            self.assertEqual(events, ["made", ("lost", None)])

        self.run_main(main())

    def test_aborting_drops_the_queue(self):
        async def main():
            transport, events, theirs = await self.connected()
            count = self.fill(transport)
            transport.abort()
            await until(lambda: len(events) > 1)
            self.assertEqual(events, ["made", ("lost", None)])
            self.assertEqual(len(await self.drain(theirs, count - 1)), count - 1)
            with self.assertRaises(BlockingIOError):
                theirs.recv(100)

        self.run_main(main())

    def test_errors_of_sends_go_to_the_protocol(self):
        async def main():
            opening, events = self.open(self.bound(socket.SOCK_DGRAM))
            transport, _ = await opening
            address = self.bound(socket.SOCK_DGRAM).getsockname()
            transport.sendto(bytes(70_000), address)
            self.assertEqual([type(event) for event in events[1:]], [OSError])
            self.assertEqual(events[1].errno, errno.EMSGSIZE)
            transport.sendto(b"x", ("127.0.0.1", 0))
            self.assertEqual(events[2].errno, errno.EINVAL)
            self.assertEqual(transport.get_write_buffer_size(), 0)
            self.assertFalse(transport.is_closing())
            transport.abort()

        self.run_main(main())

    def test_each_refusal_is_reported_once(self):
        async def main():
            nobody = self.bound(socket.SOCK_DGRAM)
            address = nobody.getsockname()
            nobody.close()
            events = []
            transport, _ = await self.loop.create_datagram_endpoint(lambda: Events(events), remote_addr=address)
            for count in range(1, 4):
                transport.sendto(b"anybody?")
                await until(lambda: len(events) > count)
                await asyncio.sleep(0.01)
                self.assertEqual([type(event) for event in events[1:]], [ConnectionRefusedError] * count)
            transport.sendto(b"one")
            await asyncio.sleep(0)
            # If the refusal of the first is known, the second reports it.
            transport.sendto(b"two")
            await asyncio.sleep(0.01)
            self.assertTrue(all(type(event) is ConnectionRefusedError for event in events[1:]))
            transport.abort()

        self.run_main(main())

    @unittest.skipUnless(
        "pause_reading" in vars(selector_events._SelectorTransport), "datagram transports of this Python cannot pause"
    )
    def test_a_paused_transport_receives_nothing(self):
        async def main():
            transport, events, theirs = await self.connected()
            transport.pause_reading()
            theirs.connect(transport.get_extra_info("sockname"))
            theirs.send(b"x")
            await asyncio.sleep(0.01)
            self.assertEqual(events, ["made"])
            transport.resume_reading()
            await until(lambda: len(events) > 1)
            self.assertEqual(events[1], (b"x", theirs.getsockname()))
            transport.abort()

        self.run_main(main())

    def test_a_protocol_that_closes_gets_nothing_more(self):
        async def main():
            transport, events, theirs = await self.connected()
            theirs.connect(transport.get_extra_info("sockname"))
            transport.get_protocol().datagram_received = lambda data, _: (events.append(data), transport.abort())
            for _ in range(5):
                theirs.send(b"x")
            await until(lambda: ("lost", None) in events)
            self.assertEqual(events, ["made", b"x", ("lost", None)])

        self.run_main(main())

    def test_a_protocol_that_fails_goes_on(self):
        async def main():
            transport, events, theirs = await self.connected()
            theirs.connect(transport.get_extra_info("sockname"))

            def fail(data, _address):
                events.append(data)
                raise ValueError("on purpose")

            transport.get_protocol().datagram_received = fail
            for number in b"abc":
                theirs.send(bytes([number]))
            await until(lambda: len(events) > 3)
            self.assertEqual(events, ["made", b"a", b"b", b"c"])
            self.assertEqual([type(context["exception"]) for context in self.errors], [ValueError] * 3)
            transport.abort()

        self.run_main(main())

    def test_addresses_of_unix_sockets(self):
        async def main():
            events = []
            opening = self.loop.create_datagram_endpoint(
                lambda: Events(events), local_addr="\0pelton-%d" % os.getpid(), family=socket.AF_UNIX
            )
            transport, _ = await opening
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nameless:
                nameless.sendto(b"?", transport.get_extra_info("sockname"))
            await until(lambda: len(events) > 1)
            self.assertEqual(events[1], (b"?", None))
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as named:
                named.setblocking(False)
                named.bind(b"\0pelton-peer-%d" % os.getpid())
                named.sendto(b"!", transport.get_extra_info("sockname"))
                await until(lambda: len(events) > 2)
                self.assertEqual(events[2], (b"!", named.getsockname()))
                transport.sendto(b"back", events[2][1])
                self.assertEqual(named.recv(100), b"back")
            transport.sendto(b"x", "/nonexistent/socket")
            self.assertEqual(type(events[3]), FileNotFoundError)
            transport.sendto(b"x", "x" * 1000)
            self.assertEqual(str(events[4]), "AF_UNIX path too long")
            transport.abort()

        self.run_main(main())

    def test_host_names_are_resolved(self):
        async def main():
            opening, events = self.open(self.bound(socket.SOCK_DGRAM))
            transport, _ = await opening
            theirs = self.bound(socket.SOCK_DGRAM)
            transport.sendto(b"x", ("localhost", theirs.getsockname()[1]))
            self.assertEqual(await self.drain(theirs, 1), [b"x"])
            transport.abort()

        self.run_main(main())

    def test_a_replaced_method_is_called_while_datagrams_are_queued(self):
        self.need_an_exact_size()

        async def main():
            transport, events, theirs = await self.connected()
            count = self.fill(transport)
            with mock.patch.object(socket.socket, "send", side_effect=BlockingIOError):
                transport.sendto(b"%06d" % count)
                self.assertEqual(transport.get_write_buffer_size(), 2 * (6 + HEADER))
            received = await self.drain(theirs, count + 1)
            self.assertEqual(received[-1], b"%06d" % count)
            await until(lambda: not transport.get_write_buffer_size())
            transport.abort()
            await asyncio.sleep(0)

        self.run_main(main())

    def test_a_transport_that_is_dropped_closes_its_socket(self):
        async def main():
            sock = self.bound(socket.SOCK_DGRAM)
            opening, _ = self.open(sock)
            transport, _protocol = await opening
            await asyncio.sleep(0)
            self.loop._remove_reader(sock.fileno())
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                _protocol.transport = None
                del transport, _protocol
                gc.collect()
                await asyncio.sleep(0)
            self.assertIn("unclosed transport", " ".join(str(warning.message) for warning in caught))
            # They refer to the transport.
            caught.clear()
            self.assertEqual(sock.fileno(), -1)
            # The next owner of the number is not affected.
            opening, events = self.open(self.bound(socket.SOCK_DGRAM))
            transport, _ = await opening
            transport.sendto(b"x", transport.get_extra_info("sockname"))
            await until(lambda: len(events) > 1)
            transport.abort()

        self.run_main(main())

    def test_a_socket_closed_behind_the_transport_affects_no_other(self):
        async def main():
            sock = self.bound(socket.SOCK_DGRAM)
            opening, events = self.open(sock)
            transport, _ = await opening
            number = sock.fileno()
            sock.close()
            other = self.bound(socket.SOCK_DGRAM)
            self.assertEqual(other.fileno(), number)
            transport.sendto(b"secret", other.getsockname())
            await asyncio.sleep(0.01)
            with self.assertRaises(BlockingIOError):
                other.recv(100)
            self.assertEqual([event.errno for event in events[1:]], [errno.EBADF])
            transport.abort()
            await asyncio.sleep(0.01)
            self.assertEqual(other.fileno(), number)

        self.run_main(main())


@on_both_loops
class Pipes(Tidy):
    async def reading(self, fd, **options):
        events = []
        pipe = os.fdopen(fd, "rb", 0)
        self.addCleanup(pipe.close)
        transport, _ = await self.loop.connect_read_pipe(lambda: Flow(events), pipe, **options)
        return transport, events

    async def writing(self, fd):
        events = []
        pipe = os.fdopen(fd, "wb", 0)
        self.addCleanup(pipe.close)
        transport, _ = await self.loop.connect_write_pipe(lambda: Flow(events), pipe)
        return transport, events

    def test_everything_arrives_and_both_ends_end(self):
        async def main():
            read, write = os.pipe()
            reader, received = await self.reading(read)
            writer, events = await self.writing(write)
            data = bytes(range(256)) * 4000
            writer.write(data)
            self.assertGreater(writer.get_write_buffer_size(), 65_536)
            writer.write(bytearray(b"bytearray"))
            writer.write(memoryview(b"view"))
            writer.close()
            self.assertTrue(writer.is_closing())
            await until(lambda: ("lost", None) in received)
            pieces = [event for event in received if type(event) is bytes]
            self.assertEqual(b"".join(pieces), data + b"bytearrayview")
            self.assertEqual([event for event in received if type(event) is not bytes], ["made", "eof", ("lost", None)])
            self.assertEqual(events, ["made", "pause", "resume", ("lost", None)])
            self.assertTrue(reader.is_closing())

        self.run_main(main())

    def test_a_reader_that_goes_away_ends_the_writer(self):
        async def main():
            for queued, lost in ((0, type(None)), (1_000_000, BrokenPipeError)):
                read, write = os.pipe()
                writer, events = await self.writing(write)
                await asyncio.sleep(0)
                writer.write(bytes(queued))
                os.close(read)
                await until(lambda: type(events[-1]) is tuple)
                self.assertIs(type(events[-1][1]), lost)
                writer.write(b"ignored")

        self.run_main(main())

    def test_a_write_that_finds_no_reader_ends_the_writer(self):
        async def main():
            read, write = os.pipe()
            writer, events = await self.writing(write)
            os.close(read)
            writer.write(b"x")
            self.assertTrue(writer.is_closing())
            await until(lambda: type(events[-1]) is tuple)
            self.assertIs(type(events[-1][1]), BrokenPipeError)
            self.assertEqual(self.errors, [])

        self.run_main(main())

    def test_aborting_drops_the_queue(self):
        async def main():
            read, write = os.pipe()
            self.addCleanup(os.close, read)
            writer, events = await self.writing(write)
            writer.write(bytes(1_000_000))
            left = 1_000_000 - writer.get_write_buffer_size()
            writer.abort()
            self.assertEqual(writer.get_write_buffer_size(), 0)
            await until(lambda: ("lost", None) in events)
            received = 0
            while data := os.read(read, 100_000):
                received += len(data)
            self.assertEqual(received, left)

        self.run_main(main())

    def test_a_paused_reader_receives_nothing(self):
        async def main():
            read, write = os.pipe()
            reader, events = await self.reading(read)
            reader.pause_reading()
            os.write(write, b"x")
            os.close(write)
            await asyncio.sleep(0.01)
            self.assertEqual(events, ["made"])
            reader.resume_reading()
            await until(lambda: ("lost", None) in events)
            self.assertEqual(events, ["made", b"x", "eof", ("lost", None)])

        self.run_main(main())

    def test_replaced_functions_are_called(self):
        async def main():
            read, write = os.pipe()
            reader, received = await self.reading(read)
            writer, events = await self.writing(write)
            os_read, os_write = os.read, os.write
            with (
                mock.patch("os.read", side_effect=lambda fd, _: os_read(fd, 1)) as reading,
                mock.patch("os.write", side_effect=lambda fd, data: os_write(fd, data[:1])) as writing,
            ):
                writer.write(b"abc")
                await until(lambda: len(received) > 1)
            reading.assert_called()
            writing.assert_called()
            await until(lambda: b"".join(received[1:]) == b"abc")
            writer.close()
            await until(lambda: ("lost", None) in received)

        self.run_main(main())

    def test_a_terminal_that_is_hung_up_ends_with_its_error(self):
        async def main():
            screen, terminal = pty.openpty()
            reader, events = await self.reading(screen)
            os.write(terminal, b"bye")
            await until(lambda: b"bye" in events)
            os.close(terminal)
            await until(lambda: type(events[-1]) is tuple)
            self.assertEqual(events[-1][1].errno, errno.EIO)
            self.assertEqual(self.errors, [])

        self.run_main(main())

    def test_a_socket_can_be_both_ends(self):
        async def main():
            one, other = self.pair()
            reader, received = await self.reading(one.detach())
            writer, events = await self.writing(other.detach())
            writer.write(b"x")
            await until(lambda: b"x" in received)
            reader.close()
            await until(lambda: ("lost", None) in events)
            self.assertEqual(received, ["made", b"x", ("lost", None)])

        self.run_main(main())

    def test_a_transport_that_is_dropped_closes_its_pipe(self):
        async def main():
            read, write = os.pipe()
            self.addCleanup(os.close, write)
            reader, events = await self.reading(read)
            await asyncio.sleep(0)
            self.loop._remove_reader(read)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                reader.get_protocol().transport = None
                del reader
                gc.collect()
            self.assertIn("unclosed transport", " ".join(str(warning.message) for warning in caught))
            with self.assertRaises(OSError):
                os.fstat(read)

        self.run_main(main())

    def test_the_next_file_with_the_number_of_a_closed_pipe_is_not_affected(self):
        async def main():
            class Closes(asyncio.Protocol):
                def connection_made(self, transport):
                    transport.close()

            for end in 0, 1:
                both = os.pipe()
                other = os.fdopen(both[1 - end], "rb" if end else "wb", 0)
                self.addCleanup(other.close)
                connect = self.loop.connect_write_pipe if end else self.loop.connect_read_pipe
                await connect(Closes, os.fdopen(both[end], "wb" if end else "rb", 0))
                await asyncio.sleep(0.01)
                with self.assertRaises(OSError):
                    os.fstat(both[end])
                # On asyncio's loop, a reader is left behind, and would have to be removed first.
                self.loop._remove_reader(both[end])
                one, theirs = self.pair()
                self.assertEqual(one.fileno(), both[end])
                readable = self.loop.create_future()
                self.loop.add_reader(one, lambda: readable.done() or readable.set_result(None))
                theirs.send(b"x")
                await readable
                self.loop.remove_reader(one)
            self.assertEqual(self.errors, [])

        self.run_main(main())

    def test_files_are_refused(self):
        async def main():
            with tempfile.TemporaryFile() as file:
                with self.assertRaisesRegex(ValueError, "Pipe transport is for pipes/sockets only"):
                    await self.loop.connect_read_pipe(asyncio.Protocol, file)
                with self.assertRaisesRegex(ValueError, "only for"):
                    await self.loop.connect_write_pipe(asyncio.Protocol, file)

        self.run_main(main())

    def test_a_loop_that_is_closed_gives_pipes_back(self):
        read, write = os.pipe()
        self.addCleanup(os.close, write)

        async def main():
            return await self.reading(read)

        transport, _ = self.run_main(main())
        self.loop.close()
        os.write(write, b"x")
        self.assertEqual(os.read(read, 10), b"x")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            del transport
            gc.collect()


@on_both_loops
class Servers(Tidy):
    def test_a_server_accepts_at_most_its_backlog_per_turn(self):
        async def main():
            sock = self.bound()
            accepted = []
            order = []

            def factory():
                order.append(len(accepted))
                protocol = Recorder([])
                accepted.append(protocol)
                return protocol

            server = await self.loop.create_server(factory, sock=sock, backlog=2, start_serving=False)
            clients = [socket.create_connection(sock.getsockname()) for _ in range(3)]
            for client in clients:
                self.addCleanup(client.close)
            await server.start_serving()
            await until(lambda: len(accepted) == 3)
            server.close()
            for protocol in accepted:
                await until(lambda: protocol.events)
                protocol.transport.abort()
            await server.wait_closed()

        self.run_main(main())

    def test_a_closed_server_refuses_and_another_can_take_its_place(self):
        async def main():
            port = 0
            for _ in range(3):
                made = self.loop.create_future()
                server = await self.loop.create_server(lambda: made.set_result(None) or Recorder([]), "127.0.0.1", port)
                address = server.sockets[0].getsockname()
                port = address[1]
                with socket.socket() as client:
                    client.setblocking(False)
                    await self.loop.sock_connect(client, address)
                    await made
                server.close()
                await asyncio.sleep(0.01)
                with socket.socket() as client:
                    client.setblocking(False)
                    with self.assertRaises(ConnectionRefusedError):
                        await self.loop.sock_connect(client, address)

        self.run_main(main())

    def test_a_factory_that_closes_the_server_stops_it(self):
        async def main():
            made = []

            def factory():
                made.append(None)
                server.close()
                return Recorder([])

            server = await self.loop.create_server(factory, "127.0.0.1", 0)
            with socket.create_connection(server.sockets[0].getsockname()):
                await until(lambda: made)
                await asyncio.sleep(0.01)
            self.assertEqual(len(made), 1)
            self.assertEqual(self.errors, [])

        self.run_main(main())

    def test_unix_servers_accept(self):
        async def main():
            with tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "server")
                made = self.loop.create_future()
                server = await self.loop.create_unix_server(lambda: Made(made), path)
                with socket.socket(socket.AF_UNIX) as client:
                    client.connect(path)
                    transport = await made
                    self.assertEqual(transport.get_extra_info("peername"), "")
                    self.assertEqual(transport.get_extra_info("sockname"), path)
                    transport.abort()
                server.close()

        self.run_main(main())

    def test_the_mode_of_the_listener_is_not_changed(self):
        async def main():
            sock = self.bound()
            server = await self.loop.create_server(asyncio.Protocol, sock=sock)
            self.assertFalse(os.get_blocking(sock.fileno()))
            twin = os.dup(sock.fileno())
            server.close()
            self.assertFalse(os.get_blocking(twin))
            os.close(twin)

        self.run_main(main())


@on_pelton
class OnlyHere(Tidy):
    """Behaviour that asyncio's own loop does not have."""

    def test_a_listener_closed_behind_the_server_affects_no_other(self):
        async def main():
            sock = self.bound()
            server = await self.loop.create_server(lambda: self.fail("not this one"), sock=sock)
            number = sock.fileno()
            sock.close()
            other = self.bound()
            self.assertEqual(other.fileno(), number)
            made = self.loop.create_future()
            second = await self.loop.create_server(lambda: made.set_result(None) or Recorder([]), sock=other)
            with socket.create_connection(other.getsockname()):
                await made
            second.close()
            del server

        self.run_main(main())


    def test_another_thread_may_write(self):
        async def main():
            read, write = os.pipe()
            received = []
            reader, _ = await self.loop.connect_read_pipe(lambda: Recorder(received), os.fdopen(read, "rb", 0))
            writer, _ = await self.loop.connect_write_pipe(asyncio.Protocol, os.fdopen(write, "wb", 0))
            await asyncio.to_thread(writer.write, bytearray(b"from a thread"))
            await until(lambda: b"from a thread" in received)
            writer.close()
            reader.close()
            events = []
            transport, _ = await self.loop.create_datagram_endpoint(
                lambda: Events(events), local_addr=("127.0.0.1", 0)
            )
            ours = transport.get_extra_info("sockname")
            await asyncio.to_thread(transport.sendto, b"from a thread", ours)
            await until(lambda: (b"from a thread", ours) in events)
            transport.close()
            await asyncio.sleep(0.01)

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_transports_may_be_finalized_by_another_thread(self):
        async def main():
            for _ in range(5):
                read, write = os.pipe()
                reader, protocol = await self.loop.connect_read_pipe(lambda: Recorder([]), os.fdopen(read, "rb", 0))
                reader.pause_reading()
                events = []
                transport, _ = await self.loop.create_datagram_endpoint(
                    lambda: Events(events), local_addr=("127.0.0.1", 0)
                )
                await asyncio.sleep(0)
                self.loop._remove_reader(transport.get_extra_info("socket").fileno())
                protocol.transport = _.transport = protocol = _ = None
                both = [reader, transport]
                reader = transport = None

                def finalize():
                    both.clear()
                    gc.collect()

                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    await asyncio.to_thread(finalize)
                with self.assertRaises(OSError):
                    os.fstat(read)
                os.close(write)
                await asyncio.sleep(0.01)

        self.run_main(main())
        self.assertEqual(self.errors, [])


class Made(asyncio.Protocol):
    def __init__(self, future):
        self.future = future

    def connection_made(self, transport):
        self.future.set_result(transport)


if __name__ == "__main__":
    unittest.main()
