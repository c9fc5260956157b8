"""Runs a program of a test in its own process."""

import os
import subprocess
import sys
import textwrap
import unittest

DEADLINE = 60

# Available to every program. `turn` runs everything that is queued, and one more turn.
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
            # A debug interpreter warns about unclosed loops, and most of these are not closed.
            [sys.executable, "-W", "ignore::ResourceWarning", *options, "-c", PRELUDE + textwrap.dedent(text)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each), **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    def check(self, text, *options, printed="", **variables):
        """Run a program that succeeds, prints exactly `printed`, and logs nothing."""
        done = self.run_program(text, *options, **variables)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, printed, ""))

    def survive(self, text, *options, **variables):
        """Run a program that may print and log anything."""
        done = self.run_program(text, *options, **variables)
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
