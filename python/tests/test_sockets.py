"""Descriptors, sockets and datagram transports."""

import asyncio
import os
import socket
import tempfile
import unittest

from support import DEADLINE, SocketTestCase


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

    def test_callbacks_cost_no_poll_unless_something_is_watched(self):
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

    def test_a_second_reader_replaces_the_first(self):
        one, other = self.pair()
        called = []
        self.loop.add_reader(one, called.append, "first")
        self.loop.add_reader(one, called.append, "second")
        other.send(b"x")
        self.turn()
        self.assertEqual(called, ["second"])
        self.loop.remove_reader(one)

    def test_unwatchable_files_are_refused_with_the_systems_error(self):
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

    def test_a_reused_descriptor_number_can_be_watched(self):
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

    def test_a_reader_of_a_closed_socket_can_be_removed(self):
        one, other = self.pair()
        self.loop.add_reader(one, self.fail)
        self.loop.add_writer(other, self.fail)
        one.close()
        other.close()
        self.assertTrue(self.loop.remove_reader(one))
        self.assertTrue(self.loop.remove_writer(other))
        self.assertRaisesRegex(ValueError, "Invalid file descriptor: -1", self.loop.remove_reader, one)

    def test_a_closed_socket_does_not_affect_a_file_with_the_same_number(self):
        one, _ = self.pair()
        self.loop.add_reader(one, self.fail)
        number = one.fileno()
        one.close()
        again, _ = self.pair_with(number)
        self.loop.add_reader(number, self.fail)
        self.assertRaisesRegex(ValueError, "Invalid file descriptor: -1", self.loop.remove_reader, one)
        self.assertTrue(self.loop.remove_reader(again))

    def test_the_selector_reports_watched_descriptors(self):
        one, _ = self.pair()
        selector = self.loop._selector
        self.assertRaises(KeyError, selector.get_key, one)
        self.loop.add_reader(one, print)
        self.assertEqual(selector.get_key(one).events, 1)
        self.assertIn(one.fileno(), selector.get_map())
        self.assertRaises(NotImplementedError, selector.select, 0)
        self.loop.remove_reader(one)


class RawSockets(SocketTestCase):
    def test_receiving_waits_and_the_socket_stays_watched(self):
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
                # Once more while it is watched for the next receive.
                receiving = asyncio.ensure_future(self.loop.sock_recv(one, 100))
                await asyncio.sleep(0)
                other.send(b"next")
                self.assertEqual(await receiving, b"next")

        self.run_main(main())

    def test_receiving_from_a_socket_that_reuses_the_number_of_a_closed_one(self):
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
            # Not all are the same if garbage of another test is collected meanwhile and frees a lower number.
            self.assertLess(len(numbers), 5, "the numbers were not reused")

        self.run_main(main())

    def test_a_watched_socket_can_be_passed_to_a_reader_or_a_transport(self):
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

    def test_data_that_nothing_receives_does_not_keep_the_loop_busy(self):
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

    def test_sending_more_than_the_socket_accepts(self):
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

    def test_datagrams_are_sent_and_received(self):
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

    def test_a_connected_socket_only_sends_to_its_peer(self):
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

    def test_errors_are_reported_and_the_socket_keeps_working(self):
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

    def test_closing_while_more_datagrams_are_pending(self):
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
