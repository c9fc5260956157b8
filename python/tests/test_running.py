"""Whole programs on the loop: the command line, exits, signals, processes, executors."""

import asyncio
import os
import platform
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

import pelton

DEADLINE = 60


class ProgramTestCase(unittest.TestCase):
    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory())

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(textwrap.dedent(text))
        return path

    def start(self, *arguments, **options):
        path = os.pathsep.join([*[each for each in sys.path if each], self.directory])
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            # In the background of a shell SIGINT would be ignored, and so here.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            **options,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def run_program(self, *arguments):
        """Return exit status, output and errors."""
        process = self.start(*arguments)
        printed, errors = process.communicate(timeout=DEADLINE)
        return process.returncode, printed, errors

    def run_text(self, text):
        return self.run_program(self.write("program.py", text))


class CommandLine(ProgramTestCase):
    def test_a_script_is_run_as_python_would(self):
        script = self.write(
            "somewhere/script.py",
            """
            import asyncio, sys
            import beside

            async def main():
                print(__name__, type(asyncio.get_running_loop()).__name__, sys.argv, beside.VALUE)

            if __name__ == "__main__":
                asyncio.run(main())
            """,
        )
        self.write("somewhere/beside.py", "VALUE = 'found'")
        status, printed, errors = self.run_program("-m", "pelton", script, "-m", "--help")
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(printed, f"__main__ Loop {[script, '-m', '--help']} found\n")

    def test_safe_path_excludes_the_scripts_directory(self):
        script = self.write("somewhere/script.py", "import asyncio, beside")
        self.write("somewhere/beside.py", "")
        status, _, errors = self.run_program("-P", "-m", "pelton", script)
        self.assertEqual(status, 1)
        self.assertIn("No module named 'beside'", errors)

    def test_a_module_and_a_package_are_run_by_name(self):
        self.write("package/__init__.py", "")
        self.write(
            "package/__main__.py",
            """
            import asyncio, sys
            from . import inner

            async def main():
                print(__package__, type(asyncio.get_running_loop()).__name__, sys.argv[1:], inner.VALUE)

            asyncio.run(main())
            """,
        )
        self.write("package/inner.py", "VALUE = 5")
        status, printed, errors = self.run_program("-m", "pelton", "-m", "package", "x")
        self.assertEqual((status, printed, errors), (0, "package Loop ['x'] 5\n", ""))

    def test_the_exit_status_of_the_program_is_kept(self):
        for ending, status, error in (
            ("sys.exit(3)", 3, ""),
            ("sys.exit('a reason')", 1, "a reason\n"),
            ("raise ValueError('what went wrong')", 1, "ValueError: what went wrong\n"),
        ):
            script = self.write("script.py", f"import sys\n{ending}\n")
            ended, printed, errors = self.run_program("-m", "pelton", script)
            self.assertEqual((ended, printed), (status, ""), ending)
            self.assertTrue(errors.endswith(error), errors)

    def test_wrong_usage_is_reported(self):
        for arguments, named in (
            ([], "usage"),
            (["-m"], "-m requires a module name"),
            (["-x", "script.py"], "no such option: -x"),
        ):
            status, printed, errors = self.run_program("-m", "pelton", *arguments)
            self.assertEqual((status, printed), (2, ""))
            self.assertIn(named, errors)
        for arguments, named, expected in (
            (["-m", "no_such_module"], "No module named no_such_module", 1),
            (["-m", "no.such_module"], "No module named 'no'", 1),
            (["no_such_file.py"], "no_such_file.py", 2),
            (["."], "can't find '__main__' module", 1),
        ):
            status, _, errors = self.run_program("-m", "pelton", *arguments)
            self.assertEqual((status, len(errors.splitlines())), (expected, 1), errors)
            self.assertIn(named, errors)
        status, printed, _ = self.run_program("-m", "pelton", "--help")
        self.assertEqual((status, printed.startswith("usage: python -m pelton")), (0, True))

    def test_programs_see_the_same_as_when_python_runs_them(self):
        self.write(
            "shown.py",
            """
            import __main__, sys
            print(sys.argv, sys.path[0], __main__.__dict__ is globals(), getattr(__builtins__, "__name__", None))
            for name in ("__name__", "__file__", "__package__", "__cached__", "__doc__", "__annotations__"):
                print(name, globals().get(name, "missing"))
            print(type(__loader__), __spec__ and __spec__.name)
            """,
        )
        self.write("package/__init__.py", "")
        self.write("package/inner.py", "import shown")
        self.write("directory/__main__.py", "import sys, beside; print(sys.argv, sys.path[0], __file__)")
        self.write("directory/beside.py", "")
        self.write(
            "fails.py",
            """
            import asyncio
            async def main():
                raise ValueError("what went wrong") from KeyError("why")
            asyncio.run(main())
            """,
        )
        self.write("interrupted.py", "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)")
        self.write("unreadable.py", "def function(:\n    pass")
        self.write("hook.py", "import sys; sys.excepthook = lambda *error: print('told of', error[:2]); 1 / 0")
        self.write(
            "late.py",
            """
            import atexit, pickle, threading
            class Kept:
                pass
            atexit.register(lambda: print("at exit", pickle.loads(pickle.dumps(Kept())).__module__))
            threading.Thread(target=lambda: (threading.main_thread().join(), pickle.dumps(Kept()), print("after"))).start()
            """,
        )
        for line in (
            "shown.py -m x --help",
            "./shown.py",
            "-m shown x",
            "-m package.inner",
            "directory y",
            "fails.py",
            "-m fails",
            "interrupted.py",
            "unreadable.py",
            "hook.py",
            "late.py",
        ):
            with self.subTest(line):
                there = self.run_program(*line.split())
                self.assertEqual(self.run_program("-m", "pelton", *line.split()), there)


class Endings(ProgramTestCase):
    """As with asyncio.run: each expected result was observed there."""

    def both(self, body):
        """Run a program that uses `run` on both loops. Return its outcome on ours, which must be the same."""
        outcomes = []
        for start in ("from asyncio import run", "from pelton import run"):
            text = f"import asyncio, sys, signal, os\n{start}\n" + textwrap.dedent(body)
            status, printed, errors = self.run_text(text)
            outcomes.append((status, printed, errors.strip().splitlines()[-1:]))
        self.assertEqual(outcomes[1], outcomes[0])
        return outcomes[1]

    def test_an_interrupt_cancels_the_main_task_and_then_ends_the_program(self):
        outcome = self.both(
            """
            async def main():
                try:
                    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    print("cancelled")
                    raise
                finally:
                    await asyncio.sleep(0.01)
                    print("cleaned up")
            run(main())
            """
        )
        self.assertEqual(outcome, (-signal.SIGINT, "cancelled\ncleaned up\n", ["KeyboardInterrupt"]))

    def test_an_interrupt_of_a_program_that_never_sleeps(self):
        outcome = self.both(
            """
            async def main():
                os.kill(os.getpid(), signal.SIGINT)
                while True:
                    await asyncio.sleep(0)
            try:
                run(main())
            except KeyboardInterrupt:
                print("interrupted")
            """
        )
        self.assertEqual(outcome[:2], (0, "interrupted\n"))

    def test_a_second_interrupt_is_not_suppressed(self):
        outcome = self.both(
            """
            async def main():
                loop = asyncio.get_running_loop()
                loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
                while True:
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        # It suppresses the cancellation.
                        loop.call_soon(os.kill, os.getpid(), signal.SIGINT)
            try:
                run(asyncio.wait_for(main(), 60))
            except KeyboardInterrupt:
                print("interrupted")
                os._exit(0 if sys.stdout.flush() is None else 1)
            """
        )
        self.assertEqual(outcome[:2], (0, "interrupted\n"))

    def test_exits_in_tasks_and_callbacks_end_the_program_after_cleanup(self):
        for leave in ("asyncio.create_task(leave_later())", "loop.call_soon(sys.exit, 5)", "sys.exit(5)"):
            outcome = self.both(
                f"""
                async def leave_later():
                    sys.exit(5)

                async def other():
                    try:
                        await asyncio.sleep(60)
                    finally:
                        print("cleaned up")

                async def main():
                    loop = asyncio.get_running_loop()
                    task = asyncio.create_task(other())
                    await asyncio.sleep(0)
                    {leave}
                    await asyncio.sleep(60)
                run(main())
                """
            )
            self.assertEqual(outcome[:2], (5, "cleaned up\n"), leave)

    def test_tasks_generators_and_executor_end_with_the_loop(self):
        outcome = self.both(
            """
            import time
            async def generator():
                try:
                    yield 1
                    yield 2
                finally:
                    await asyncio.sleep(0)
                    print("generator closed")

            async def forever():
                try:
                    await asyncio.Event().wait()
                finally:
                    print("task cancelled")

            async def main():
                task = asyncio.create_task(forever())
                async for _ in (kept := generator()):
                    globals()["kept"] = kept
                    break
                asyncio.get_running_loop().run_in_executor(None, lambda: (time.sleep(0.05), print("executor done")))
                await asyncio.sleep(0)
            run(main())
            print("ended")
            """
        )
        self.assertEqual(outcome[:2], (0, "task cancelled\ngenerator closed\nexecutor done\nended\n"))

    def test_run_inside_a_running_loop_is_refused(self):
        async def main():
            body = asyncio.sleep(0)
            with self.assertRaisesRegex(RuntimeError, "cannot be called from a running event loop"):
                pelton.run(body)
            body.close()

        pelton.run(main())


class Processes(ProgramTestCase):
    FORKS = """
        import asyncio, multiprocessing, pelton, sys

        def work(number):
            async def main():
                loop = asyncio.get_running_loop()
                assert type(loop) is pelton.Loop
                await asyncio.sleep(0.001)
                return number * 2 + await asyncio.to_thread(int)
            return pelton.run(main())

        async def main():
            loop = asyncio.get_running_loop()
            with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
                print(await loop.run_in_executor(None, pool.map, work, range(10)))

        if __name__ == "__main__":
            pelton.run(main())
        """

    def test_multiprocessing_by_every_method(self):
        program = self.write("program.py", self.FORKS)
        for method in ("fork", "spawn", "forkserver"):
            status, printed, errors = self.run_program("-W", "ignore", program, method)
            self.assertEqual((status, printed), (0, f"{list(range(0, 20, 2))}\n"), errors)

    def test_a_child_forked_during_a_run_gets_an_error_instead_of_hanging(self):
        status, printed, errors = self.run_text(
            """
            import asyncio, os, pelton, signal

            async def main():
                loop = asyncio.get_running_loop()
                child = os.fork()
                if child == 0:
                    signal.alarm(20)
                    try:
                        # There is no running loop in the child.
                        asyncio.get_running_loop()
                    except RuntimeError as error:
                        print(error, flush=True)
                    try:
                        # The child should create its own loop.
                        print(pelton.run(asyncio.sleep(0.001, "its own")), flush=True)
                    finally:
                        os._exit(0)
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                await asyncio.sleep(0.01)
                print("parent goes on", status)

            pelton.run(main())
            """
        )
        self.assertEqual((status, printed), (0, "no running event loop\nits own\nparent goes on 0\n"), errors)

    def test_a_process_pool_as_executor(self):
        status, printed, errors = self.run_text(
            """
            import asyncio, concurrent.futures, pelton

            async def main():
                loop = asyncio.get_running_loop()
                with concurrent.futures.ProcessPoolExecutor(2) as pool:
                    print(await asyncio.gather(*[loop.run_in_executor(pool, pow, 2, each) for each in range(8)]))

            if __name__ == "__main__":
                pelton.run(main())
            """
        )
        self.assertEqual((status, printed), (0, f"{[2**each for each in range(8)]}\n"), errors)

    def test_subprocesses_are_waited_for_and_signalled(self):
        async def main():
            process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
            printed, _ = await process.communicate(b"hello" * 100_000)
            self.assertEqual((process.returncode, printed), (0, b"hello" * 100_000))
            process = await asyncio.create_subprocess_exec("sleep", "60")
            process.terminate()
            self.assertEqual(await process.wait(), -signal.SIGTERM)
            process = await asyncio.create_subprocess_shell("exit 7")
            self.assertEqual(await process.wait(), 7)
            with self.assertRaises(FileNotFoundError):
                await asyncio.create_subprocess_exec("no-such-program-anywhere")

        pelton.run(asyncio.wait_for(main(), DEADLINE))


@unittest.skipUnless(platform.libc_ver()[0] == "glibc", "it is about glibc's allocator")
@unittest.skipIf("asan" in os.environ.get("LD_PRELOAD", ""), "AddressSanitizer replaces the allocator")
class Memory(ProgramTestCase):
    def test_memory_for_large_messages_is_not_mapped_again_for_each(self):
        program = self.write(
            "program.py",
            """\
                import asyncio, resource, socket, sys, pelton
                SIZE = 100 << 10
                held = [bytes(SIZE) for _ in range(int(sys.argv[1]))]
                class Echo(asyncio.BufferedProtocol):
                    def __init__(self):
                        self.buffer = bytearray(SIZE)
                    def connection_made(self, transport):
                        self.transport = transport
                    def get_buffer(self, _hint):
                        return self.buffer
                    def buffer_updated(self, count):
                        self.transport.write(bytes(self.buffer[:count]))
                async def main():
                    loop = asyncio.get_running_loop()
                    one, other = socket.socketpair()
                    for sock in one, other:
                        sock.setblocking(False)
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SIZE)
                    transport, _ = await loop.create_connection(Echo, sock=one)
                    message, answer = bytes(SIZE), memoryview(bytearray(SIZE))
                    async def exchange():
                        await loop.sock_sendall(other, message)
                        got = 0
                        while got < SIZE:
                            got += await loop.sock_recv_into(other, answer[got:])
                    for _ in range(20):
                        await exchange()
                    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                    for _ in range(200):
                        await exchange()
                    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 200)
                    transport.abort()
                    other.close()
                pelton.run(main())
            """,
        )
        # The state of the end of the heap matters, so vary how much is allocated there.
        for held in range(6):
            status, printed, errors = self.run_program(program, str(held))
            self.assertEqual((status, errors), (0, ""))
            self.assertLess(float(printed), 2, "pages mapped for each message")


class Executors(unittest.TestCase):
    def test_work_runs_in_other_threads_and_returns_results(self):
        async def main():
            loop = asyncio.get_running_loop()
            here = threading.get_ident()
            self.assertNotEqual(await loop.run_in_executor(None, threading.get_ident), here)
            with self.assertRaisesRegex(ValueError, "in the thread"):
                await loop.run_in_executor(None, self.fail_by, ValueError("in the thread"))
            # A thread has no running loop, but can reach ours.
            with self.assertRaises(RuntimeError):
                await loop.run_in_executor(None, asyncio.get_running_loop)
            back = await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(self.where(), loop).result(DEADLINE))
            self.assertEqual(back, here)

        pelton.run(asyncio.wait_for(main(), DEADLINE))

    @staticmethod
    def fail_by(error):
        raise error

    @staticmethod
    async def where():
        return threading.get_ident()

    def test_cancelled_work_does_not_disturb_the_loop(self):
        async def main():
            loop = asyncio.get_running_loop()
            go_on = threading.Event()
            futures = [loop.run_in_executor(None, go_on.wait, DEADLINE) for _ in range(50)]
            await asyncio.sleep(0)
            for future in futures:
                future.cancel()
            go_on.set()
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            self.assertTrue(all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes))
            self.assertEqual(await loop.run_in_executor(None, int, "5"), 5)

        pelton.run(asyncio.wait_for(main(), DEADLINE))


if __name__ == "__main__":
    unittest.main()
