"""Shared by tests of the loop and of sockets."""

import asyncio
import socket
import time
import unittest

import pelton

DEADLINE = 10


class LoopTestCase(unittest.TestCase):
    def setUp(self):
        self.loop = pelton.new_event_loop()
        self.addCleanup(self.loop.close)
        # Even in development mode: in debug mode, some operations take another path.
        self.loop.set_debug(False)
        self.errors = []
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))

    def turn(self):
        """Run the loop for one turn."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def run_until(self, condition):
        end = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), end, "nothing happened")
            self.turn()

    def run_main(self, main):
        return self.loop.run_until_complete(asyncio.wait_for(main, DEADLINE))


class SocketTestCase(LoopTestCase):
    def pair(self):
        one, other = socket.socketpair()
        for sock in (one, other):
            sock.setblocking(False)
            self.addCleanup(sock.close)
        return one, other

    def pair_with(self, number):
        """Return a pair whose first socket has this free number; lower numbers may be free too."""
        while True:
            pair = self.pair()
            if number in [sock.fileno() for sock in pair]:
                return sorted(pair, key=lambda sock: sock.fileno() != number)

    async def soon(self, condition):
        """Wait for a condition that is about to hold."""
        end = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), end, "nothing happened")
            await asyncio.sleep(0)
