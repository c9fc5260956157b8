"""Programs that once crashed, corrupted or hung the loop. Each runs in a process of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

DEADLINE = 60

# What every program below can use. `turn` runs everything that is queued, and one turn more.
PRELUDE = """
import asyncio, contextvars, gc, os, signal, socket, sys, threading, time, weakref
import pelton

def turn(loop):
    loop.call_soon(loop.stop)
    loop.run_forever()
"""


class RegressionTestCase(unittest.TestCase):
    def run_program(self, text, *options, **variables):
        return subprocess.run(
            # An interpreter with assertions warns of loops that are not closed, and most of these are not.
            [sys.executable, "-W", "ignore::ResourceWarning", *options, "-c", PRELUDE + textwrap.dedent(text)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    def check(self, text, *options, printed="", **variables):
        """Runs a program that succeeds, prints exactly that, and logs nothing."""
        done = self.run_program(text, *options, **variables)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, printed, ""))

    def survive(self, text, *options, **variables):
        """Runs a program that may print and log what it likes."""
        done = self.run_program(text, *options, **variables)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])


class LostWakeUps(RegressionTestCase):
    def test_a_finalizer_of_a_context_variable_that_schedules_a_callback_is_heard(self):
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
    def test_what_is_released_after_a_callback_is_released_outside_of_its_context(self):
        # By way of: an argument, the result, the callback itself, a cancelled handle, a timer's time, one argument given twice, and the
        # object of a method.
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

    def test_an_exception_handler_is_told_of_a_failed_task_that_nobody_awaits(self):
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
                # The loop alone still keeps the context of the cancelled callback, for those that are scheduled under the same variables.
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

    def test_a_handle_that_is_cancelled_while_another_context_is_left_is_not_called(self):
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

    def test_a_timer_whose_time_collects_garbage_when_it_dies_is_freed_once(self):
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
    """A daemon thread is in the loop while the interpreter shuts down, and asks for the lock."""

    # Something at module level that takes a while to go, and lets go of the lock meanwhile.
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


class Rubbish(RegressionTestCase):
    """Attributes that are asyncio's or ours alone, set to what they should not be."""

    def test_a_loop_survives_rubbish_in_its_private_attributes(self):
        self.survive(
            """
            class Equal(int):
                def __hash__(self):
                    return 0
                def __eq__(self, other):
                    loop._transports_by_descriptor = {}
                    gc.collect()
                    return False

            # With _run_once replaced, and the like, the loop goes round and round.
            def interrupt(*args):
                raise InterruptedError

            signal.signal(signal.SIGALRM, interrupt)
            a, b = socket.socketpair()
            for name in sorted(set(dir(pelton.Loop)) | set(vars(pelton.new_event_loop()))):
                if name.startswith("__") or not name.startswith("_"):
                    continue
                for value in 5, None, [], {}, {Equal(1): 1}, object(), "x", id, "deleted":
                    loop = pelton.new_event_loop()
                    loop.set_exception_handler(lambda loop, context: None)
                    close = loop._close_core
                    try:
                        if value == "deleted":
                            delattr(loop, name)
                        else:
                            setattr(loop, name, value)
                    except (AttributeError, TypeError, ValueError, OverflowError):
                        close()
                        continue
                    for action in (
                        lambda: loop.add_reader(a, print), lambda: loop.add_reader(0, print), lambda: loop.remove_reader(a),
                        lambda: loop.call_soon(print), lambda: loop.call_later(5, print), loop.create_future,
                        lambda: turn(loop), loop.stats, lambda: loop._ready, lambda: loop._scheduled, loop.close,
                    ):
                        try:
                            signal.setitimer(signal.ITIMER_REAL, 0.3)
                            action()
                        except Exception:
                            pass
                        finally:
                            signal.setitimer(signal.ITIMER_REAL, 0)
                    try:
                        close()
                    except Exception:
                        pass
            os._exit(0)
            """
        )

    def test_a_transport_survives_rubbish_in_its_private_attributes(self):
        self.survive(
            """
            class Protocol(asyncio.Protocol):
                pass

            async def main(name, value):
                loop = asyncio.get_running_loop()
                loop.set_exception_handler(lambda loop, context: None)
                a, b = socket.socketpair()
                a.setblocking(False)
                b.setblocking(False)
                transport, _ = await loop.create_connection(Protocol, sock=a)
                try:
                    if value == "deleted":
                        delattr(transport, name)
                    else:
                        setattr(transport, name, value)
                except (AttributeError, TypeError, ValueError, OverflowError):
                    pass
                for action in (
                    lambda: transport.write(b"x"), lambda: transport.writelines([b"x"]),
                    lambda: transport.write(b"x" * 10_000_000), lambda: transport.get_extra_info("socket"),
                    lambda: transport.get_extra_info("peername"), transport.pause_reading, transport.resume_reading,
                    transport._read_ready, transport._write_ready, transport._start_reading, lambda: b.recv(1_000_000),
                    transport._write_ready, lambda: repr(transport), lambda: transport.set_protocol(Protocol()),
                    transport.write_eof, transport.close, transport.abort, lambda: transport._call_connection_lost(None),
                ):
                    try:
                        action()
                    except Exception:
                        pass
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                a.close(), b.close()

            class Evil:
                def __getattr__(self, name):
                    raise ZeroDivisionError
                def fileno(self):
                    return -7

            names = [name for name in dir(pelton.StreamTransport) if name.startswith("_") and not name.startswith("__")]
            for name in names:
                for value in 5, -5, 1 << 40, None, [], {}, Evil(), "x", print, "deleted":
                    try:
                        pelton.run(main(name, value))
                    except Exception:
                        pass
            os._exit(0)
            """,
            "-W", "ignore",
        )

    def test_a_transport_that_was_not_initialised_refuses_to_write(self):
        self.check(
            """
            transport = pelton.StreamTransport.__new__(pelton.StreamTransport)
            a, b = socket.socketpair()
            a.setblocking(False)
            transport._sock = a
            for data in b"x", b"x" * 10_000_000:
                try:
                    transport.write(data)
                except (RuntimeError, AttributeError):
                    pass
            """
        )


class Collected(RegressionTestCase):
    def test_a_loop_that_only_its_own_handles_keep_is_collected(self):
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
                    # The first finds the handles that somebody keeps, the second collects them.
                    for _ in range(2):
                        gc.collect()
                    assert gone() is None
                    """
                )

    def test_a_handle_that_somebody_keeps_keeps_its_loop(self):
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

    def test_what_a_bytes_object_of_a_class_of_its_own_refers_to_is_collected(self):
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


class Sockets(RegressionTestCase):
    def test_a_protocol_factory_may_close_its_listener_while_connections_are_accepted(self):
        self.check(
            """
            async def main():
                loop = asyncio.get_running_loop()
                made, others = [], []

                class Protocol(asyncio.Protocol):
                    def __init__(self):
                        if not made:
                            server.close()
                            # Something else takes over its number.
                            others.append(socket.create_server(("127.0.0.1", 0)))
                        made.append(self)

                listener = socket.create_server(("127.0.0.1", 0), backlog=10)
                clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
                server = await loop.create_server(Protocol, sock=listener)
                while len(made) < 5:
                    await asyncio.sleep(0.001)
                for each in clients + others:
                    each.close()

            errors = []
            loop = pelton.new_event_loop()
            loop.set_exception_handler(lambda loop, context: errors.append(context))
            loop.run_until_complete(asyncio.wait_for(main(), 30))
            assert not errors, errors
            """
        )

    def test_a_socket_object_that_is_asked_for_while_it_is_made_is_made_once(self):
        self.check(
            """
            async def main():
                loop = asyncio.get_running_loop()
                server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
                transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
                found = []

                def hook(event, arguments):
                    if event == "socket.__new__" and not found:
                        found.append(None)
                        found.append(transport._sock)

                sys.addaudithook(hook)
                sock = transport._sock
                assert found[1] is sock and sock.fileno() >= 0
                fd = sock.fileno()
                gc.collect()
                os.fstat(fd)
                transport.close()
                server.close()

            pelton.run(main())
            """,
            "-W",
            "error::ResourceWarning",
        )


class Tls(RegressionTestCase):
    def test_a_finalizer_that_receives_does_not_change_what_tls_has_received(self):
        # Before Python 3.12, any object that is made may set off the garbage collector.
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl program to make a certificate with")
        directory = self.enterContext(tempfile.TemporaryDirectory())
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key -out certificate"
        subprocess.run(command.split(), cwd=directory, check=True, capture_output=True, timeout=DEADLINE)
        self.check(
            f"""
            os.chdir({directory!r})
            import ssl
            server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server_context.load_cert_chain("certificate", "key")
            client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            client_context.check_hostname = False
            client_context.verify_mode = ssl.CERT_NONE

            class Cycle:
                def __init__(self):
                    self.me = self
                def __del__(self):
                    if not done:
                        noise.send(b"noise" * 1000)
                        try:
                            loop.sock_recv(quiet, 5000).send(None)
                        except StopIteration:
                            pass
                        Cycle()

            received = bytearray()
            done = False

            class Protocol(asyncio.Protocol):
                def data_received(self, data):
                    received.extend(data)

            async def main():
                global done
                server = await loop.create_server(Protocol, "127.0.0.1", 0, ssl=server_context)
                transport, _ = await loop.create_connection(
                    asyncio.Protocol, *server.sockets[0].getsockname(), ssl=client_context
                )
                gc.set_threshold(1)
                Cycle()
                for _ in range(200):
                    transport.write(b"message")
                    await asyncio.sleep(0)
                while len(received) < 200 * 7:
                    await asyncio.sleep(0.001)
                done = True
                gc.set_threshold(700)
                assert received == b"message" * 200
                transport.close()
                server.close()

            noise, quiet = socket.socketpair()
            quiet.setblocking(False)
            loop = pelton.new_event_loop()
            loop.run_until_complete(asyncio.wait_for(main(), 30))
            """
        )


class Imports(RegressionTestCase):
    def test_the_module_is_not_imported_without_the_interpreter_lock(self):
        # What a free-threaded build says when PYTHON_GIL=0 keeps the lock off.
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys._is_gil_enabled = lambda: False; import pelton"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("ImportError: pelton needs the interpreter lock", done.stderr)
        self.assertIn("PYTHON_GIL", done.stderr)


if __name__ == "__main__":
    unittest.main()
