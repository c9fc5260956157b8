"""IPython, started by `python -m pelton`: its prompt awaits on our loop."""

import os
import subprocess
import sys
import tempfile
import unittest

from on_pelton import DEADLINE, OURS

SESSION = """
import asyncio
kind = type(asyncio.get_running_loop())
print("running on", kind.__module__ + "." + kind.__qualname__)
await asyncio.sleep(0.01)
async def later(): return await asyncio.to_thread(lambda: "from a thread")
print(await later())
"""


class IPython(unittest.TestCase):
    def test_awaiting_at_the_prompt(self):
        with tempfile.TemporaryDirectory() as directory:
            file = os.path.join(directory, "session.ipy")
            with open(file, "w") as session:
                session.write(SESSION)
            done = subprocess.run(
                [sys.executable, "-m", "pelton", "-m", "IPython", "--colors=NoColor", "--no-banner", file],
                env={**os.environ, "IPYTHONDIR": directory},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE,
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"running on {OURS}\n", done.stdout)
        self.assertIn("from a thread\n", done.stdout)
