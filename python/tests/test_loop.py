"""The loop itself: callbacks, statistics, subclasses, and programs that import it."""

import asyncio
import contextvars
import functools
import gc
import inspect
import math
import os
import socket
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

import pelton
from support import LoopTestCase


class Making(unittest.TestCase):
    def test_a_failed_constructor_leaves_nothing_behind(self):
        complaints = []
        with mock.patch.object(sys, "unraisablehook", complaints.append):
            with mock.patch("socket.socketpair", side_effect=ZeroDivisionError), self.assertRaises(ZeroDivisionError):
                pelton.new_event_loop()
            gc.collect()
        self.assertEqual(complaints, [])

    def test_nesting_a_loop_raises_with_alternatives(self):
        loop = pelton.new_event_loop()
        self.addCleanup(loop.close)
        # As nest_asyncio does instead of the loop's turn.
        with self.assertRaisesRegex(NotImplementedError, "nest_asyncio.*await the coroutine.*SelectorEventLoop"):
            loop._selector.select(None)


class Callbacks(LoopTestCase):
    def test_callbacks_are_called_in_order_with_their_arguments(self):
        called = []
        for count in range(6):
            self.loop.call_soon(lambda *args: called.append(args), *range(count))
        self.turn()
        self.assertEqual(called, [tuple(range(count)) for count in range(6)])

    def test_callbacks_scheduled_by_a_callback_run_in_the_next_turn(self):
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

    def test_wrong_arguments_raise_type_errors_that_name_them(self):
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

    def test_a_callback_runs_in_a_copy_of_the_context_or_in_the_given_one(self):
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

    def test_an_exception_is_reported_and_the_loop_continues(self):
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

    def test_a_loop_can_be_turned_inside_of_its_callbacks(self):
        one, other = socket.socketpair()
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        other.send(b"x")
        called = []

        def outer():
            called.append("outer begins")
            self.loop.call_soon(called.append, "inner")
            self.loop.add_reader(one, readable)
            # The first has what was queued; the reader comes after the poll of the next.
            self.loop._run_once()
            self.loop._run_once()
            called.append("outer ends")

        def readable():
            called.append(one.recv(1))
            self.loop.remove_reader(one)
            self.loop.call_later(0, called.append, "innermost")
            self.loop._run_once()

        self.loop.call_soon(outer)
        self.loop.call_soon(called.append, "queued")
        self.turn()
        self.assertEqual(called, ["outer begins", "queued", "inner", b"x", "innermost", "outer ends"])
        self.assertEqual(self.errors, [])
        self.turn()

    def test_what_ends_a_run_inside_of_a_callback_ends_that_one(self):
        caught = []

        def end():
            raise KeyboardInterrupt

        def outer():
            self.loop.call_soon(end)
            try:
                self.loop._run_once()
            except KeyboardInterrupt:
                caught.append("inside")

        self.loop.call_soon(outer)
        self.turn()
        self.assertEqual(caught, ["inside"])
        self.loop.call_soon(end)
        self.assertRaises(KeyboardInterrupt, self.loop.run_forever)
        self.turn()

    def test_a_loop_taken_apart_inside_of_a_callback_has_ended(self):
        called = []
        self.loop.call_soon(self.loop._close_core)
        self.loop.call_soon(called.append, "never")
        with self.assertRaisesRegex(RuntimeError, "closed"):
            self.loop.run_forever()
        self.assertEqual(called, [])
        self.assertRaisesRegex(RuntimeError, "closed", self.loop.add_reader, 0, print)

    def test_a_panic_becomes_a_runtime_error(self):
        self.assertRaisesRegex(RuntimeError, "panicked.*on purpose", pelton._pelton._panic)


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

    def test_slow_callbacks_are_reported(self):
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

    def test_slow_callbacks_are_counted_and_may_be_anything_callable(self):
        class Callable:
            def __call__(self):
                time.sleep(0.03)

            def __getattr__(self, name):
                raise AssertionError(f"{name} of a callback was read")

        async def coroutine():
            time.sleep(0.03)

        def function(seconds):
            time.sleep(seconds)

        told = []
        self.loop.on_slow_callback(0.02, lambda handle, _seconds: told.append(handle))
        before = self.loop.stats()["slow_callbacks"]
        slow = [
            self.loop.call_soon(Callable()),
            self.loop.call_soon(functools.partial(function, 0.03)),
            self.loop.call_soon(functools.partial(functools.partial, function), 0.03),
            self.loop.call_soon(function.__get__(0.03)),
            self.loop.call_soon(time.sleep, 0.03),
        ]
        self.loop.run_until_complete(coroutine())
        self.assertEqual([handle for handle in told if handle in slow], [slow[0], slow[1], slow[3], slow[4]])
        self.assertEqual(len(told), 5, "the task's step is the fifth")
        self.assertEqual(self.loop.stats()["slow_callbacks"] - before, 5)

    def test_another_thread_asks_for_reports_of_slow_callbacks(self):
        told = []
        asked = threading.Event()

        def ask():
            self.loop.on_slow_callback(0.02, lambda handle, _seconds: told.append(handle))
            asked.set()

        async def main():
            await self.loop.run_in_executor(None, ask)
            slow = self.loop.call_soon(time.sleep, 0.03)
            await asyncio.sleep(0.05)
            return slow

        self.assertEqual([self.loop.run_until_complete(main())], told)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())

    def test_a_failing_hook_for_slow_callbacks_is_reported_as_the_cause(self):
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

    def test_a_loop_is_an_instance_of_asyncios_class(self):
        self.assertIsInstance(self.loop, asyncio.BaseEventLoop)
        self.assertEqual(repr(self.loop), "<Loop running=False closed=False debug=False>")
        self.assertFalse(hasattr(self.loop, "_hidden"))

    def test_public_methods_have_asyncios_signatures(self):
        """Programs check, for example, whether create_task() takes a context."""
        for name in dir(asyncio.SelectorEventLoop):
            theirs, ours = getattr(asyncio.SelectorEventLoop, name), getattr(pelton.Loop, name)
            if name.startswith("_") or theirs is ours or name == "create_task":
                continue
            with self.subTest(name):
                self.assertEqual(list(inspect.signature(ours).parameters), list(inspect.signature(theirs).parameters))
        # Options that later versions pass to a task are accepted but not named.
        theirs, ours = (inspect.signature(kind.create_task).parameters for kind in (asyncio.SelectorEventLoop, pelton.Loop))
        self.assertLessEqual(set(theirs) - {"kwargs"}, set(ours))

    def test_a_loop_can_be_subclassed(self):
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

    def test_programs_run_with_our_loops(self):
        program = "import asyncio, sys\nasync def main(): print(type(asyncio.get_running_loop()), sys.argv[1:])\nasyncio.run(main())\n"
        with open(self.enterContext(TemporaryFile()), "w") as file:
            file.write(program)
        for arguments in ([file.name, "-x"], ["-m", os.path.basename(file.name).removesuffix(".py"), "-x"]):
            done = self.run_python("-m", "pelton", *arguments, PYTHONPATH=os.pathsep.join([*sys.path, os.path.dirname(file.name)]))
            self.assertEqual((done.stdout, done.stderr), ("<class 'pelton.Loop'> ['-x']\n", ""))
        self.assertEqual(self.run_python("-m", "pelton").returncode, 2)

    def test_it_works_in_a_python_without_policies(self):
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

    def test_a_missing_attribute_is_named_in_the_error(self):
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
    """The path of a file for a module, in its own directory."""

    def __enter__(self):
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        return os.path.join(self.directory.name, "some_program.py")

    def __exit__(self, *_):
        self.directory.cleanup()


if __name__ == "__main__":
    unittest.main()
