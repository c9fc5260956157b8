"""Runs tests repeatedly, and fails if every repetition leaves more references than the one before.

Requires an interpreter that counts references: Debian's ``python3-dbg``.
"""

import contextvars
import gc
import linecache
import os
import re
import sys
import unittest

# Not those that run everything in other processes, or that take long.
MODULES = (
    "test_contexts",
    "test_loop",
    "test_loop_handles",
    "test_loop_threads",
    "test_sockets",
    "test_streams",
    "test_connect",
    "test_guards",
    "test_parity",
    "test_endings",
    "test_subprocess",
    "test_tls",
    "test_tls_endings",
)

# The first repetitions fill caches.
REPETITIONS_BEFORE = 3
REPETITIONS = 4


def run(module):
    suite = unittest.defaultTestLoader.loadTestsFromName(module)
    with open(os.devnull, "w") as nowhere:
        # Tests of failures log and print backtraces.
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
        try:
            # In its own context, so that variables set by a test are dropped with it.
            result = contextvars.copy_context().run(unittest.TextTestRunner(nowhere).run, suite)
        finally:
            os.dup2(kept, 2)
            os.close(kept)
    if not result.wasSuccessful():
        sys.exit(f"{module}: {(result.failures + result.errors)[0][1]}")


def references():
    # Caches filled with data that differs between repetitions, such as port numbers.
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
        # Allocated in full, so that the list itself does not hold more references over time.
        counts = [0] * (REPETITIONS_BEFORE + REPETITIONS)
        for index in range(len(counts)):
            run(module)
            counts[index] = references()
        more = [after - before for before, after in zip(counts, counts[1:])][-REPETITIONS:]
        print(f"{module}: {more} more references after each repetition", flush=True)
        if all(each > 0 for each in more):
            leaking.append(module)
    if leaking:
        sys.exit(f"references leaked by {', '.join(leaking)}")


if __name__ == "__main__":
    main()
