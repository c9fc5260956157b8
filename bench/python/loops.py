"""One asyncio loop to measure: executes commands, one line of JSON each, on standard input, and answers each with a line.

    {"run": "call_soon chain", "seconds": 0.3}      ->  {"rate": operations per second, "cpu_us": processor time of each}
    {"serve": "protocol"}                           ->  {"at": port or path}, and serves
    {"end": true}                                   ->  {"ended": true}, and stops serving
    a command that fails                            ->  {"error": "why"}

`cargo xtask bench python` starts one of these for each loop, and runs them in turn.
"""

import asyncio
import gc
import importlib.metadata
import json
import platform
import sys
import threading
import time

from rows import ROWS
from servers import SERVERS


def factory(name):
    if name == "asyncio":
        return asyncio.SelectorEventLoop
    return __import__(name).new_event_loop


def version(name):
    if name == "asyncio":
        return platform.python_version()
    return getattr(__import__(name), "__version__", None) or importlib.metadata.version(name)


class Worker:
    def __init__(self, name):
        self.name, self.make = name, factory(name)
        # The number of repetitions per window of each row; calibrated the first time.
        self.counts = {}

    def run(self, row, seconds):
        for _ in range(3):
            try:
                return self.run_once(row, seconds)
            except TimeoutError:
                # A peer may hang; if ours does, that is a failure.
                if self.name == "pelton":
                    raise
                print(f"{row}: {self.name} did not finish; trying again", file=sys.stderr)
        raise TimeoutError("it never finished")

    def run_once(self, row, seconds):
        body, least = ROWS[row]
        loop = self.make()
        asyncio.set_event_loop(loop)
        try:
            if row not in self.counts:
                self.counts[row] = calibrated(lambda count: body(loop, count), least, seconds)
            count = self.counts[row]
            # Warm up: queues grow, and memory is mapped.
            body(loop, max(count // 10 // least * least, least))
            # Garbage of the previous row must not be collected during this one.
            gc.collect()
            used = time.process_time()
            took = body(loop, count)
            used = time.process_time() - used
            loop.run_until_complete(loop.shutdown_default_executor())
            return {"rate": count / took, "cpu_us": used / count * 1e6}
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def serve(self, kind, options):
        """Serves until the next line."""
        loop = self.make()
        asyncio.set_event_loop(loop)
        # Clients reset their connections at the end.
        loop.set_exception_handler(lambda *_: None)
        at, kept = loop.run_until_complete(SERVERS[kind](loop, options))

        def wait():
            sys.stdin.readline()
            loop.call_soon_threadsafe(loop.stop)

        gc.collect()
        threading.Thread(target=wait).start()
        loop.call_soon(answer, {"at": at})
        loop.run_forever()
        del kept
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
        return {"ended": True}


def calibrated(measure, least, seconds):
    """Returns how many repetitions take about this long."""
    count = least
    while (took := measure(count)) < seconds / 2:
        wanted = int(count * seconds / max(took, 1e-6))
        count = max(min(wanted, count * 10) // least * least, count * 2)
    return max(int(count * seconds / took) // least * least, least)


def answer(line):
    print(json.dumps(line), flush=True)


def main():
    name = sys.argv[1]
    try:
        worker = Worker(name)
    except ImportError as error:
        return answer({"error": f"{name} is not installed: {error}"})
    answer({"version": version(name)})
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        try:
            if "run" in asked:
                answer(worker.run(asked["run"], asked["seconds"]))
            else:
                answer(worker.serve(asked["serve"], asked))
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
