"""Contexts of callbacks: that contexts are copied late and reused must not be observable.

Every test also runs on asyncio's own loop, which creates one for each handle.
"""

import asyncio
import contextvars
import gc
import itertools
import os
import threading
import time
import unittest
import weakref

import pelton

DEADLINE = 10

variable = contextvars.ContextVar("variable", default="unset")
other = contextvars.ContextVar("other", default=0)


class Contexts:
    def setUp(self):
        self.loop = self.new_loop()
        self.addCleanup(self.loop.close)
        self.loop.set_debug(False)

    def turn(self):
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def test_callbacks_do_not_see_variables_set_by_each_other(self):
        seen = []

        def callback(number):
            seen.append(variable.get())
            if number % 2:
                variable.set(number)

        for number in range(6):
            self.loop.call_soon(callback, number)
        self.loop.call_later(0, callback, 6)
        while len(seen) < 7:
            self.turn()
        self.assertEqual(seen, ["unset"] * 7)

    def test_a_variable_set_between_two_calls_is_seen_only_by_the_second(self):
        seen = []

        def schedule():
            self.loop.call_soon(lambda: seen.append(variable.get()))
            variable.set("first")
            self.loop.call_soon(lambda: seen.append(variable.get()))
            self.loop.call_later(0, lambda: seen.append(variable.get()))
            variable.set("second")
            self.loop.call_soon(lambda: seen.append(variable.get()))

        self.loop.call_soon(schedule)
        while len(seen) < 4:
            self.turn()
        self.assertEqual(sorted(seen), ["first", "first", "second", "unset"])
        self.assertEqual(variable.get(), "unset")

    def test_callbacks_pass_their_variables_to_callbacks_they_schedule(self):
        seen = []

        def step(number):
            seen.append(other.get())
            if number % 3 == 0:
                other.set(number)
            if number < 10:
                self.loop.call_soon(step, number + 1)

        self.loop.call_soon(step, 1)
        while len(seen) < 10:
            self.turn()
        self.assertEqual(seen, [0, 0, 0, 3, 3, 3, 6, 6, 6, 9])
        self.assertEqual(other.get(), 0)

    def test_a_token_is_only_valid_in_its_own_context(self):
        tokens = []
        seen = []

        def take():
            tokens.append(variable.set("first"))
            tokens.append(variable.set("second"))
            # Now there are no variables again, as at the start, and one token is left.
            variable.reset(tokens[0])

        def give_back():
            try:
                variable.reset(tokens[1])
            except ValueError:
                seen.append("another context's")
            seen.append(variable.get())

        def schedule():
            self.loop.call_soon(take)
            self.loop.call_soon(give_back)

        contextvars.Context().run(schedule)
        self.turn()
        self.assertEqual(seen, ["another context's", "unset"])

    def test_a_handle_has_the_context_it_was_called_in(self):
        handles = []

        def callback():
            variable.set("set by it")
            during.append(handles[0].get_context() if self.has_get_context else handles[0]._context)

        during = []
        handles.append(self.loop.call_soon(callback))
        handles.append(self.loop.call_soon(lambda: None))
        self.turn()
        contexts = [handle._context for handle in handles]
        self.assertIs(during[0], contexts[0])
        self.assertEqual(contexts[0][variable], "set by it")
        self.assertNotIn(variable, contexts[1])
        self.assertIsNot(contexts[0], contexts[1])

    def test_the_reported_context_is_the_one_that_is_run_in(self):
        def callback():
            seen.append(variable.get())

        seen = []
        handles = [self.loop.call_soon(callback) for _ in range(3)]
        handles[1]._context.run(variable.set, "set from outside")
        self.assertIs(handles[1]._context, handles[1]._context)
        self.assertEqual(len({id(handle._context) for handle in handles}), 3)
        self.turn()
        self.assertEqual(seen, ["unset", "set from outside", "unset"])

    def test_a_context_kept_by_the_program_is_not_reused(self):
        def callback():
            seen.append(variable.get())

        seen = []
        kept = self.loop.call_soon(callback)
        self.turn()
        context = kept._context
        del kept
        self.loop.call_soon(lambda: context.run(variable.set, "not for others"))
        self.loop.call_soon(callback)
        self.turn()
        self.assertEqual(seen, ["unset", "unset"])

    @unittest.skipUnless(hasattr(asyncio.Handle, "get_context"), "before 3.12, the handler does not run in the context of the callback")
    def test_the_exception_handler_sees_variables_set_by_the_callback(self):
        def fail():
            variable.set("set before it failed")
            1 / 0

        seen = []
        self.loop.set_exception_handler(lambda _loop, _context: seen.append(variable.get()))
        self.loop.call_soon(fail)
        self.loop.call_soon(lambda: seen.append(variable.get()))
        self.turn()
        self.assertEqual(seen, ["set before it failed", "unset"])

    def test_a_reader_has_one_context_for_all_calls(self):
        counts = itertools.count(1)
        seen = []
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)

        def ready():
            os.read(reading, 1)
            seen.append(other.get())
            other.set(next(counts))

        self.loop.add_reader(reading, ready)
        self.addCleanup(self.loop.remove_reader, reading)
        for _ in range(3):
            os.write(writing, b"x")
            self.loop.call_soon(lambda: seen.append(("soon", other.get())))
            wanted = len(seen) + 2
            while len(seen) < wanted:
                self.turn()
        self.assertEqual([each for each in seen if isinstance(each, int)], [0, 1, 2])
        self.assertEqual([each for each in seen if isinstance(each, tuple)], [("soon", 0)] * 3)

    has_get_context = hasattr(asyncio.Handle, "get_context")


class OnPelton(Contexts, unittest.TestCase):
    def new_loop(self):
        return pelton.new_event_loop()

    def test_callbacks_that_set_nothing_share_a_context(self):
        handles = [self.loop.call_later(60, print) for _ in range(100)]
        gc.collect()
        self.assertLess(sum(type(each) is contextvars.Context for each in gc.get_objects()), 50)
        for handle in handles:
            handle.cancel()


    def test_a_sleeping_loop_keeps_no_values_of_variables(self):
        class Value:
            pass

        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        self.addCleanup(os.close, writing)

        def write_when_asleep(sleeps):
            end = time.monotonic() + DEADLINE
            while self.loop.stats()["sleeps"] == sleeps and time.monotonic() < end:
                time.sleep(0.001)
            os.write(writing, b"x")

        async def set_and_schedule(value):
            variable.set(value)
            self.loop.call_soon(lambda: None)
            await asyncio.sleep(0)

        async def main():
            woken = self.loop.create_future()
            self.loop.add_reader(reading, woken.set_result, None)
            value = Value()
            gone = weakref.ref(value)
            await self.loop.create_task(set_and_schedule(value))
            del value
            thread = threading.Thread(target=write_when_asleep, args=[self.loop.stats()["sleeps"]])
            thread.start()
            # From here on, nothing is scheduled that would replace the variables that the loop remembers.
            await woken
            self.loop.remove_reader(reading)
            thread.join()
            gc.collect()
            return gone()

        self.assertIsNone(self.loop.run_until_complete(main()))


class OnAsyncio(Contexts, unittest.TestCase):
    def new_loop(self):
        return asyncio.SelectorEventLoop()


if __name__ == "__main__":
    unittest.main()
