"""The loop itself: callbacks, timers, handles, threads, signals, forks."""

import asyncio
import contextvars
import functools
import gc
import inspect
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import weakref
from unittest import mock

import pelton

DEADLINE = 10


class LoopTestCase(unittest.TestCase):
    def setUp(self):
        self.loop = pelton.new_event_loop()
        self.addCleanup(self.loop.close)
        # Also where Python is told to be careful: in debug mode, some things take another path.
        self.loop.set_debug(False)
        self.errors = []
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))

    def turn(self):
        """Runs the loop for one turn."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def run_until(self, condition):
        end = time.monotonic() + DEADLINE
        while not condition():
            self.assertLess(time.monotonic(), end, "nothing happened")
            self.turn()

    def run_main(self, main):
        return self.loop.run_until_complete(asyncio.wait_for(main, DEADLINE))


class Making(unittest.TestCase):
    def test_a_loop_that_could_not_be_made_leaves_nothing_behind(self):
        complaints = []
        with mock.patch.object(sys, "unraisablehook", complaints.append):
            with mock.patch("socket.socketpair", side_effect=ZeroDivisionError), self.assertRaises(ZeroDivisionError):
                pelton.new_event_loop()
            gc.collect()
        self.assertEqual(complaints, [])

    def test_what_runs_a_loop_inside_of_itself_is_told_what_to_do_instead(self):
        loop = pelton.new_event_loop()
        self.addCleanup(loop.close)
        # As nest_asyncio does, in the place of the loop's turn.
        with self.assertRaisesRegex(NotImplementedError, "nest_asyncio.*await the coroutine.*SelectorEventLoop"):
            loop._selector.select(None)


class Callbacks(LoopTestCase):
    def test_callbacks_are_called_in_order_with_their_arguments(self):
        called = []
        for count in range(6):
            self.loop.call_soon(lambda *args: called.append(args), *range(count))
        self.turn()
        self.assertEqual(called, [tuple(range(count)) for count in range(6)])

    def test_what_a_callback_schedules_waits_for_the_next_turn(self):
        called = []
        self.loop.call_soon(lambda: self.loop.call_soon(called.append, 1))
        self.turn()
        self.assertEqual(called, [])
        self.turn()
        self.assertEqual(called, [1])

    def test_arguments_can_be_given_by_name(self):
        called = []
        context = contextvars.copy_context()
        self.loop.call_soon(callback=lambda: called.append("soon"))
        self.loop.call_soon(lambda: called.append("context"), context=context)
        self.loop.call_later(callback=lambda: called.append("later"), delay=0)
        self.loop.call_at(0, context=None, callback=lambda: called.append("at"))
        self.run_until(lambda: len(called) == 4)

    def test_wrong_arguments_are_type_errors_that_name_them(self):
        for call, message in [
            (lambda: self.loop.call_soon(), "call_soon.*'callback'"),
            (lambda: self.loop.call_later(1), "call_later.*'callback'"),
            (lambda: self.loop.call_soon(print, contxt=1), "call_soon.*'contxt'"),
            (lambda: self.loop.call_soon(print, callback=print), "call_soon.*'callback'"),
            (lambda: self.loop.call_later(None, print), "delay"),
            (lambda: self.loop.call_at(None, print), "when"),
            (lambda: self.loop.call_later("1", print), "."),
            (lambda: self.loop.create_task(), "create_task"),
        ]:
            self.assertRaisesRegex(TypeError, message, call)

    def test_a_callback_runs_in_a_copy_of_the_context_or_in_the_one_that_is_given(self):
        variable = contextvars.ContextVar("variable", default=0)
        seen = []

        def callback():
            seen.append(variable.get())
            variable.set(variable.get() + 10)

        given = contextvars.copy_context()
        variable.set(1)
        self.loop.call_soon(callback)
        self.loop.call_soon(callback, context=given)
        self.loop.call_soon(callback, context=given)
        variable.set(2)
        self.loop.call_soon(callback)
        self.turn()
        self.assertEqual(seen, [1, 0, 10, 2])
        self.assertEqual(variable.get(), 2)
        self.assertEqual(given[variable], 20)

    def test_an_exception_is_reported_and_the_loop_goes_on(self):
        called = []
        handle = self.loop.call_soon(lambda: 1 / 0)
        self.loop.call_soon(called.append, 1)
        self.turn()
        self.assertEqual(called, [1])
        [context] = self.errors
        self.assertIsInstance(context["exception"], ZeroDivisionError)
        self.assertIs(context["handle"], handle)

    def test_system_exit_ends_the_run_and_leaves_the_rest_queued(self):
        called = []

        def leave():
            raise SystemExit(3)

        self.loop.call_soon(leave)
        self.loop.call_soon(called.append, 1)
        with self.assertRaises(SystemExit):
            self.loop.run_forever()
        self.assertFalse(self.loop.is_running())
        self.assertEqual(called, [])
        self.turn()
        self.assertEqual(called, [1])

    def test_a_callback_may_cancel_itself_and_others(self):
        called = []

        def first(argument):
            called.append(argument)
            own.cancel()
            other.cancel()

        own = self.loop.call_soon(first, "first")
        other = self.loop.call_soon(called.append, "other")
        self.turn()
        self.assertEqual(called, ["first"])
        self.assertTrue(own.cancelled() and other.cancelled())
        self.assertIsNone(own._callback)
        self.assertEqual(self.errors, [])

    def test_a_closed_loop_refuses_everything(self):
        self.loop.close()
        for call in (
            lambda: self.loop.call_soon(print),
            lambda: self.loop.call_soon_threadsafe(print),
            lambda: self.loop.call_later(1, print),
            lambda: self.loop.call_at(1, print),
            lambda: self.loop._run_once(),
            lambda: self.loop.run_forever(),
            lambda: self.loop.add_reader(0, print),
        ):
            self.assertRaisesRegex(RuntimeError, "closed", call)

    def test_a_panic_is_a_runtime_error(self):
        self.assertRaisesRegex(RuntimeError, "panicked.*on purpose", pelton._pelton._panic)


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

    def test_when_is_what_was_given(self):
        self.assertEqual(repr(self.loop.call_at(5, print).when()), "5")
        now = self.loop.time()
        self.assertAlmostEqual(self.loop.call_later(60, print).when(), now + 60, delta=5)

    def test_cancelling_lets_go_of_everything_at_once(self):
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

    def test_a_timer_cancelled_by_one_that_fires_with_it_does_not_fire(self):
        fired = []
        when = self.loop.time()
        self.loop.call_at(when, lambda: second.cancel())
        second = self.loop.call_at(when, fired.append, 1)
        self.turn()
        self.turn()
        self.assertEqual(fired, [])

    def test_a_sleeping_loop_uses_no_time(self):
        before = time.process_time()
        self.loop.call_later(0.5, self.loop.stop)
        self.loop.run_forever()
        self.assertLess(time.process_time() - before, 0.1)


class Handles(LoopTestCase):
    def test_handles_are_asyncios(self):
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

    def test_debug_mode_remembers_where_a_handle_comes_from(self):
        self.loop.set_debug(True)
        handle = self.loop.call_soon(print)
        self.assertIn("test_debug_mode_remembers", handle._source_traceback[-1].line + str(handle._source_traceback))
        self.assertIn(__file__, repr(handle))
        handle.cancel()
        self.assertIn("print()", repr(handle))

    def test_handles_can_be_referred_to_weakly(self):
        handle = self.loop.call_soon(int)
        reference = weakref.ref(handle)
        del handle
        self.assertIsNotNone(reference())
        self.turn()
        self.assertIsNone(reference())
        # Its memory may be that of one of the next, which the reference must not lead to.
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

    def test_a_loop_that_nobody_has_is_collected_with_what_is_queued(self):
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

    def test_a_long_chain_of_handles_ends_without_exhausting_the_stack(self):
        for schedule in (self.loop.call_soon, functools.partial(self.loop.call_later, 60)):
            handle = None
            for _ in range(200_000):
                handle = schedule(print, handle)
        self.loop.close()
        del handle

    def test_nothing_is_left_of_a_hundred_thousand_callbacks(self):
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

    def test_a_loop_made_here_runs_there(self):
        results = []
        thread = threading.Thread(target=lambda: results.append(self.run_main(asyncio.sleep(0.01, "there"))))
        thread.start()
        thread.join(DEADLINE)
        self.assertEqual(results, ["there"])

    def test_a_loop_that_sleeps_in_one_thread_cannot_be_turned_or_closed_by_another(self):
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

    def test_callbacks_that_never_let_go_of_the_lock_do_not_keep_other_threads_from_it(self):
        # Calling it schedules it again, all in C.
        forever = functools.partial(self.loop.call_soon)
        forever.__setstate__((self.loop.call_soon, (forever,), {}, {}))
        self.addCleanup(forever.__setstate__, (int, (), {}, {}))
        self.loop.call_soon(forever)

        def stop():
            # Each time it wakes up, it needs the lock.
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

    def test_who_was_first_to_be_woken_by_signals_stays_so(self):
        one, other = socket.socketpair()
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        one.setblocking(False)
        signal.set_wakeup_fd(one.fileno())
        self.addCleanup(signal.set_wakeup_fd, -1)
        self.turn()
        self.assertEqual(signal.set_wakeup_fd(one.fileno()), one.fileno())


class Forks(LoopTestCase):
    def test_a_child_that_uses_its_parents_loop_does_not_disturb_it(self):
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
                # Another thread has to wake this process's loop, and not its parent's.
                self.loop.run_until_complete(self.loop.run_in_executor(None, time.sleep, 0.01))
                self.loop.close()
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        other.send(b"x")
        self.run_until(lambda: received)
        self.assertEqual(received, [b"x"])


class Looking(LoopTestCase):
    def test_stats_count(self):
        before = self.loop.stats()
        self.loop.call_later(0, int)
        self.turn()
        self.turn()
        stats = self.loop.stats()
        self.assertEqual(stats["callbacks"] - before["callbacks"], 3)
        self.assertEqual(stats["timers"] - before["timers"], 1)
        self.assertEqual(stats["turns"] - before["turns"], 2)
        self.assertIn(stats["engine"], {"epoll", "kqueue", "poll", "select"})

    def test_slow_callbacks_are_told_of(self):
        told = []
        self.loop.on_slow_callback(0.05, lambda handle, seconds: told.append((handle, seconds)))
        self.loop.call_soon(int)
        slow = self.loop.call_soon(time.sleep, 0.06)
        self.turn()
        [(handle, seconds)] = told
        self.assertIs(handle, slow)
        self.assertGreaterEqual(seconds, 0.06)
        self.loop.on_slow_callback(0, None)
        self.loop.call_soon(time.sleep, 0.06)
        self.turn()
        self.assertEqual(len(told), 1)
        self.assertRaises(TypeError, self.loop.on_slow_callback, 1, 2)
        self.assertRaises(ValueError, self.loop.on_slow_callback, -1, print)
        self.loop.on_slow_callback(math.inf, lambda *told: self.fail(told))
        self.turn()

    def test_a_hook_for_slow_callbacks_that_fails_is_blamed_itself(self):
        def hook(_handle, _seconds):
            raise ZeroDivisionError

        reported = []
        self.loop.set_exception_handler(lambda _loop, context: reported.append(context))
        self.loop.on_slow_callback(0, hook)
        self.loop.call_soon(int)
        self.turn()
        self.assertIn("hook", reported[0]["message"])
        self.assertIsInstance(reported[0]["exception"], ZeroDivisionError)
        self.loop.on_slow_callback(0, None)

    def test_a_loop_is_asyncios(self):
        self.assertIsInstance(self.loop, asyncio.BaseEventLoop)
        self.assertEqual(repr(self.loop), "<Loop running=False closed=False debug=False>")
        self.assertFalse(hasattr(self.loop, "_hidden"))

    def test_public_methods_have_asyncios_signatures(self):
        """Programs ask whether create_task() takes a context, say."""
        for name in dir(asyncio.SelectorEventLoop):
            theirs, ours = getattr(asyncio.SelectorEventLoop, name), getattr(pelton.Loop, name)
            if name.startswith("_") or theirs is ours or name == "create_task":
                continue
            with self.subTest(name):
                self.assertEqual(list(inspect.signature(ours).parameters), list(inspect.signature(theirs).parameters))
        # What later versions pass on to a task is taken, and not named.
        theirs, ours = (inspect.signature(kind.create_task).parameters for kind in (asyncio.SelectorEventLoop, pelton.Loop))
        self.assertLessEqual(set(theirs) - {"kwargs"}, set(ours))

    def test_a_subclass_can_be_made(self):
        class Mine(pelton.Loop):
            def call_soon(self, callback, *args, context=None):
                self.count = getattr(self, "count", 0) + 1
                return super().call_soon(callback, *args, context=context)

        loop = Mine()
        self.addCleanup(loop.close)
        self.assertEqual(loop.run_until_complete(asyncio.sleep(0, 5)), 5)
        self.assertGreater(loop.count, 0)


class Programs(unittest.TestCase):
    def run_python(self, *arguments, **environment):
        path = os.pathsep.join(each for each in sys.path if each)
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def test_every_engine_runs(self):
        program = (
            "import asyncio, pelton\n"
            "async def main():\n"
            "    loop = asyncio.get_running_loop()\n"
            "    await asyncio.sleep(0.01)\n"
            "    server = await asyncio.start_server(lambda r, w: (w.write(b'hello'), w.close()), '127.0.0.1', 0)\n"
            "    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())\n"
            "    print(loop.stats()['engine'], (await reader.read()).decode())\n"
            "    writer.close()\n"
            "    server.close()\n"
            "pelton.run(main())\n"
        )
        for engine in ("poll", "select"):
            done = self.run_python("-c", program, PELTON_ENGINE=engine)
            self.assertEqual((done.stdout, done.stderr), (f"{engine} hello\n", ""))

    def test_an_unknown_engine_is_an_error_that_names_it(self):
        done = self.run_python("-c", "import pelton; pelton.Loop()", PELTON_ENGINE="steam")
        self.assertIn("PELTON_ENGINE", done.stderr)
        self.assertIn("steam", done.stderr)

    def test_programs_are_run_with_our_loops(self):
        program = "import asyncio, sys\nasync def main(): print(type(asyncio.get_running_loop()), sys.argv[1:])\nasyncio.run(main())\n"
        with open(self.enterContext(TemporaryFile()), "w") as file:
            file.write(program)
        for arguments in ([file.name, "-x"], ["-m", os.path.basename(file.name).removesuffix(".py"), "-x"]):
            done = self.run_python("-m", "pelton", *arguments, PYTHONPATH=os.pathsep.join([*sys.path, os.path.dirname(file.name)]))
            self.assertEqual((done.stdout, done.stderr), ("<class 'pelton.Loop'> ['-x']\n", ""))
        self.assertEqual(self.run_python("-m", "pelton").returncode, 2)

    def test_a_python_without_policies_can_do_without_them(self):
        program = (
            "import asyncio\n"
            "del asyncio.DefaultEventLoopPolicy\n"
            "import pelton\n"
            "from pelton import *\n"
            "print(run(asyncio.sleep(0, 5)))\n"
            "with asyncio.Runner(loop_factory=pelton.new_event_loop) as runner:\n"
            "    print(runner.run(asyncio.sleep(0, 6)))\n"
            "try:\n"
            "    pelton.install()\n"
            "except RuntimeError as error:\n"
            "    print(error)\n"
        )
        done = self.run_python("-W", "error", "-c", program)
        self.assertRegex(done.stdout, "5\n6\nthis version of Python has no event loop policies.*loop_factory")
        self.assertEqual(done.stderr, "")

    def test_what_is_not_there_is_an_attribute_error_that_names_it(self):
        with self.assertRaisesRegex(AttributeError, "'pelton' has no attribute 'nothing'"):
            pelton.nothing
        self.assertTrue(issubclass(pelton.EventLoopPolicy, asyncio.AbstractEventLoopPolicy))

    def test_the_module_can_be_imported_again(self):
        program = (
            "import sys, asyncio, pelton\n"
            "first = pelton.Loop()\n"
            "for name in [name for name in sys.modules if name.startswith('pelton')]:\n"
            "    del sys.modules[name]\n"
            "import pelton\n"
            "second = pelton.Loop()\n"
            "for loop in first, second:\n"
            "    print(loop.run_until_complete(asyncio.sleep(0.001, 5)))\n"
            "    loop.close()\n"
        )
        done = self.run_python("-c", program)
        self.assertEqual((done.stdout, done.stderr), ("5\n5\n", ""))

    def test_a_second_interpreter_is_refused(self):
        program = (
            "try:\n"
            "    import _interpreters as interpreters\n"
            "except ImportError:\n"
            "    import _xxsubinterpreters as interpreters\n"
            "import pelton\n"
            "other = interpreters.create()\n"
            "code = 'try:\\n    import pelton\\nexcept ImportError as error:\\n    print(\"refused:\", error, flush=True)'\n"
            "interpreters.run_string(other, code)\n"
        )
        done = self.run_python("-c", program)
        self.assertIn("refused:", done.stdout, done.stderr)


class TemporaryFile:
    """The path of a file for a module, in a directory of its own."""

    def __enter__(self):
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        return os.path.join(self.directory.name, "some_program.py")

    def __exit__(self, *_):
        self.directory.cleanup()


if __name__ == "__main__":
    unittest.main()
