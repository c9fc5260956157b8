"""greenlet: other stacks on the thread of a loop, which are copied away while they wait.

SQLAlchemy runs its drivers in greenlets inside coroutines. Other programs run the whole loop in one, and switch out of it
in a callback.
"""

import asyncio
import socket

import greenlet
import pelton
from on_pelton import ProgramTestCase


def overwrite_the_stack(act, depth=60):
    """Calls act below many frames in C, so that whatever had been on the stack there is overwritten."""
    if not depth:
        return act()
    return min([0], key=lambda _: (overwrite_the_stack(act, depth - 1), 0)[1])


class Switching(ProgramTestCase):
    def test_a_loop_in_a_greenlet_is_used_by_another_one(self):
        main = greenlet.getcurrent()
        loop = pelton.new_event_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        seen = []

        def run():
            loop.call_soon(lambda: (main.switch("out"), seen.append("back")))
            loop.run_forever()
            return "ended"

        def act():
            self.assertTrue(loop.is_running())
            for _ in range(100):
                loop.add_reader(ours, print)
                loop.remove_reader(ours)
            loop.add_reader(ours, lambda: (seen.append(ours.recv(9)), loop.stop()))
            loop.call_soon(seen.append, "queued")
            other = pelton.new_event_loop()
            with self.assertRaisesRegex(RuntimeError, "while another loop is running"):
                other.run_forever()
            other.close()

        inside = greenlet.greenlet(run)
        self.assertEqual(inside.switch(), "out")
        overwrite_the_stack(act)
        theirs.send(b"hello")
        self.assertEqual(inside.switch(), "ended")
        self.assertEqual(seen, ["back", "queued", b"hello"])
        loop.remove_reader(ours)
        loop.close()
        ours.close()
        theirs.close()

    def test_loops_in_greenlets_end_in_any_order(self):
        main = greenlet.getcurrent()
        loops = [pelton.new_event_loop() for _ in range(6)]
        set_running = asyncio._set_running_loop

        def run(loop):
            loop.call_soon(main.switch)
            loop.call_soon(loop.stop)
            loop.run_forever()
            return "ended"

        greenlets = [greenlet.greenlet(run) for _ in loops]
        for inside, loop in zip(greenlets, loops):
            inside.switch(loop)
            # Programs that do this keep the running loop per greenlet.
            set_running(None)
        for index in (2, 0, 5, 1, 4, 3):
            set_running(loops[index])
            self.assertEqual(greenlets[index].switch(), "ended")
            set_running(None)
        for loop in loops:
            loop.call_soon(loop.stop)
            loop.run_forever()
            loop.close()

    def test_a_greenlet_awaits_inside_a_coroutine(self):
        # How SQLAlchemy runs drivers: the greenlet hands each awaitable to the coroutine that has started it.
        async def in_greenlet(function):
            inside = greenlet.greenlet(function)
            awaited = inside.switch()
            while not inside.dead:
                awaited = inside.switch(await awaited)
            return awaited

        def driver():
            parent = greenlet.getcurrent().parent
            total = 0
            for number in range(50):
                total += parent.switch(asyncio.sleep(0, number))
            reader, writer = parent.switch(asyncio.open_connection(*address))
            writer.write(b"ping")
            answer = parent.switch(reader.readexactly(4))
            writer.close()
            parent.switch(writer.wait_closed())
            return total, answer

        async def echo(reader, writer):
            writer.write(await reader.readexactly(4))
            writer.close()

        async def main():
            nonlocal address
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()[:2]
            answers = await asyncio.gather(*(in_greenlet(driver) for _ in range(20)))
            server.close()
            await server.wait_closed()
            return answers

        address = None
        self.assertEqual(self.run_on_pelton(main), [(1225, b"ping")] * 20)

