"""Checks the type stubs: that they match the modules, and that a type checker understands programs that use them.

    python python/tests/types/check.py

`right.py` must have no error, and `wrong.py` exactly those that its comments expect: a checker without the stubs would find
none.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


def run(*words):
    # In another directory, because the repository's python/ has the package without the compiled module.
    with tempfile.TemporaryDirectory() as directory:
        return subprocess.run([sys.executable, "-m", *words], cwd=directory, capture_output=True, text=True, env=ENVIRONMENT)


ENVIRONMENT = {**os.environ, "MYPYPATH": os.environ.get("PYTHONPATH", "")}


def stubs():
    # Names with an underscore are private; modules without a stub are checked directly.
    done = run("mypy.stubtest", "pelton", "--ignore-missing-stub")
    return done.returncode, done.stdout + done.stderr


def right():
    done = run("mypy", "--strict", str(HERE / "right.py"))
    return done.returncode, done.stdout + done.stderr


def wrong():
    source = HERE / "wrong.py"
    expected = {
        (number, code)
        for number, line in enumerate(source.read_text().splitlines(), 1)
        for code in re.findall(r"# expect: ([a-z-]+)", line)
    }
    done = run("mypy", "--strict", str(source))
    found = {
        (int(number), code) for number, code in re.findall(r"wrong\.py:(\d+): error: .*\[([a-z-]+)\]", done.stdout)
    }
    missing = "".join(f"line {number}: no error [{code}]\n" for number, code in sorted(expected - found))
    return expected != found, missing + (done.stdout if found - expected else "") + done.stderr


def main():
    failed = False
    for check in (stubs, right, wrong):
        status, said = check()
        print(f"{check.__name__}: {'FAILED' if status else 'ok'}")
        if status:
            failed = True
            print(said)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
