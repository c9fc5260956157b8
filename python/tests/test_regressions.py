"""Programs that once crashed, corrupted or hung the loop. Each runs in its own process."""

import os
import subprocess
import sys
import textwrap
import unittest

from own_process import DEADLINE, RegressionTestCase


class LostWakeUps(RegressionTestCase):
    def test_a_callback_scheduled_by_the_finalizer_of_a_context_variable_runs(self):
        for action in "loop.call_soon(loop.stop)", "loop.stop()", "loop.call_later(0.01, loop.stop)":
            with self.subTest(action=action):
                self.check(
                    f"""
                    v = contextvars.ContextVar("v")
                    loop = pelton.new_event_loop()

                    class V:
                        def __del__(self):
                            {action}

                    def f():
                        v.set(V())
                        loop.call_soon(int)

                    loop.call_soon(lambda: contextvars.copy_context().run(f))
                    loop.call_later(20, os._exit, 1)
                    loop.run_forever()
                    """
                )


class Contexts(RegressionTestCase):
    def test_objects_released_after_a_callback_are_released_outside_its_context(self):
        # Released as: an argument, the result, the callback, an argument of a cancelled handle, a timer's time, an
        # argument passed twice, and the object of a method.
        self.check(
            """
            v = contextvars.ContextVar("v", default="outside")
            loop = pelton.new_event_loop()
            seen = []

            class Watch:
                def __init__(self, name):
                    self.name = name
                def __del__(self):
                    seen.append((self.name, v.get()))
                def method(self, *args):
                    v.set("inside")

            class When(float):
                def __del__(self):
                    seen.append(("when", v.get()))

            class Callable(Watch):
                def __call__(self):
                    v.set("inside")

            def enter(*args):
                v.set("inside")

            def result():
                v.set("inside")
                return Watch("result")

            def cancelled(arg):
                v.set("inside")
                handles.pop().cancel()

            for debug in False, True:
                loop.set_debug(debug)
                loop.call_soon(enter, Watch("argument"))
                loop.call_soon(enter, 1, 2, 3, 4, 5, Watch("many"))
                loop.call_soon(result)
                loop.call_soon(Callable("callback"))
                loop.call_soon(Watch("self").method)
                w = Watch("both"); loop.call_soon(w.method, w); del w
                w = Watch("twice"); loop.call_soon(enter, w, w); del w
                handles = [loop.call_soon(cancelled, Watch("cancelled"))]
                loop.call_at(When(0.0), enter)
                loop.call_soon(Watch("run").method)._run()
                turn(loop)
                turn(loop)
                gc.collect()
            assert len(seen) == 20, seen
            assert all(where == "outside" for _, where in seen), seen
            """
        )

    def test_an_exception_handler_gets_the_exception_of_a_task_that_is_never_awaited(self):
        self.check(
            """
            told = []

            async def bad():
                raise ZeroDivisionError

            async def main():
                asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
                asyncio.create_task(bad())
                while not told:
                    await asyncio.sleep(0)

            pelton.run(asyncio.wait_for(main(), 30))
            print(told)
            """,
            printed="[ZeroDivisionError()]\n",
        )

    def test_values_of_variables_are_not_released_on_a_thread_that_schedules_a_callback(self):
        self.check(
            """
            v = contextvars.ContextVar("v")
            loop = pelton.new_event_loop()
            released = []

            class V:
                def __del__(self):
                    released.append(threading.current_thread())

            def f():
                v.set(V())
                loop.call_soon(int).cancel()

            def post():
                # Only the loop still keeps the context of the cancelled callback, for callbacks with the same variables.
                thread = threading.Thread(target=loop.call_soon_threadsafe, args=[loop.stop])
                thread.start()
                thread.join()

            def main():
                contextvars.copy_context().run(f)
                loop.call_soon(post, context=contextvars.copy_context())

            loop.call_soon(main)
            loop.run_forever()
            loop.close()
            assert released == [threading.main_thread()], released
            """
        )

    def test_a_handle_cancelled_while_a_context_is_left_is_not_called(self):
        self.check(
            """
            v = contextvars.ContextVar("v")
            loop = pelton.new_event_loop()
            called = []

            class V:
                def __del__(self):
                    handle.cancel()

            def first():
                v.set(V())

            own = contextvars.Context()
            loop.call_soon(first, context=own)
            del own
            handle = loop.call_soon(called.append, 1)
            turn(loop)
            assert called == [] and handle.cancelled(), called
            """
        )


class Handles(RegressionTestCase):
    def test_a_callback_may_cancel_its_own_handle_in_debug_mode(self):
        self.check(
            """
            loop = pelton.new_event_loop()
            loop.set_debug(True)
            loop.slow_callback_duration = 1e9

            def g():
                yield
                h.cancel()
                for _ in range(100000):
                    yield

            h = loop.call_soon([].extend, g())
            turn(loop)
            assert h.cancelled()
            """
        )

    def test_a_timer_whose_time_collects_garbage_when_released_is_freed_once(self):
        self.check(
            """
            loop = pelton.new_event_loop()

            class W(float):
                def __del__(self):
                    gc.collect()

            for _ in range(100):
                h = loop.call_at(W(9e9), print)
                h.cancel()
                del h
            assert loop.call_later(9, print) is not loop.call_later(9, print)
            """
        )

    def test_a_cycle_through_the_time_of_a_timer_is_collected(self):
        self.check(
            """
            loop = pelton.new_event_loop()

            class W(float):
                pass

            when = W(9e9)
            when.handle = loop.call_at(when, print)
            when.handle.cancel()
            gone = weakref.ref(when.handle)
            del when
            gc.collect()
            assert gone() is None
            """
        )


class Exits(RegressionTestCase):
    """A daemon thread is in the loop while the interpreter shuts down, and requests the lock."""

    # A module-level object whose finalizer takes a while and releases the lock meanwhile.
    SLOWLY = """
        class Slow:
            def __del__(self, sleep=time.sleep):
                sleep(0.3)

        slow = Slow()
        started = threading.Event()
        loop = pelton.new_event_loop()
        """

    def end_while(self, text):
        self.check(textwrap.dedent(self.SLOWLY) + textwrap.dedent(text) + "started.wait()\n")

    def test_a_program_may_end_while_a_daemon_thread_runs_callbacks(self):
        self.end_while(
            """
            def f():
                started.set()
                time.sleep(0.01)
                loop.call_soon(f)

            loop.call_soon(f)
            threading.Thread(target=loop.run_forever, daemon=True).start()
            """
        )

    def test_a_program_may_end_while_a_daemon_thread_wakes_up(self):
        self.end_while(
            """
            def f():
                started.set()
                loop.call_later(0.001, f)

            loop.call_soon(f)
            threading.Thread(target=loop.run_forever, daemon=True).start()
            """
        )

    def test_a_program_may_end_while_a_daemon_thread_is_in_a_protocol(self):
        self.end_while(
            """
            class Protocol(asyncio.Protocol):
                def data_received(self, data):
                    started.set()
                    time.sleep(0.1)

            a, b = socket.socketpair()

            async def main():
                await loop.create_connection(Protocol, sock=a)
                b.send(b"x")
                await asyncio.sleep(300)

            threading.Thread(target=loop.run_until_complete, args=[main()], daemon=True).start()
            """
        )

    def test_a_program_may_end_while_a_daemon_thread_calls_into_a_loop(self):
        self.end_while(
            """
            loop.set_debug(True)

            class Callback:
                @property
                def __class__(self):
                    started.set()
                    time.sleep(0.1)
                    return Callback
                def __call__(self):
                    pass

            def work():
                while True:
                    loop.call_soon_threadsafe(Callback())

            threading.Thread(target=work, daemon=True).start()
            """
        )


class Collected(RegressionTestCase):
    def test_a_loop_kept_only_by_its_own_handles_is_collected(self):
        for schedule in "loop.call_later(99, print, a)", "loop.call_soon(print, a)", "loop.call_at(9e9, print, a, 2, 3, 4)":
            with self.subTest(schedule=schedule):
                self.check(
                    f"""
                    class A:
                        pass

                    def make():
                        a = A()
                        loop = a.loop = pelton.new_event_loop()
                        a.handle = {schedule}
                        return weakref.ref(a)

                    gone = make()
                    # The first finds shared handles, the second collects them.
                    for _ in range(2):
                        gc.collect()
                    assert gone() is None
                    """
                )

    def test_a_referenced_handle_keeps_its_loop_alive(self):
        self.check(
            """
            loop = pelton.new_event_loop()
            kept = weakref.ref(loop)
            called = []
            handle = loop.call_later(0, called.append, loop)
            del loop
            for _ in range(3):
                gc.collect()
            loop = kept()
            assert loop is not None and handle._loop is loop
            loop.call_later(0.01, loop.stop)
            loop.run_forever()
            assert called == [loop]
            """
        )

    def test_objects_referenced_by_a_subclass_of_bytes_are_collected(self):
        self.check(
            """
            class Data(bytes):
                pass

            class Probe:
                pass

            async def main():
                loop = asyncio.get_running_loop()
                a, b = socket.socketpair()
                a.setblocking(False)
                transport, _ = await loop.create_connection(asyncio.Protocol, sock=a)
                data = Data(b"x" * 10_000_000)
                data.transport, data.probe = transport, Probe()
                gone = weakref.ref(data.probe)
                transport.write(data)
                assert transport.get_write_buffer_size() > 0
                del data
                assert gone() is None
                transport.abort()
                b.close()

            pelton.run(main())
            """
        )


class Imports(RegressionTestCase):
    def test_the_module_is_not_imported_without_the_interpreter_lock(self):
        # The check of a free-threaded build started with PYTHON_GIL=0.
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys._is_gil_enabled = lambda: False; import pelton"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("ImportError: pelton requires the interpreter lock", done.stderr)
        self.assertIn("PYTHON_GIL", done.stderr)


if __name__ == "__main__":
    unittest.main()
