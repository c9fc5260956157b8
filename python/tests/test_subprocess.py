"""Child processes: how they are watched, and their pipes."""

import asyncio
import os
import signal
import sys
import threading
import unittest

import pelton

DEADLINE = 30


class Children(unittest.TestCase):
    def setUp(self):
        self.loop = pelton.new_event_loop()
        self.addCleanup(self.loop.close)

    def run_async(self, main):
        asyncio.set_event_loop(self.loop)
        try:
            return self.loop.run_until_complete(asyncio.wait_for(main, DEADLINE))
        finally:
            asyncio.set_event_loop(None)

    def test_exit_statuses_of_children(self):
        async def main():
            for code, expected in (("pass", 0), ("raise SystemExit(3)", 3)):
                process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
                self.assertEqual(await process.wait(), expected)
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
            process.kill()
            self.assertEqual(await process.wait(), -signal.SIGKILL)

        self.run_async(main())

    @unittest.skipUnless(hasattr(os, "pidfd_open"), "the kernel has no process descriptors")
    def test_no_thread_waits_for_a_child(self):
        async def main():
            processes = [
                await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
                for _ in range(5)
            ]
            threads = threading.active_count()
            for process in processes:
                process.stdin.write(b"\n")
                self.assertEqual(await process.wait(), 0)
            self.assertEqual(threads, 1)

        self.run_async(main())

    def test_data_through_pipes(self):
        async def main():
            copy = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", copy, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            message = os.urandom(2 << 20)
            out, _ = await process.communicate(message)
            self.assertEqual(out, message)
            self.assertEqual(process.returncode, 0)

        self.run_async(main())

    def test_many_at_once(self):
        async def main():
            async def one(number):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-S", "-c", f"print({number})", stdout=asyncio.subprocess.PIPE
                )
                out, _ = await process.communicate()
                return int(out)

            self.assertEqual(await asyncio.gather(*map(one, range(20))), list(range(20)))

        self.run_async(main())
        self.assertEqual(len(self.loop._watched_descriptors()), 1)

    def test_a_program_that_does_not_exist(self):
        async def main():
            with self.assertRaises(FileNotFoundError):
                await asyncio.create_subprocess_exec("/nowhere/nothing")

        self.run_async(main())


if __name__ == "__main__":
    unittest.main()
