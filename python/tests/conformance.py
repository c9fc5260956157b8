"""Runs CPython's own asyncio tests on a pelton.Loop.

    python python/tests/conformance.py              every module, compared with the expectations
    python python/tests/conformance.py test_events  one module
    python python/tests/conformance.py -l asyncio   the same on asyncio's own loop, as the reference
    python python/tests/conformance.py -l uvloop:new_event_loop
                                                    the same on the loop that this function returns
    python python/tests/conformance.py --sabotage   on loops with one fault each: is every fault detected?

A test counts only if it really created a loop of the kind under test. Each module runs in its own process. A test that crashes
that process, or hangs, has failed, and the tests after it run in the next process. A module that takes too long in total is
given up, and its remaining tests have failed.

Tests that cannot pass are listed in expectations.toml, each with its reason. Any other failure, and any listed test that
passes, makes the run fail.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import importlib
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib

HERE = pathlib.Path(__file__).parent
EXPECTATIONS = HERE / "expectations.toml"
VERSION = "{}.{}".format(*sys.version_info)

# Seconds per test on a faulty loop, where some tests hang on purpose.
SABOTAGE_TIMEOUT = 5

# For other systems, or for loops that are not ours.
LEFT_OUT = {"test_proactor_events", "test_windows_events", "test_windows_utils"}


def modules():
    import test.test_asyncio

    names = {path.stem for path in pathlib.Path(test.test_asyncio.__file__).parent.glob("test_*.py")}
    return sorted(names - LEFT_OUT)


# The child: runs one module and reports each test as a line of JSON.


def factory_for(kind):
    if kind == "asyncio":
        import asyncio

        return asyncio.SelectorEventLoop
    if kind == "pelton":
        import pelton

        return pelton.Loop
    module, colon, name = kind.partition(":")
    if colon:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    from sabotage import SABOTAGES

    return SABOTAGES[kind].loop


def replace_loops(kind):
    """Make all loop factories create the kind under test. Return a function that counts the loops created."""
    import asyncio
    from asyncio import unix_events

    make = factory_for(kind)
    made = 0

    def factory(selector=None):
        nonlocal made
        made += 1
        if selector is not None:
            selector.close()
        return make()

    class Replacement(type):
        def __call__(cls, selector=None):
            return factory(selector)

        def __instancecheck__(cls, instance):
            return isinstance(instance, asyncio.AbstractEventLoop)

    class SelectorEventLoop(metaclass=Replacement):
        pass

    for module in (asyncio, unix_events):
        for name in ("SelectorEventLoop", "EventLoop"):
            if hasattr(module, name):
                setattr(module, name, SelectorEventLoop)
    unix_events.DefaultEventLoopPolicy._loop_factory = staticmethod(factory)
    return lambda: made


def close_any_loop():
    """Make the tests' cleanup work with loops that lack asyncio's private attributes."""
    from test.test_asyncio import utils

    close = utils.TestCase.close_loop

    def close_loop(loop):
        if hasattr(loop, "_default_executor"):
            return close(loop)
        if not loop.is_closed():
            loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    utils.TestCase.close_loop = staticmethod(close_loop)


def child(kind, name, skip, output):
    import unittest

    # In the background of a shell, interrupts are ignored, and some tests would wait forever for theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    skip = set(skip)
    loops_made = replace_loops(kind)
    close_any_loop()

    def report(**line):
        output.write(json.dumps(line) + "\n")
        output.flush()

    class Result(unittest.TestResult):
        before = None
        status, detail = "passed", ""

        def startTest(self, test):
            super().startTest(test)
            self.before = loops_made()
            self.status, self.detail = "passed", ""
            report(started=test.id())

        def note(self, status, detail=""):
            if self.status == "passed":
                self.status, self.detail = status, detail

        def addError(self, test, error):
            super().addError(test, error)
            self.note("failed", self._exc_info_to_string(error, test))
            if self.before is None:
                # The setup of a class or module failed.
                report(broken=test.id(), detail=self.detail)

        def addFailure(self, test, error):
            super().addFailure(test, error)
            self.note("failed", self._exc_info_to_string(error, test))

        def addSubTest(self, test, subtest, error):
            super().addSubTest(test, subtest, error)
            if error is not None:
                self.note("failed", self._exc_info_to_string(error, test))

        def addSkip(self, test, reason):
            super().addSkip(test, reason)
            if self.before is not None:
                self.note("skipped", reason)

        def addUnexpectedSuccess(self, test):
            super().addUnexpectedSuccess(test)
            self.note("failed", "unexpected success")

        def stopTest(self, test):
            super().stopTest(test)
            if self.before is None:
                # Skipped before it started.
                return
            report(
                finished=test.id(),
                status=self.status,
                counts=loops_made() > self.before,
                detail=self.detail[-4000:],
            )
            self.before = None

    def without_skipped(suite):
        for test in suite:
            if isinstance(test, unittest.TestSuite):
                yield from without_skipped(test)
            elif test.id() not in skip:
                yield test

    tests = list(without_skipped(unittest.defaultTestLoader.loadTestsFromName(f"test.test_asyncio.{name}")))
    report(planned=[test.id() for test in tests])
    unittest.TestSuite(tests).run(Result())
    report(done=True)


# The parent: runs the children of each module one after the other, and prints a table of their reports.


def run_module(kind, name, timeout, module_timeout=math.inf):
    """Return all results of a module: {test id: (status, counts, detail)}."""
    results = {}
    deadline = time.monotonic() + module_timeout
    while True:
        finished, stopped_in, log, planned = run_child(kind, name, list(results), timeout, deadline)
        results.update(finished)
        if stopped_in is None:
            return results
        # It is unknown whether it would have counted; a crash always counts.
        results[stopped_in] = ("failed", True, log)
        if time.monotonic() > deadline:
            given_up = "failed", True, f"not run: {name} was given up after {module_timeout:.0f} s"
            return dict.fromkeys(planned, given_up) | results


def run_child(kind, name, skip, timeout, deadline):
    """Return the finished tests, the test in which the child stopped, its output, and the tests it planned to run."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as log:
        command = [sys.executable, "-X", "faulthandler", str(HERE / "conformance.py"), "--child", name, "--kind", kind]
        process = subprocess.Popen(
            command + ["--output", str(writing)],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            pass_fds=[writing],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        os.close(writing)
        process.stdin.write(json.dumps(skip).encode())
        process.stdin.close()
        state = {"last": time.monotonic(), "hung": False}

        def watch():
            while process.poll() is None:
                now = time.monotonic()
                if now - state["last"] > timeout or now > deadline:
                    state["hung"] = True
                    os.killpg(process.pid, 9)
                    return
                time.sleep(0.2)

        threading.Thread(target=watch, daemon=True).start()
        finished, current, done, planned = {}, None, False, []
        with open(reading) as lines:
            for line in lines:
                state["last"] = time.monotonic()
                report = json.loads(line)
                if "started" in report:
                    current = report["started"]
                elif "finished" in report:
                    finished[report["finished"]] = (report["status"], report["counts"], report["detail"])
                    current = None
                elif "broken" in report:
                    finished[report["broken"]] = ("failed", True, report["detail"])
                elif "planned" in report:
                    planned = report["planned"]
                elif "done" in report:
                    done = True
        process.wait()
        # Anything that the tests started and left behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        log.seek(0)
        tail = log.read()[-4000:].decode(errors="replace")
        if done:
            return finished, None, "", planned
        if current is None:
            current = f"{name} (after {len(finished)} tests)"
            if current in skip:
                return finished, None, tail, planned
        why = f"no result within {timeout:.0f} s" if state["hung"] else f"exit status {process.returncode}"
        return finished, current, f"{why}\n{tail}", planned


def expectations():
    """Return {test id without the package: reason} for this version of Python."""
    if not EXPECTATIONS.exists():
        return {}
    expected = {}
    for entry in tomllib.loads(EXPECTATIONS.read_text())["failing"]:
        if VERSION in entry.get("versions", [VERSION]):
            for test in entry["tests"]:
                expected[test] = entry["reason"]
    return expected


def loop_kind(text):
    if text not in ("pelton", "asyncio") and ":" not in text:
        raise argparse.ArgumentTypeError(f"expected pelton, asyncio or MODULE:FUNCTION, got {text!r}")
    return text


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("modules", nargs="*", help="for example test_events; default: all")
    parser.add_argument("-l", "--loop", default="pelton", type=loop_kind, help="pelton, asyncio, or MODULE:FUNCTION")
    parser.add_argument("--sabotage", action="store_true", help="check that faulty loops are detected")
    parser.add_argument("-t", "--timeout", type=float, default=60, help="time limit of a test in seconds")
    parser.add_argument("--module-timeout", type=float, default=600, help="time limit of a module in seconds")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="number of modules to run in parallel")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the reason of each failure")
    parser.add_argument("--json", help="write all results to this file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        skip = json.load(sys.stdin)
        sys.argv[1:] = []
        # Processes that tests leave behind must not keep the parent reading.
        os.set_inheritable(options.output, False)
        with open(options.output, "w") as output:
            child(options.kind, options.child, skip, output)
        return 0

    if options.sabotage:
        return sabotaged(options)
    names = options.modules or modules()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = {
            pool.submit(run_module, options.loop, name, options.timeout, options.module_timeout): name for name in names
        }
        results = dict.fromkeys(names)
        for done, run in enumerate(concurrent.futures.as_completed(runs), 1):
            results[runs[run]] = run.result()
            print(f"[{done}/{len(names)}] {runs[run]}", file=sys.stderr, flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1))
    return tell(results, expectations() if options.loop == "pelton" else {}, options)


def sabotaged(options):
    """Run a test that should detect each fault, and the same test on our loop. Fail if a fault is not detected."""
    from sabotage import SABOTAGES

    def run(kind, test):
        results = run_module(kind, test, SABOTAGE_TIMEOUT)
        status, counts, detail = results.get(f"test.test_asyncio.{test}", ("missing", False, ""))
        return status if counts else "not counted", detail

    print(f"{'fault':<30}{'reported':<10}{'without the fault':<20}test")
    missed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        wrong = {kind: pool.submit(run, kind, each.test) for kind, each in SABOTAGES.items()}
        right = {kind: pool.submit(run, "pelton", each.test) for kind, each in SABOTAGES.items()}
        for kind, sabotage in SABOTAGES.items():
            (found, detail), (otherwise, _) = wrong[kind].result(), right[kind].result()
            fine = found == "failed" and sabotage.says in detail and otherwise == "passed"
            missed += not fine
            print(f"{kind:<30}{found:<10}{otherwise:<20}{sabotage.test}{'' if fine else '  NOT DETECTED'}", flush=True)
    return 1 if missed else 0


def tell(results, expected, options):
    print(f"{options.loop} on Python {sys.version.split()[0]}")
    print(f"{'module':<28}{'counted':>8}{'passed':>8}{'expected':>10}{'failed':>8}")
    totals = [0, 0, 0, 0]
    surprises, stale = [], []
    for name, tests in results.items():
        row = [0, 0, 0, 0]
        for test, (status, counts, detail) in sorted(tests.items()):
            short = test.removeprefix("test.test_asyncio.")
            if not counts or status == "skipped":
                continue
            row[0] += 1
            if status == "passed":
                row[1] += 1
                if short in expected:
                    stale.append(short)
            elif short in expected:
                row[2] += 1
            else:
                row[3] += 1
                surprises.append((short, detail))
        print(f"{name:<28}{row[0]:>8}{row[1]:>8}{row[2]:>10}{row[3]:>8}")
        totals = [sum(pair) for pair in zip(totals, row)]
    print(f"{'all':<28}{totals[0]:>8}{totals[1]:>8}{totals[2]:>10}{totals[3]:>8}")
    if totals[0]:
        print(f"{totals[1] / totals[0]:.1%} of the counted tests passed")
    for short, detail in surprises:
        print(f"FAILED {short}")
        if options.verbose:
            print("    " + detail.strip().replace("\n", "\n    "))
    for short in stale:
        print(f"PASSED although listed in {EXPECTATIONS.name}: {short}")
    return 1 if surprises or stale else 0


if __name__ == "__main__":
    sys.exit(main())
