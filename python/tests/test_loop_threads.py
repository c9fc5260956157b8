"""The loop with other threads, signals and forks."""

import asyncio
import functools
import os
import signal
import socket
import threading
import time
import unittest

from support import DEADLINE, LoopTestCase


class Threads(LoopTestCase):
    def test_a_post_wakes_a_sleeping_loop(self):
        def post():
            end = time.monotonic() + DEADLINE
            while not self.loop.stats()["sleeps"] and time.monotonic() < end:
                time.sleep(0.001)
            self.loop.call_soon_threadsafe(self.loop.stop)

        thread = threading.Thread(target=post)
        guard = self.loop.call_later(DEADLINE, self.loop.stop)
        start = time.monotonic()
        thread.start()
        self.loop.run_forever()
        thread.join()
        guard.cancel()
        self.assertLess(time.monotonic() - start, DEADLINE / 2)
        self.assertEqual(self.loop.stats()["posts"], 1)

    def test_many_threads_post_at_once(self):
        each, threads, called = 2000, 4, []

        def post(name):
            for number in range(each):
                self.loop.call_soon_threadsafe(called.append, (name, number))

        running = [threading.Thread(target=post, args=(name,)) for name in range(threads)]
        for thread in running:
            thread.start()
        self.loop.call_later(DEADLINE, self.loop.stop)
        self.run_until(lambda: len(called) == each * threads)
        for thread in running:
            thread.join()
        for name in range(threads):
            self.assertEqual([number for which, number in called if which == name], list(range(each)))

    def test_a_descriptor_can_be_added_by_another_thread_while_the_loop_sleeps(self):
        one, other = socket.socketpair()
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        other.send(b"x")
        called = []

        def readable():
            called.append(one.recv(1))
            self.loop.remove_reader(one)
            self.loop.stop()

        def add():
            end = time.monotonic() + DEADLINE
            while not self.loop.stats()["sleeps"] and time.monotonic() < end:
                time.sleep(0.001)
            self.loop.add_reader(one, readable)

        thread = threading.Thread(target=add)
        guard = self.loop.call_later(DEADLINE, self.loop.stop)
        thread.start()
        self.loop.run_forever()
        thread.join()
        guard.cancel()
        self.assertEqual(called, [b"x"])

    def test_a_descriptor_can_be_added_by_another_thread_while_callbacks_run(self):
        one, other = socket.socketpair()
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        other.send(b"x")
        called = []

        def readable():
            called.append(one.recv(1))
            self.loop.remove_reader(one)
            self.loop.stop()

        def wait_for_thread():
            thread.start()
            thread.join(DEADLINE)
            # It has been told of, though not yet the reactor, which this thread turns.
            self.assertIn(one.fileno(), self.loop._watched_descriptors())

        thread = threading.Thread(target=self.loop.add_reader, args=(one, readable))
        guard = self.loop.call_later(DEADLINE, self.loop.stop)
        self.loop.call_soon(wait_for_thread)
        self.loop.run_forever()
        guard.cancel()
        self.assertEqual(called, [b"x"])
        self.assertEqual(self.errors, [])

    def test_a_loop_that_runs_callbacks_in_one_thread_cannot_be_turned_or_closed_by_another(self):
        caught = []

        def disturb():
            for call in (self.loop._run_once, self.loop._close_core, self.loop.run_forever, self.loop.close):
                try:
                    call()
                except RuntimeError as error:
                    caught.append(str(error))

        def callback():
            thread.start()
            thread.join(DEADLINE)

        thread = threading.Thread(target=disturb)
        self.loop.call_soon(callback)
        self.turn()
        self.assertEqual(len(caught), 4)
        self.assertEqual(self.errors, [])

    def test_a_loop_runs_on_another_thread_than_the_one_that_created_it(self):
        results = []
        thread = threading.Thread(target=lambda: results.append(self.run_main(asyncio.sleep(0.01, "there"))))
        thread.start()
        thread.join(DEADLINE)
        self.assertEqual(results, ["there"])

    def test_a_sleeping_loop_cannot_be_run_or_closed_by_another_thread(self):
        caught = []

        def disturb():
            end = time.monotonic() + DEADLINE
            while not self.loop.stats()["sleeps"] and time.monotonic() < end:
                time.sleep(0.001)
            for call in (self.loop._run_once, self.loop._close_core, self.loop.run_forever, self.loop.close):
                try:
                    call()
                except RuntimeError as error:
                    caught.append(str(error))
            self.loop.call_soon_threadsafe(self.loop.stop)

        thread = threading.Thread(target=disturb)
        thread.start()
        self.loop.run_forever()
        thread.join()
        self.assertEqual(len(caught), 4)

    def test_debug_mode_refuses_other_threads(self):
        self.loop.set_debug(True)
        caught = []

        def call():
            try:
                self.loop.call_soon(print)
            except RuntimeError as error:
                caught.append(error)
            self.loop.call_soon_threadsafe(self.loop.stop)

        thread = threading.Thread(target=call)
        self.loop.call_soon(thread.start)
        self.loop.run_forever()
        thread.join()
        self.assertRegex(str(caught[0]), "Non-thread-safe")

    def test_callbacks_that_never_release_the_lock_do_not_starve_other_threads(self):
        # Each call schedules the next, all in C.
        forever = functools.partial(self.loop.call_soon)
        forever.__setstate__((self.loop.call_soon, (forever,), {}, {}))
        self.addCleanup(forever.__setstate__, (int, (), {}, {}))
        self.loop.call_soon(forever)

        def stop():
            # It needs the lock each time it wakes up.
            for _ in range(10):
                time.sleep(0.01)
            self.loop.call_soon_threadsafe(self.loop.stop)

        thread = threading.Thread(target=stop)
        self.loop.call_soon(thread.start)
        guard = self.loop.call_later(DEADLINE, self.loop.stop)
        start = time.monotonic()
        self.loop.run_forever()
        thread.join()
        guard.cancel()
        self.assertLess(time.monotonic() - start, DEADLINE / 2)


class Signals(LoopTestCase):
    def interrupt_when_asleep(self):
        def kill():
            end = time.monotonic() + DEADLINE
            while not self.loop.stats()["sleeps"] and time.monotonic() < end:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=kill)
        thread.start()
        self.addCleanup(thread.join)

    def test_an_interrupt_ends_the_run_of_a_sleeping_loop(self):
        self.interrupt_when_asleep()
        guard = self.loop.call_later(DEADLINE, self.loop.stop)
        with self.assertRaises(KeyboardInterrupt):
            self.loop.run_forever()
        guard.cancel()
        self.assertEqual(self.run_main(asyncio.sleep(0, "goes on")), "goes on")

    def test_a_handler_on_the_loop(self):
        called = []

        def handler(argument):
            called.append(argument)
            self.loop.stop()

        self.loop.add_signal_handler(signal.SIGINT, handler, "interrupted")
        self.interrupt_when_asleep()
        guard = self.loop.call_later(DEADLINE, self.loop.stop)
        self.loop.run_forever()
        guard.cancel()
        self.assertEqual(called, ["interrupted"])
        self.assertTrue(self.loop.remove_signal_handler(signal.SIGINT))

    def test_an_existing_wakeup_descriptor_is_kept(self):
        one, other = socket.socketpair()
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        one.setblocking(False)
        signal.set_wakeup_fd(one.fileno())
        self.addCleanup(signal.set_wakeup_fd, -1)
        self.turn()
        self.assertEqual(signal.set_wakeup_fd(one.fileno()), one.fileno())


class Forks(LoopTestCase):
    def test_a_child_that_uses_its_parents_loop_does_not_disturb_the_parent(self):
        one, other = socket.socketpair()
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        received = []
        self.loop.add_reader(one, lambda: received.append(one.recv(1)))
        self.turn()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                self.loop.remove_reader(one)
                signal.alarm(DEADLINE)
                self.loop.run_until_complete(asyncio.sleep(0.01))
                # The other thread must wake this process's loop, not the parent's.
                self.loop.run_until_complete(self.loop.run_in_executor(None, time.sleep, 0.01))
                self.loop.close()
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        other.send(b"x")
        self.run_until(lambda: received)
        self.assertEqual(received, [b"x"])


    def test_a_child_forked_inside_of_a_callback_can_go_on_with_the_loop(self):
        one, other = socket.socketpair()
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        received, forked = [], []

        def fork():
            forked.append(os.fork())
            if forked[0] == 0:
                signal.alarm(DEADLINE)
                # Its own registration, which the parent does not get.
                self.loop.add_reader(one, lambda: received.append("child"))
                self.loop.call_later(0.01, self.loop.stop)
            else:
                self.loop.stop()

        self.loop.call_soon(fork)
        self.loop.run_forever()
        if forked[0] == 0:
            status = 1
            try:
                other.send(b"x")
                self.run_until(lambda: received)
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]), 0)
        self.assertNotIn(one.fileno(), self.loop._watched_descriptors())
        self.loop.add_reader(one, lambda: received.append(one.recv(1)))
        self.run_until(lambda: received)
        self.assertEqual(received, [b"x"])


if __name__ == "__main__":
    unittest.main()
