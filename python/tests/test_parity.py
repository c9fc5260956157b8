"""What programs see alike on both loops: every test runs on asyncio's own loop, too."""

import asyncio
import socket
import unittest

import pelton

DEADLINE = 10


class BothLoops:
    """What tests for both loops have in common; ``on_both_loops`` makes test cases of them."""

    def setUp(self):
        self.loop = self.new_loop()
        self.addCleanup(self.loop.close)
        # Also where Python is told to be careful: in debug mode, pelton goes asyncio's way.
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


def on_both_loops(cls):
    """Make a test case for each loop of a class of tests."""
    for suffix, new_loop in ("OnAsyncio", asyncio.SelectorEventLoop), ("OnPelton", pelton.new_event_loop):
        name = cls.__name__ + suffix
        body = {"new_loop": staticmethod(new_loop), "__module__": __name__}
        globals()[name] = type(name, (cls, BothLoops, unittest.TestCase), body)
    return cls


class Recorder(asyncio.Protocol):
    """Notes down what happens to it."""

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


@on_both_loops
class Order:
    def test_data_that_waits_comes_before_callbacks_scheduled_after_connecting(self):
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

    def test_every_turn_looks_at_descriptors_while_callbacks_wait(self):
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
        # A turn polls first and then calls: what the first of five turns sends is found in the second, after its callback.
        self.assertEqual(seen, list(range(2, 100, 5)))

    def test_room_to_write_is_seen_in_the_next_turn(self):
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


if __name__ == "__main__":
    unittest.main()
