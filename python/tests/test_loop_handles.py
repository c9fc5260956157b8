"""Timers, and the lifetime of handles."""

import asyncio
import contextvars
import functools
import gc
import math
import sys
import time
import unittest
import weakref

import pelton
from support import LoopTestCase


class Timers(LoopTestCase):
    def test_timers_fire_in_order_and_never_early(self):
        fired = []
        start = self.loop.time()
        delays = [0.03, 0.01, 0, 0.02, 0.01, -1]
        for delay in delays:
            self.loop.call_later(delay, lambda delay=delay: fired.append((delay, self.loop.time() - start)))
        self.run_until(lambda: len(fired) == len(delays))
        self.assertEqual([delay for delay, _ in fired], sorted(delays))
        for delay, elapsed in fired:
            self.assertGreaterEqual(elapsed, delay)

    def test_odd_times(self):
        fired = []
        self.loop.call_later(math.nan, fired.append, "nan")
        self.loop.call_at(0, fired.append, "int")
        self.loop.call_at(-math.inf, fired.append, "past")
        never = self.loop.call_later(math.inf, fired.append, "never")
        far = self.loop.call_later(10**12, fired.append, "far")
        self.run_until(lambda: len(fired) == 3)
        self.assertEqual(set(fired), {"nan", "int", "past"})
        self.assertEqual(never.when(), math.inf)
        self.assertEqual(self.loop._scheduled, [far, never])

    def test_when_returns_the_given_time(self):
        self.assertEqual(repr(self.loop.call_at(5, print).when()), "5")
        now = self.loop.time()
        self.assertAlmostEqual(self.loop.call_later(60, print).when(), now + 60, delta=5)

    def test_cancelling_releases_everything_at_once(self):
        class Callback:
            def __call__(self):
                pass

        callback = Callback()
        gone = weakref.ref(callback)
        handle = self.loop.call_later(3600, callback)
        del callback
        self.assertIsNotNone(gone())
        handle.cancel()
        self.assertIsNone(gone())
        self.assertEqual(self.loop.stats()["timers_waiting"], 0)

    def test_a_timer_cancelled_by_one_of_the_same_turn_does_not_fire(self):
        fired = []
        when = self.loop.time()
        self.loop.call_at(when, lambda: second.cancel())
        second = self.loop.call_at(when, fired.append, 1)
        self.turn()
        self.turn()
        self.assertEqual(fired, [])

    def test_a_sleeping_loop_uses_no_processor_time(self):
        before = time.process_time()
        self.loop.call_later(0.5, self.loop.stop)
        self.loop.run_forever()
        self.assertLess(time.process_time() - before, 0.1)


class Handles(LoopTestCase):
    def test_handles_are_instances_of_asyncios_classes(self):
        self.assertIsInstance(self.loop.call_soon(print), asyncio.Handle)
        timer = self.loop.call_later(1, print)
        self.assertIsInstance(timer, asyncio.TimerHandle)
        self.assertLess(timer, self.loop.call_at(timer.when() + 1, print))
        self.assertEqual(timer, timer)
        self.assertEqual(hash(timer), hash(timer.when()))
        self.assertRaises(TypeError, pelton.Handle)

    def test_attributes_that_tools_read(self):
        context = contextvars.copy_context()
        handle = self.loop.call_soon(print, 1, 2, context=context)
        self.assertEqual((handle._callback, handle._args, handle._loop), (print, (1, 2), self.loop))
        self.assertIs(handle._context, context)
        self.assertEqual(repr(handle), repr(asyncio.Handle(print, (1, 2), self.loop)))
        handle.cancel()
        self.assertEqual((handle._callback, handle._args, handle._cancelled), (None, None, True))

    def test_debug_mode_records_where_a_handle_was_created(self):
        self.loop.set_debug(True)
        handle = self.loop.call_soon(print)
        self.assertIn("test_debug_mode_records", handle._source_traceback[-1].line + str(handle._source_traceback))
        self.assertIn(__file__, repr(handle))
        handle.cancel()
        self.assertIn("print()", repr(handle))

    def test_handles_support_weak_references(self):
        handle = self.loop.call_soon(int)
        reference = weakref.ref(handle)
        del handle
        self.assertIsNotNone(reference())
        self.turn()
        self.assertIsNone(reference())
        # Its memory may be reused for one of the next handles, which the reference must not lead to.
        _others = [self.loop.call_soon(int) for _ in range(10)]
        self.assertIsNone(reference())

    def test_a_handle_in_a_cycle_is_collected_after_it_ran_was_cancelled_or_the_loop_closed(self):
        class Owner:
            def call(self):
                pass

        def make(schedule):
            owner = Owner()
            owner.handle = schedule(owner.call)
            return weakref.ref(owner)

        ran = make(self.loop.call_soon)
        self.turn()
        cancelled = make(functools.partial(self.loop.call_later, 60))
        cancelled().handle.cancel()
        waiting = make(functools.partial(self.loop.call_later, 60))
        gc.collect()
        self.assertEqual([ran(), cancelled()], [None, None])
        self.assertIsNotNone(waiting())
        self.loop.close()
        gc.collect()
        self.assertIsNone(waiting())

    def test_an_unreferenced_loop_is_collected_with_its_queue(self):
        class Callback:
            def __init__(self, loop):
                self.loop = loop

            def __call__(self):
                pass

        loop = pelton.new_event_loop()
        soon, later = Callback(loop), Callback(loop)
        loop.call_soon(soon)
        loop.call_later(60, later)
        references = [weakref.ref(each) for each in (loop, soon, later)]
        del loop, soon, later
        with self.assertWarnsRegex(ResourceWarning, "unclosed event loop"):
            gc.collect()
        self.assertEqual([reference() for reference in references], [None] * 3)

    def test_a_long_chain_of_handles_is_freed_without_exhausting_the_stack(self):
        for schedule in (self.loop.call_soon, functools.partial(self.loop.call_later, 60)):
            handle = None
            for _ in range(200_000):
                handle = schedule(print, handle)
        self.loop.close()
        del handle

    def test_a_hundred_thousand_callbacks_leave_nothing_behind(self):
        def callback(*_args):
            pass

        argument = object()
        self.turn()
        before = sys.getrefcount(callback), sys.getrefcount(argument), sys.getrefcount(self.loop)
        for _ in range(100):
            for count in range(1000):
                self.loop.call_soon(callback, *[argument] * (count % 5))
                self.loop.call_later(0, callback, argument)
                self.loop.call_later(60, callback, argument).cancel()
            self.turn()
        self.run_until(lambda: not self.loop._scheduled)
        self.turn()
        gc.collect()
        after = sys.getrefcount(callback), sys.getrefcount(argument), sys.getrefcount(self.loop)
        self.assertEqual(after, before)


if __name__ == "__main__":
    unittest.main()
