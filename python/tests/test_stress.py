"""The loop under stress: threads that post, cancel and close while it runs, and peers that reset connections."""

import asyncio
import concurrent.futures
import gc
import os
import random
import socket
import threading
import time
import unittest

import pelton
from support import LoopTestCase

DEADLINE = 60
THREADS = 6


class StressTestCase(LoopTestCase):
    def run_main(self, main):
        return self.loop.run_until_complete(asyncio.wait_for(main, DEADLINE))

    def threads(self, body, count=THREADS):
        """Start threads that run body(number). Return a function that joins them and fails if one has failed."""
        pool = concurrent.futures.ThreadPoolExecutor(count)
        self.addCleanup(pool.shutdown)
        running = [pool.submit(body, number) for number in range(count)]

        def join():
            for one in running:
                one.result(DEADLINE)

        return join


class Posting(StressTestCase):
    def test_posted_callbacks_run_once_in_order_and_cancelled_ones_never(self):
        each = 5_000
        ran = [[] for _ in range(THREADS)]
        refused = [set() for _ in range(THREADS)]

        def post(number):
            dice = random.Random(number)
            waiting = []
            for index in range(each):
                waiting.append((index, self.loop.call_soon_threadsafe(ran[number].append, index)))
                if dice.random() < 0.3:
                    chosen, handle = waiting.pop(dice.randrange(len(waiting)))
                    handle.cancel()
                    # It may have run by then. If it has not run now, it never will.
                    refused[number].add((chosen, len(ran[number])))

        join = self.threads(post)

        async def main():
            await self.loop.run_in_executor(None, join)
            # Everything posted before this runs before this.
            done = self.loop.create_future()
            self.loop.call_soon_threadsafe(done.set_result, None)
            await done

        self.run_main(main())
        for number in range(THREADS):
            self.assertEqual(ran[number], sorted(set(ran[number])), "in order and without duplicates")
            cancelled = {index for index, _ in refused[number]}
            self.assertLessEqual(set(range(each)) - cancelled, set(ran[number]), "callbacks that were not cancelled have run")
            for index, so_far in refused[number]:
                self.assertNotIn(index, ran[number][so_far:], "it was cancelled before it ran")
        self.assertEqual(self.errors, [])

    def test_posting_to_a_closing_loop_either_fails_or_returns_a_handle(self):
        for _ in range(30):
            loop = pelton.new_event_loop()
            # In debug mode a call takes longer than a post, so a turn would find ever more callbacks in the queue.
            loop.set_debug(False)
            started = threading.Barrier(THREADS + 1)

            def post(_number, loop=loop, started=started):
                started.wait(DEADLINE)
                end = time.monotonic() + DEADLINE
                while time.monotonic() < end:
                    try:
                        loop.call_soon_threadsafe(int)
                        loop.call_soon_threadsafe(loop.call_later, 60, int)
                    except RuntimeError as error:
                        self.assertEqual(str(error), "Event loop is closed")
                        return
                self.fail("the loop was never closed")

            join = self.threads(post)
            started.wait(DEADLINE)
            loop.run_until_complete(asyncio.sleep(0.002))
            loop.close()
            join()

    def test_many_loops_at_once(self):
        async def ring(loop):
            """Use tasks, timers, sockets and the executor."""
            one, other = socket.socketpair()
            with one, other:
                one.setblocking(False)
                other.setblocking(False)
                for number in range(20):
                    await loop.sock_sendall(one, b"%d" % number)
                    self.assertEqual(await loop.sock_recv(other, 100), b"%d" % number)
                    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0.0001), asyncio.to_thread(int))

        def live(_number):
            for _ in range(10):
                loop = pelton.new_event_loop()
                try:
                    loop.run_until_complete(asyncio.wait_for(ring(loop), DEADLINE))
                    loop.run_until_complete(loop.shutdown_default_executor())
                finally:
                    loop.close()

        self.threads(live)()

    def test_coroutines_from_threads_some_of_which_are_cancelled(self):
        outcomes = []

        async def work(number):
            await asyncio.sleep(0.0001 * (number % 3))
            return number

        def ask(thread):
            for number in range(300):
                future = asyncio.run_coroutine_threadsafe(work(number), self.loop)
                if number % 4 == thread % 4:
                    future.cancel()
                try:
                    outcomes.append(future.result(DEADLINE) == number)
                except concurrent.futures.CancelledError:
                    outcomes.append(number % 4 == thread % 4)

        async def main():
            await self.loop.run_in_executor(None, self.threads(ask))

        self.run_main(main())
        self.assertEqual(len(outcomes), THREADS * 300)
        self.assertTrue(all(outcomes))
        self.assertEqual(self.errors, [])

    def test_the_garbage_collector_may_run_in_any_thread_at_any_time(self):
        stop = threading.Event()

        def collect(_number):
            while not stop.is_set():
                gc.collect()

        join = self.threads(collect, 2)

        async def main():
            class Holder:
                pass

            for _ in range(300):
                holder = Holder()
                # A cycle through a handle, and one through a future.
                holder.handle = self.loop.call_later(60, print, holder)
                holder.future = self.loop.create_future()
                holder.future.add_done_callback(lambda _, holder=holder: holder)
                holder.handle.cancel()
                await asyncio.gather(*[asyncio.sleep(0) for _ in range(10)])

        try:
            self.run_main(main())
        finally:
            stop.set()
        join()


class Breaking(StressTestCase):
    """Connections that threads abort while the loop serves them."""

    def test_transports_are_aborted_and_closed_by_others_under_traffic(self):
        made, lost = [], []

        class Server(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport
                made.append(transport)

            def data_received(self, data):
                self.transport.write(data)

            def connection_lost(self, exc):
                lost.append(exc)

        async def main():
            server = await self.loop.create_server(Server, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            talking = [True]

            def talk(number):
                dice = random.Random(number)
                for _ in range(60):
                    with socket.create_connection(address, DEADLINE) as sock:
                        sock.settimeout(DEADLINE)
                        if dice.random() < 0.5:
                            # A reset instead of an orderly end.
                            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                        try:
                            for _ in range(dice.randrange(5)):
                                sock.sendall(bytes(dice.randrange(1, 200_000)))
                                sock.recv(dice.randrange(1, 100_000))
                        except OSError:
                            # Aborted by the other side.
                            pass

            def break_off(number):
                dice = random.Random(number)
                while talking[0]:
                    if made:
                        transport = dice.choice(made)
                        how = dice.choice((transport.abort, transport.close, transport.pause_reading))
                        self.loop.call_soon_threadsafe(how)
                        if how == transport.pause_reading:
                            self.loop.call_soon_threadsafe(transport.resume_reading)
                    time.sleep(0.0005)

            breaking = self.threads(break_off, 2)
            await self.loop.run_in_executor(None, self.threads(talk))
            talking[0] = False
            await self.loop.run_in_executor(None, breaking)
            server.close()
            for transport in made:
                transport.abort()
            while len(lost) < len(made):
                await asyncio.sleep(0.001)

        self.run_main(main())
        self.assertEqual((len(made), len(lost)), (THREADS * 60, THREADS * 60), "each connection was lost once")
        self.assertEqual([error for error in self.errors if not isinstance(error.get("exception"), OSError)], [])

    def test_cancelled_connects_and_receives_leave_nothing_behind(self):
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
        dice = random.Random(1)

        async def connect(address):
            transport, _ = await self.loop.create_connection(asyncio.Protocol, *address)
            transport.abort()

        async def receive(sock):
            await self.loop.sock_recv(sock, 10)

        async def main():
            server = await self.loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            one, other = socket.socketpair()
            one.setblocking(False)
            with one, other:
                for _ in range(400):
                    tasks = [asyncio.ensure_future(connect(address)), asyncio.ensure_future(receive(one))]
                    for _ in range(dice.randrange(6)):
                        await asyncio.sleep(0)
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                other.send(b"intact")
                self.assertEqual(await self.loop.sock_recv(one, 10), b"intact")
            server.close()
            await asyncio.sleep(0.01)

        self.run_main(main())
        self.assertEqual(self.errors, [])
        gc.collect()
        if before is not None:
            self.assertLessEqual(len(os.listdir("/proc/self/fd")), before)


if __name__ == "__main__":
    unittest.main()
