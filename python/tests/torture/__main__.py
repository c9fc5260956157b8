"""Random scenarios with hostile objects, on asyncio's own loop and on pelton's, which must have the same results.

    python -m torture --seconds 60            for a minute, from a seed that is printed
    python -m torture --first 1234 --count 1  one seed again; --show prints the events on both loops
    python -m torture --only methods          one kind of scenario; this changes the scenario of a seed

Seeds run in batches, each in its own process, because a fault may well be a crash. If a batch fails, each seed without a result
runs by itself. Seeds that crash asyncio's own loop, as some do, are counted and left out.
"""

import argparse
import concurrent.futures
import contextlib
import contextvars
import faulthandler
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

from . import exits, handles, methods, rubbish, servers, streams

LOOPS = "asyncio", "pelton"
BATCH = 20

# Time limit of a seed in seconds; seeds take milliseconds.
PATIENCE = 20

# The fraction of seeds whose results may vary between runs. On a busy machine it is one or two percent.
UNSTEADY = 0.05

# How often a seed is repeated at most, on each loop, to see whether a difference depends on more than the seed. The results of some
# seeds vary on asyncio's own loop once in twenty times.
AGAIN = 40

# The environment variable that names a loop of `sabotage.py`, to check that its fault is detected.
SABOTAGE = "PELTON_TORTURE_SABOTAGE"

# Exit status of a worker whose seed exceeded the time limit.
STUCK = 99


# Relative frequency of each kind, and whether the results of both loops must be the same.
KINDS = [(handles, 12, True), (streams, 8, True), (servers, 3, True), (methods, 10, True), (rubbish, 6, False), (exits, 1, True)]

# The name of the only kind to run, if one was requested.
only = None


def name_of(module):
    return module.__name__.rpartition(".")[2]


def kind_of(seed):
    for module, _, compared in KINDS:
        if name_of(module) == only:
            return module, compared
    chosen = seed % sum(weight for _, weight, _ in KINDS)
    for module, weight, compared in KINDS:
        if chosen < weight:
            return module, compared
        chosen -= weight


def work(loop, first, count):
    """Run seeds in a worker, and print a line for each."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    faulthandler.enable()
    if loop == "pelton" and SABOTAGE in os.environ and os.environ[SABOTAGE]:
        import sabotage

        new_event_loop = getattr(sabotage, os.environ[SABOTAGE])
    elif loop == "pelton":
        from pelton import new_event_loop
    else:
        from asyncio import new_event_loop
    signal.signal(signal.SIGALRM, lambda *_: (faulthandler.dump_traceback(), os._exit(STUCK)))
    # Every collection visits what remains.
    gc.collect()
    gc.freeze()
    for seed in range(first, first + count):
        module, compared = kind_of(seed)
        print(json.dumps({"began": seed}), flush=True)
        # This uses a thread, in case Python code never runs again. The thread would be missing in a forked child.
        if module.__name__ != exits.__name__:
            faulthandler.dump_traceback_later(PATIENCE + 5, exit=True)
        signal.alarm(PATIENCE)
        start = time.monotonic()
        # Variables set by one seed must not be visible to the next.
        events = contextvars.Context().run(module.play, seed, new_event_loop)
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
        if events is exits.NOW:
            return
        took = round(time.monotonic() - start, 3)
        print(json.dumps({"seed": seed, "took": took, "events": events if compared else []}, default=lambda other: type(other).__name__), flush=True)


def only_options():
    return [] if only is None else ["--only", only]


def run(loop, first, count):
    """Run a worker. Return the result of each seed, and the reason if it died."""
    # By the package's name, from any directory.
    directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([directory, *(each for each in sys.path if each)])}
    # Hashes must not depend on the process.
    environment["PYTHONHASHSEED"] = "0"
    command = [sys.executable, "-m", "torture", "--worker", loop, "--first", str(first), "--count", str(count), *only_options()]
    # Files and a process group, because a forked child that hangs would keep pipes open. Under AddressSanitizer, a child can hang if
    # another thread was allocating memory during the fork.
    with tempfile.TemporaryFile("w+", errors="replace") as stdout, tempfile.TemporaryFile("w+", errors="replace") as stderr:
        worker = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, process_group=0)
        try:
            status = worker.wait(count * (PATIENCE + 10))
        except subprocess.TimeoutExpired:
            status = STUCK
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        stdout.seek(0)
        stderr.seek(0)
        printed, complaints = stdout.read(), stderr.read()
    outcomes, began = {}, None
    for line in printed.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if type(message) is not dict:
            # A hostile callback printed something.
            continue
        if "began" in message:
            began = message["began"]
        else:
            outcomes[message["seed"]] = message["events"]
    died = None
    if status != 0:
        why = "stuck" if status == STUCK else f"exit status {status}"
        died = f"{why}\n{complaints[-6000:]}"
    return outcomes, began, died


def play_all(loop, first, count):
    """Return the result of each seed: a list of events, or why the process died."""
    outcomes = {}
    while first + count > first + len(outcomes):
        begin = first + len(outcomes)
        found, began, died = run(loop, begin, first + count - begin)
        for seed in range(begin, first + count):
            if seed not in found:
                break
            outcomes[seed] = found[seed]
        if died is None and first + len(outcomes) < first + count:
            died = "the process ended early"
        if died is not None:
            # The process may have died because of an earlier seed; then it survives this one alone.
            guilty = first + len(outcomes)
            if guilty >= first + count:
                outcomes[first + count - 1] = f"after the last seed: {died}"
                break
            alone, _, alone_died = run(loop, guilty, 1)
            if alone_died is None and guilty in alone:
                _, _, again = run(loop, begin, guilty - begin + 1)
                outcomes[guilty] = alone[guilty] if again is None else f"only after seeds from {begin} on: {again}"
            else:
                outcomes[guilty] = f"{alone_died or died}"
    return outcomes


class Report:
    def __init__(self, arguments):
        self.arguments = arguments
        self.left_out, self.failed, self.unsteady, self.done = [], [], [], 0

    def compare(self, seed, stock, ours):
        self.done += 1
        _, compared = kind_of(seed)
        if isinstance(ours, list) and (not compared or not isinstance(stock, list)):
            self.left_out += [seed] * (not isinstance(stock, list))
            return
        if isinstance(ours, str) and isinstance(stock, str) and compared:
            self.left_out.append(seed)
            return
        if ours == stock:
            return
        if isinstance(ours, list) and self.is_unsteady(seed, stock, ours):
            self.unsteady.append(seed)
            return
        self.failed.append(seed)
        module, _ = kind_of(seed)
        print(f"\nFAILED: seed {seed} ({name_of(module)})")
        if isinstance(ours, str):
            print(f"  pelton: {ours}")
        else:
            at = next((i for i, (one, other) in enumerate(zip(stock, ours)) if one != other), min(len(stock), len(ours)))
            print(f"  identical for {at} events, then")
            print(f"  asyncio: {stock[at : at + 4]}\n  pelton:  {ours[at : at + 4]}")
        print(f"  replay: {self.replay(seed)}", flush=True)

    def is_unsteady(self, seed, stock, ours):
        """Return whether the result depends on more than the seed, such as the load of the machine: the results of asyncio's own loop
        vary, or those of ours never differ again. A fault that shows only sometimes, on our loop alone, is a fault."""
        differs = False
        for _ in range(AGAIN):
            stock_again, ours_again = (run(loop, seed, 1)[0].get(seed) for loop in LOOPS)
            if stock_again != stock:
                return True
            differs = differs or ours_again != stock
        return not differs

    def replay(self, seed):
        directory = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        package = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join(each for each in (directory, package) if each)
        return f"PYTHONPATH={path} {sys.executable} -m torture --first {seed} --count 1 --show {' '.join(only_options())}".strip()

    def show(self, outcomes):
        for loop, found in zip(LOOPS, outcomes):
            for seed, events in found.items():
                print(f"{loop}, seed {seed}:")
                for event in events if isinstance(events, list) else [events]:
                    print(f"  {event}")

    def end(self):
        print(f"{self.done} seeds, {len(self.failed)} failed; left out because they crash asyncio's own loop: {self.left_out or 'none'}")
        if self.unsteady:
            print(f"results vary, not compared: {self.unsteady}")
            if len(self.unsteady) > max(5, self.done * UNSTEADY):
                print("FAILED: too many seeds with varying results")
                return 1
        if self.failed:
            print(f"failed: {self.failed}")
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(prog="python -m torture")
    parser.add_argument("--seconds", type=float, help="duration; default: run --count seeds")
    parser.add_argument("--first", type=int, help="the first seed; default: from the clock")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--show", action="store_true", help="print the events, with --count 1")
    parser.add_argument("--only", choices=[name_of(module) for module, _, _ in KINDS], help="one kind of scenario")
    parser.add_argument("--worker", choices=LOOPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    global only
    only = arguments.only
    if arguments.worker:
        return work(arguments.worker, arguments.first, arguments.count)
    first = arguments.first if arguments.first is not None else int(time.time()) * 1000
    end = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    print(f"torture of the loop, from seed {first} on", flush=True)
    report = Report(arguments)
    if end is None:
        last = first + arguments.count
        batches = ((seed, min(BATCH, last - seed)) for seed in range(first, last, BATCH))
    else:
        batches = ((seed, BATCH) for seed in itertools.count(first, BATCH))
        batches = itertools.takewhile(lambda _: time.monotonic() < end, batches)

    def play_batch(batch):
        return *batch, [play_all(loop, *batch) for loop in LOOPS]

    # Much of the time is spent waiting.
    together = 2 * (os.cpu_count() or 1)
    with concurrent.futures.ThreadPoolExecutor(together) as pool:
        playing = {pool.submit(play_batch, batch) for batch in itertools.islice(batches, together)}
        while playing:
            done, playing = concurrent.futures.wait(playing, return_when=concurrent.futures.FIRST_COMPLETED)
            for seed, count, outcomes in (each.result() for each in done):
                if arguments.show:
                    report.show(outcomes)
                for each in range(seed, seed + count):
                    report.compare(each, outcomes[0].get(each), outcomes[1].get(each))
                playing |= {pool.submit(play_batch, batch) for batch in itertools.islice(batches, 1)}
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
