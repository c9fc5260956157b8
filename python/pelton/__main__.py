"""Run a program with asyncio's loops replaced by Pelton's: ``python -m pelton script.py`` or ``-m module``."""

import runpy
import sys

import pelton

USAGE = """\
usage: python -m pelton script.py [ARGUMENT]...
       python -m pelton -m MODULE [ARGUMENT]...

Runs a Python program as python itself would, with every event loop that asyncio creates in it being a pelton.Loop.
"""


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        (sys.stdout if arguments else sys.stderr).write(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "-m":
        if len(arguments) < 2:
            sys.stderr.write("python -m pelton: -m needs the name of a module\n" + USAGE)
            return 2
        pelton.install()
        sys.argv = arguments[1:]
        sys.path[0] = ""
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    if arguments[0].startswith("-"):
        sys.stderr.write(f"python -m pelton: no such option: {arguments[0]}\n" + USAGE)
        return 2
    pelton.install()
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
