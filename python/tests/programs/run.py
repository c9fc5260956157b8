"""Runs third-party programs on a pelton.Loop.

    python python/tests/programs/run.py              all of them
    python python/tests/programs/run.py redis        those whose name starts with redis

Each is a test module beside this one. It uses a package from requirements.txt as its documentation describes, and checks
meanwhile which loop is running. Nothing is skipped: a missing package is a failure.
"""

import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).parent


def main():
    wanted = sys.argv[1:]
    names = sorted(path.stem for path in HERE.glob("test_*.py"))
    chosen = [name for name in names if not wanted or any(name.startswith(f"test_{word}") for word in wanted)]
    if not chosen:
        programs = ", ".join(name.removeprefix("test_") for name in names)
        sys.exit(f"no program starts with {' or '.join(wanted)}; the programs are {programs}")
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromNames(chosen))
    if not result.testsRun or result.skipped:
        sys.exit("some tests were skipped")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
