"""Objects that run hostile code when they are released, compared, converted, iterated over or called.

The seed of a scenario decides everything. A decision is drawn by name and count, not from one sequence of numbers, so it stays
the same if two loops do independent things in a different order.
"""

import asyncio
import contextvars
import functools
import gc
import os
import random
import resource
import sys
import threading
import time

# How long a loop with nothing to do is run, in seconds.
WATCHDOG = 0.03

variable = contextvars.ContextVar("variable", default="unset")


def sleeps():
    """Return how often this process has waited voluntarily, as opposed to being preempted."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def count_waits(loop):
    """Returns a function that says how often the loop has waited for something to happen, instead of only polling."""
    if hasattr(loop, "stats"):
        return lambda: loop.stats()["sleeps"]
    waits, select = 0, loop._selector.select

    def counted(timeout=None):
        nonlocal waits
        waits += timeout is None or timeout > 0
        return select(timeout)

    loop._selector.select = counted
    return lambda: waits


class World:
    """One scenario on one loop: its objects and its events."""

    def __init__(self, seed, new_loop):
        self.seed = seed
        self.drawn = {}
        self.events = []
        self.handles = []
        self.loop = new_loop()
        self.waits = count_waits(self.loop)
        self.thread = threading.get_ident()
        self.opening = self.ended = False
        self.serial = 0
        # Actions of hostile objects trigger others; this limits their number.
        self.patience = 300
        self.late, self.runs = [], 0
        self.whole_moments = 0
        self.closing = False
        self.actions = ACTIONS
        sys.unraisablehook = lambda raised: self.note("unraisable", type(raised.exc_value).__name__)
        self.loop.set_exception_handler(self.told)

    def random(self, name):
        count = self.drawn[name] = self.drawn.get(name, 0) + 1
        return random.Random(f"{self.seed}:{name}:{count}")

    def choose(self, name, choices):
        return self.random(name).choice(choices)

    def name(self, kind):
        self.serial += 1
        return f"{kind}{self.serial}"

    def note(self, *event):
        if not self.ended:
            self.events.append(event)

    def arm(self):
        """Schedule the watchdog, which is called if the loop has nothing to do."""
        self.sleeps = sleeps()
        self.watchdog = self.loop.call_later(WATCHDOG, self.watch)

    def watch(self):
        """The watchdog of a run. If the loop has not slept, it was only slow because the machine is busy."""
        if sleeps() == self.sleeps:
            self.arm()
            return
        self.note("watchdog")
        self.loop.stop()

    def outcome(self):
        """Return the events, without the order in which related objects are released, which is up to each loop."""
        events, released = [], []
        for event in self.events:
            if "released" in event:
                released.append(event)
                continue
            events += [*sorted(released), event]
            released = []
        return [*events, *sorted(released), ("late", *sorted(self.late))]

    def told(self, loop, context):
        """The loop's exception handler."""
        self.note("told", type(context.get("exception")).__name__, type(variable.get()).__name__)
        if self.random("told").random() < 0.1:
            raise LookupError

    def tired(self):
        self.patience -= 1
        return self.ended or self.patience < 0

    def attempt(self, name, action, *args, **kwargs):
        """Call something, and record the kind of its result."""
        try:
            result = action(*args, **kwargs)
        except Exception as exc:
            self.note(name, "raised", type(exc).__name__)
            return None
        if result is None or type(result) in (bool, int):
            self.note(name, result)
        else:
            self.note(name, "done")
        return result

    def act(self, who):
        """Do something that should not be done at this point."""
        if self.tired():
            return
        self.choose(who, self.actions)(self, who)

    def act_without_failing(self, who):
        try:
            self.act(who)
        except ZeroDivisionError:
            self.note(who, "failed")


def schedule(world, who, method, *args):
    new = Callback(world, world.name("callback"))
    try:
        keep(world, getattr(world.loop, method)(*args, new))
    except RuntimeError:
        quieten(new, *args)
        world.note(who, "closed")


def schedule_soon(world, who):
    schedule(world, who, "call_soon")


def schedule_later(world, who):
    schedule(world, who, "call_at", Moment(world.loop.time() - 1))


def schedule_from_thread(world, who):
    thread = threading.Thread(target=schedule, args=[world, who, "call_soon_threadsafe"])
    thread.start()
    thread.join()


def collect(world, who):
    gc.collect()


def fail(world, who):
    raise ZeroDivisionError


def cancel_one(world, who):
    if world.handles:
        world.choose(who, world.handles).cancel()


def forget_one(world, who):
    if world.handles:
        world.handles.pop(world.random(who).randrange(len(world.handles)))


def stop(world, who):
    world.loop.stop()


def close(world, who):
    # The order in which it releases everything is not compared.
    world.closing = True
    try:
        world.loop.close()
    except RuntimeError:
        world.closing = False
        world.note(who, "cannot close")


def set_variable(world, who):
    variable.set(Value(world, world.name("value")))


def set_variable_elsewhere(world, who):
    context = contextvars.copy_context()
    context.run(variable.set, Value(world, world.name("value")))
    context.run(schedule, world, who, "call_soon")


def fork(world, who):
    if world.random(who).random() < 0.05:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)


def switch_threads(world, who):
    time.sleep(0)


def asyncio_refuses_to_run_inside():
    """Return whether asyncio's own loop only refuses to run inside itself: that of Python 3.13.0 then considers itself stopped."""
    loop = asyncio.SelectorEventLoop()
    running = []

    def inside():
        try:
            loop.run_forever()
        except RuntimeError:
            running.append(loop.is_running())

    loop.call_soon(inside)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    return running == [True]


# Determined now, because later another loop runs.
ASYNCIO_REFUSES_TO_RUN_INSIDE = asyncio_refuses_to_run_inside()


def run_inside(world, who):
    if world.loop.is_running() and ASYNCIO_REFUSES_TO_RUN_INSIDE:
        try:
            world.loop.run_forever()
        except RuntimeError:
            world.note(who, "cannot run")


def change_debug(world, who):
    world.loop.set_debug(not world.loop.get_debug())


def nothing(world, who):
    pass


ACTIONS = [
    schedule_soon, schedule_soon, schedule_later, schedule_from_thread, collect, collect, fail, cancel_one, cancel_one, forget_one, stop,
    close, set_variable, set_variable_elsewhere, fork, switch_threads, run_inside, change_debug, nothing, nothing, nothing,
]  # fmt: skip


def keep(world, handle):
    if world.random("keep").random() < 0.5:
        world.handles.append(handle)
    return handle


def quieten(*objects):
    """Disable the actions of objects on release. In asyncio, the arguments of a callback that raises are part of a cycle through the
    traceback, so the time of their release is not compared."""
    for each in objects:
        if isinstance(each, asyncio.Future) and each.done() and not each.cancelled() and each.exception() is None:
            each = each.result()
        if isinstance(each, Mortal):
            each.quiet = True


class Mortal:
    """Acts when it is released."""

    quiet = False

    def __init__(self, world, name):
        self.world, self.own_name = world, name

    def __del__(self):
        if self.quiet or self.world.closing:
            return
        where = variable.get()
        self.world.note(self.own_name, "released", where if type(where) is str else "set")
        self.world.act(self.own_name)


class Value:
    """The value of a context variable. How long a loop keeps contexts is up to the loop, but the actions on release must not be
    delayed until something else happens."""

    def __init__(self, world, name):
        self.world, self.own_name = world, name

    def __del__(self):
        if not self.world.ended and not self.world.loop.is_closed() and threading.get_ident() == self.world.thread:
            self.world.loop.call_soon(self.heard, self.world, self.own_name, self.world.runs, self.world.waits())

    @staticmethod
    def heard(world, name, run, waits):
        if run == world.runs and world.waits() != waits:
            world.late.append(name)


class Callback(Mortal):
    """Acts when it is called and when it is released."""

    def __call__(self, *args):
        where = variable.get()
        self.world.note(self.own_name, "called", len(args), where if type(where) is str else "set")
        try:
            self.world.act(self.own_name)
        except BaseException:
            quieten(self, *args)
            raise
        if self.world.random(self.own_name).random() < 0.3:
            return Mortal(self.world, self.world.name("result"))

    def method(self, *args):
        return self(*args)


class Moment(float):
    """A time that collects garbage when it is released. When that happens is up to each loop: asyncio keeps a cancelled timer, and one
    whose callback raises."""

    def __del__(self):
        gc.collect()


class Whole(int):
    def __index__(self):
        gc.collect()
        return int(self)

    def __del__(self):
        gc.collect()


class Text(str):
    def __del__(self):
        gc.collect()


class Data(bytes):
    """Data that refers to other objects, and acts when it is released."""

    def __del__(self):
        gc.collect()


class Pieces(list):
    def __iter__(self):
        gc.collect()
        return super().__iter__()


def generator(world, name):
    """Acts between any two items, as an argument of a C function."""
    for _ in range(3):
        world.act_without_failing(name)
        yield name


def callback(world):
    """Return a callback and its arguments."""
    name = world.name("callback")
    mortal = Callback(world, name)
    kind = world.random(name).randrange(8)
    if kind == 0:
        return [].extend, [generator(world, world.name("generator"))]
    if kind == 1:
        return mortal.method, [mortal]
    if kind == 2:
        return functools.partial(mortal, 1), [Text("x")]
    if kind == 3:
        return mortal, [Mortal(world, world.name("argument")) for _ in range(5)]
    if kind == 4:
        return {}.update, [[(mortal, 1)]]
    if kind == 5:
        argument = Mortal(world, world.name("argument"))
        return mortal.method, [argument, argument]
    return mortal, [Mortal(world, world.name("argument"))] * (kind - 6)
