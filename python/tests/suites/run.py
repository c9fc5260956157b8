"""Runs other packages' own tests on a pelton.Loop.

    python python/tests/suites/run.py              all of them
    python python/tests/suites/run.py anyio        one
    python python/tests/suites/run.py anyio -k tls with arguments for pytest

The tests come with the package's source, from the package registry, as they are; they run by `python -m pelton -m pytest`, so that
every loop that they ask asyncio for is ours, which a plugin counts. There are as many processes as processors, each with its part of
the files.

What fails is tried on asyncio's own loop: a test that fails there too is the machine's fault (no IPv6, say), and only counted.
What passes there fails this run, unless it is listed below with its reason. It is tried once more on ours, alone, only to print whether it
fails again.

A test may take two minutes, a process as long as is set below: then it says where it stands, and has failed.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from importlib.metadata import version

HERE = pathlib.Path(__file__).parent

# Seconds that a process may take: some ten times as long as it does on a machine that is not busy.
DEADLINE = 7200

# What of each is of no use, in pytest's words and by the name of a folder, and in how many tests at least a loop of ours must have
# been made.
SUITES = {
    # Each test with asyncio, and with trio or uvloop instead, which are not ours. Those with IPv6 need `localhost` to have it, and
    # leave sockets behind otherwise, which others are blamed for.
    "anyio": (["-k", "asyncio and not uvloop and not ipv6"], None, 1500),
    # Benchmarks, and what needs a container.
    "aiohttp": (["-k", "not benchmark", "-o", "addopts="], "autobahn", 1500),
}
# What passes on asyncio's own loop only, and why.
EXPECTED = {
    "tests/test_web_functional.py::test_keepalive_expires_on_time[pyloop]": "replaces loop.time(), by which no timer of ours goes",
}
OF_EACH = ["-p", "no:cacheprovider", "-p", "count_loops", "--timeout", "120", "-q", "--tb=short", "-rfE"]


def unpacked(package, directory):
    """The package's source of the version that is installed, without the package itself: what is installed is to be tested."""
    requirement = f"{package}=={version(package)}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", package, requirement]
    subprocess.run([*command, "--disable-pip-version-check", "-d", directory], check=True)
    [archive] = pathlib.Path(directory).glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(directory, filter="data")
    [root] = [path for path in pathlib.Path(directory).iterdir() if path.is_dir()]
    for name in (package, f"src/{package}"):
        if (root / name).exists():
            (root / name).rename(root / f"not-{package}")
    return root


def run(root, on_pelton, arguments):
    """What the plugin has counted. What does not come to its end has failed."""
    with tempfile.TemporaryDirectory() as directory:
        report = pathlib.Path(directory) / "report.json"
        starter = ["-m", "pelton"] if on_pelton else []
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PELTON_SUITE_REPORT": str(report),
        }
        command = [sys.executable, "-X", "faulthandler", *starter, "-m", "pytest", *OF_EACH, *arguments]
        # A group of its own, so that it can be ended with everything that it has started.
        process = subprocess.Popen(command, cwd=root, env=environment, process_group=0)
        try:
            status = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            status = f"none within {DEADLINE} s"
            # That has the threads' tracebacks printed.
            process.send_signal(signal.SIGABRT)
            process.wait(10)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if not report.exists():
            sys.exit(f"{root.name}: pytest has ended without a result; its exit status: {status}")
        return json.loads(report.read_text())


def in_parts(root, arguments, left_out):
    """The tests that failed, how many passed, and in how many a loop of ours was made."""
    # The longest first, dealt out one by one: so all take about as long.
    files = sorted(root.glob("tests/**/test_*.py"), key=lambda file: file.stat().st_size, reverse=True)
    files = [str(file.relative_to(root)) for file in files if file.parent.name != left_out]
    at_once = min(os.cpu_count() or 1, len(files))
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        runs = [pool.submit(run, root, True, [*files[part::at_once], *arguments]) for part in range(at_once)]
        said = [each.result() for each in runs]
    failed = [test for each in said for test in each["failed"]]
    return failed, sum(each["passed"] for each in said), sum(each["with_ours"] for each in said)


def judge(package, extra):
    arguments, left_out, at_least = SUITES[package]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        root = unpacked(package, directory)
        failed, passed, with_ours = in_parts(root, [*arguments, *extra], left_out)
        ours, again = [], []
        if failed:
            print(f"{package}: {len(failed)} failed; trying them on asyncio's own loop", flush=True)
            options = [argument for argument in arguments if argument.startswith("-o") or "=" in argument]
            there = run(root, False, [*failed, *options])["failed"]
            ours = [test for test in failed if test not in there]
            if ours:
                print(f"{package}: {len(ours)} of them pass there; trying these again on pelton.Loop", flush=True)
                again = run(root, True, [*ours, *options])["failed"]
    print(
        f"{package} {version(package)}: {passed} tests passed, {len(failed)} failed, of which {len(ours)} pass on asyncio;"
        f" loops of ours were made in {with_ours}; it took {time.monotonic() - start:.0f} s"
    )
    for test in ours:
        # One that passes now has failed all the same. Whether it fails again helps to find the reason.
        alone = "fails again" if test in again else "passes when it is tried again"
        print(f"expected: {test} {EXPECTED[test]}" if test in EXPECTED else f"FAILED {test}; {alone}")
    if not extra and with_ours < at_least:
        print(f"FAILED: at least {at_least} tests should have made a loop of ours")
        return False
    return set(ours) <= EXPECTED.keys()


def main():
    chosen = sys.argv[1:2] or list(SUITES)
    for package in chosen:
        if package not in SUITES:
            sys.exit(f"there is no suite {package!r}; there are {', '.join(SUITES)}")
    return 0 if all([judge(package, sys.argv[2:]) for package in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
