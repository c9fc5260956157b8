"""Runs other packages' own tests on a pelton.Loop.

    python python/tests/suites/run.py              all of them
    python python/tests/suites/run.py anyio        one
    python python/tests/suites/run.py anyio -k tls with arguments for pytest

The tests come from the package's source distribution, unchanged. They run by `python -m pelton -m pytest`, so every loop that
they request from asyncio is ours, which a plugin counts. There is one process per processor, each with a part of the files.

Failing tests are tried on asyncio's own loop. A test that fails there too is blamed on the machine (no IPv6, for example), and
only counted. A test that passes there makes this run fail, unless it is listed below with its reason. It is tried once more on
our loop, alone, only to print whether it fails again.

A test may take two minutes, and a process as long as set below: then it prints its stacks and has failed.
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

# Time limit of a process in seconds: about ten times what it takes on an idle machine.
DEADLINE = 7200

# For each package: pytest options and a folder to leave out, and the minimum number of tests that must create our
# loop.
SUITES = {
    # Tests with trio or uvloop are not for us. Those with IPv6 require that `localhost` has it; otherwise they
    # leave sockets behind, which other tests are then blamed for. Python 3.11 has no eager tasks, and half as many tests.
    "anyio": (["-k", "asyncio and not uvloop and not ipv6"], None, 1000),
    # Without benchmarks, and without tests that need a container.
    "aiohttp": (["-k", "not benchmark", "-o", "addopts="], "autobahn", 1500),
}
# Tests that may fail although they pass on asyncio's own loop, and why.
EXPECTED = {
    "tests/test_to_thread.py::TestBlockingPortalProvider::test_single_thread[asyncio]": (
        "counts threads while one of the test before is ending; on asyncio's own loop it fails as often"
    ),
    "tests/test_web_functional.py::test_keepalive_expires_on_time[pyloop]": "replaces loop.time(), which our timers do not use",
}
OF_EACH = ["-p", "no:cacheprovider", "-p", "count_loops", "--timeout", "120", "-q", "--tb=short", "-rfE"]


def unpacked(package, directory):
    """Unpack the source of the installed version, without the package itself: the installed package is tested."""
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
    """Return the plugin's report. A process that does not finish has failed."""
    with tempfile.TemporaryDirectory() as directory:
        report = pathlib.Path(directory) / "report.json"
        starter = ["-m", "pelton"] if on_pelton else []
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PELTON_SUITE_REPORT": str(report),
        }
        command = [sys.executable, "-X", "faulthandler", *starter, "-m", "pytest", *OF_EACH, *arguments]
        # Its own process group, so that it can be ended with everything that it started.
        process = subprocess.Popen(command, cwd=root, env=environment, process_group=0)
        try:
            status = process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            status = f"none within {DEADLINE} s"
            # This prints the stacks of all threads.
            process.send_signal(signal.SIGABRT)
            process.wait(10)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if not report.exists():
            sys.exit(f"{root.name}: pytest ended without a result; exit status: {status}")
        return json.loads(report.read_text())


def in_parts(root, arguments, left_out):
    """Return the failed tests, the number of passed tests, and the number of tests that created our loop."""
    # Dealt out from the longest to the shortest file, so that all parts take about equally long.
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
        f" {with_ours} created our loop; it took {time.monotonic() - start:.0f} s"
    )
    for test in ours:
        # A test that passes now has still failed. Whether it fails again helps to find the reason.
        alone = "fails again" if test in again else "passes when tried again"
        print(f"expected: {test} {EXPECTED[test]}" if test in EXPECTED else f"FAILED {test}; {alone}")
    if not extra and with_ours < at_least:
        print(f"FAILED: at least {at_least} tests should have created our loop")
        return False
    return set(ours) <= EXPECTED.keys()


def main():
    chosen = sys.argv[1:2] or list(SUITES)
    for package in chosen:
        if package not in SUITES:
            sys.exit(f"there is no suite {package!r}; the suites are {', '.join(SUITES)}")
    return 0 if all([judge(package, sys.argv[2:]) for package in chosen]) else 1


if __name__ == "__main__":
    sys.exit(main())
