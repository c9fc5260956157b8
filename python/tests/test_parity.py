"""Behaviour that programs observe on both loops: every test also runs on asyncio's own loop."""

import asyncio
import errno
import os
import resource
import socket
import sys
import unittest
import warnings
from unittest import mock

from both_loops import Recorder, on_both_loops


@on_both_loops
class Order:
    def test_pending_data_is_delivered_before_callbacks_scheduled_after_connecting(self):
        async def main():
            for _ in range(20):
                one, other = socket.socketpair()
                one.setblocking(False)
                with other:
                    other.send(b"x")
                    events = []
                    transport, _ = await self.loop.create_connection(lambda: Recorder(events), sock=one)
                    called = self.loop.create_future()
                    self.loop.call_soon(called.set_result, None)
                    called.add_done_callback(lambda _: events.append("called"))
                    while len(events) < 3:
                        await asyncio.sleep(0)
                    self.assertEqual(events, ["made", b"x", "called"])
                    transport.abort()

        self.run_main(main())

    def test_every_turn_polls_descriptors_while_callbacks_are_queued(self):
        one, other = self.pair()
        seen = []
        turns = 0

        def step():
            nonlocal turns
            turns += 1
            if turns % 5 == 1:
                other.send(b"x")
            if turns < 100:
                self.loop.call_soon(step)
            else:
                self.loop.call_soon(self.loop.stop)

        self.loop.add_reader(one, lambda: (one.recv(1), seen.append(turns)))
        self.loop.call_soon(step)
        self.loop.run_forever()
        # A turn polls first and calls afterwards. Data sent in the first of five turns is found in the second,
        # after its callback.
        self.assertEqual(seen, list(range(2, 100, 5)))

    def test_a_writable_socket_is_detected_in_the_next_turn(self):
        one, _other = self.pair()
        events = []

        def step(count):
            events.append(count)
            if count == 3:
                self.loop.add_writer(one, write)
            self.loop.call_soon(step, count + 1) if count < 6 else self.loop.stop()

        def write():
            events.append("writable")
            self.loop.remove_writer(one)

        self.loop.call_soon(step, 0)
        self.loop.run_forever()
        self.assertEqual(events, [0, 1, 2, 3, 4, "writable", 5, 6])


@on_both_loops
class Edges:
    """Valid but rare arguments."""

    def test_receiving_zero_bytes_does_not_wait(self):
        one, other = self.pair()

        async def main():
            self.assertEqual(await self.loop.sock_recv(one, 0), b"")
            self.assertEqual(await self.loop.sock_recv_into(one, bytearray()), 0)
            # Also after a wait, which leaves the socket watched.
            receiving = self.loop.create_task(self.loop.sock_recv(one, 10))
            await asyncio.sleep(0)
            other.send(b"x")
            self.assertEqual(await receiving, b"x")
            self.assertEqual(await self.loop.sock_recv(one, 0), b"")
            self.assertEqual(await self.loop.sock_recv_into(one, bytearray()), 0)

        self.run_main(main())

    def test_a_read_only_buffer_is_a_type_error(self):
        one, other = self.pair()

        async def main():
            for _ in range(2):
                for buffer in b"read-only", "text", memoryview(b"read-only"), None:
                    with self.subTest(buffer=buffer), self.assertRaises(TypeError):
                        await self.loop.sock_recv_into(one, buffer)
                # Once more, with the socket still watched from an earlier wait.
                receiving = self.loop.create_task(self.loop.sock_recv(one, 10))
                await asyncio.sleep(0)
                other.send(b"x")
                self.assertEqual(await receiving, b"x")

        self.run_main(main())

    def test_running_out_of_descriptors_raises_oserror(self):
        spare = []
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        lowest = os.dup(0)
        os.close(lowest)
        # The number of descriptors a loop needs differs. With fewer than that, it cannot be created.
        for room in range(10):
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + room, limits[1]))
            # asyncio's own loop is then partly initialized and reports an error when it is deleted.
            with mock.patch.object(sys, "unraisablehook"), warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                try:
                    self.new_loop().close()
                    break
                except OSError as error:
                    spare.append(error.errno)
        self.assertEqual(set(spare), {errno.EMFILE})

    def test_get_extra_info_of_all_transports_can_be_replaced(self):
        one, _other = self.pair()

        async def main():
            transport, _ = await self.loop.create_connection(asyncio.Protocol, sock=one)
            for cls in asyncio.Transport, asyncio.BaseTransport:
                with mock.patch.object(cls, "get_extra_info", return_value="replaced") as replaced:
                    self.assertEqual(transport.get_extra_info("peername"), "replaced")
                    self.assertEqual(transport.get_extra_info("own", default=1), "replaced")
                    self.assertEqual(replaced.mock_calls, [mock.call("peername"), mock.call("own", default=1)])
                    # Called from C without arguments, and so without an array of them.
                    self.assertEqual(next(iter(transport.get_extra_info, None)), "replaced")
            self.assertEqual(transport.get_extra_info("own", 1), 1)
            transport.abort()

        self.run_main(main())

    def test_data_that_is_not_contiguous_ends_the_connection(self):
        one, _other = self.pair()
        events = []

        async def main():
            transport, _ = await self.loop.create_connection(lambda: Recorder(events), sock=one)
            transport.write(memoryview(bytearray(8))[::2])
            self.assertTrue(transport.is_closing())
            await asyncio.sleep(0)
            transport.write(memoryview(bytearray(8))[::2])

        self.run_main(main())
        self.assertEqual([event[1].__class__ for event in events[1:]], [BufferError])
        self.assertEqual([type(context["exception"]) for context in self.errors], [BufferError])

    def test_a_protocol_set_to_none_is_an_error_at_the_end(self):
        for end in "close", "abort":
            one, _other = self.pair()

            async def main():
                transport, _ = await self.loop.create_connection(asyncio.Protocol, sock=one)
                transport.set_protocol(None)
                getattr(transport, end)()
                while one.fileno() >= 0:
                    await asyncio.sleep(0)

            with self.subTest(end):
                self.errors.clear()
                self.run_main(main())
                self.assertEqual([type(context["exception"]) for context in self.errors], [AttributeError])


if __name__ == "__main__":
    unittest.main()
