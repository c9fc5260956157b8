"""Runs tests again and again, and fails if every repetition leaves more references than the one before.

Needs an interpreter that counts them: Debian's ``python3-dbg``.
"""

import contextvars
import gc
import linecache
import os
import re
import sys
import unittest

# All but those that run everything in other processes, or for long.
MODULES = (
    "test_contexts",
    "test_loop",
    "test_sockets",
    "test_connect",
    "test_guards",
    "test_parity",
    "test_endings",
    "test_subprocess",
    "test_tls",
)

# The first ones fill caches.
REPETITIONS_BEFORE = 3
REPETITIONS = 4


def run(module):
    suite = unittest.defaultTestLoader.loadTestsFromName(module)
    with open(os.devnull, "w") as nowhere:
        # Tests of failures log, and print backtraces.
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            # In a context of its own: what a test sets in it goes with it.
            result = contextvars.copy_context().run(unittest.TextTestRunner(nowhere).run, suite)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    if not result.wasSuccessful():
        sys.exit(f"{module}: {(result.failures + result.errors)[0][1]}")


def references():
    # Caches that fill with whatever differs from one repetition to the next, such as port numbers.
    re.purge()
    linecache.clearcache()
    for _ in range(3):
        gc.collect()
    return sys.gettotalrefcount()


def main():
    if not hasattr(sys, "gettotalrefcount"):
        sys.exit("this interpreter does not count references")
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    leaking = []
    for module in sys.argv[1:] or MODULES:
        # As long as it will be, so that it does not refer to more and more itself.
        counts = [0] * (REPETITIONS_BEFORE + REPETITIONS)
        for index in range(len(counts)):
            run(module)
            counts[index] = references()
        more = [after - before for before, after in zip(counts, counts[1:])][-REPETITIONS:]
        print(f"{module}: {more} more references after each repetition", flush=True)
        if all(each > 0 for each in more):
            leaking.append(module)
    if leaking:
        sys.exit(f"references are left behind by {', '.join(leaking)}")


if __name__ == "__main__":
    main()
