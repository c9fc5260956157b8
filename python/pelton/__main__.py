"""Run a program with asyncio's loops replaced by Pelton's: ``python -m pelton script.py`` or ``-m module``."""

import os
import runpy
import sys

import pelton

USAGE = """\
usage: python -m pelton script.py [ARGUMENT]...
       python -m pelton -m MODULE [ARGUMENT]...

Runs a Python program as python itself would, with every event loop that asyncio creates in it being a pelton.Loop.
"""


def look_in(directory):
    """Has modules looked for there first, instead of where this one was found, unless Python was told to look in neither."""
    if not sys.flags.safe_path:
        sys.path[0] = directory


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
        look_in("")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    if arguments[0].startswith("-"):
        sys.stderr.write(f"python -m pelton: no such option: {arguments[0]}\n" + USAGE)
        return 2
    pelton.install()
    sys.argv = arguments
    if os.path.isfile(arguments[0]):
        # A directory or an archive is looked in by itself.
        look_in(os.path.dirname(os.path.realpath(arguments[0])))
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
