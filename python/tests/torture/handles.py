"""Callbacks, timers, tasks and descriptors, on a loop that is run for a while, left alone, and run again."""

import asyncio
import contextvars
import gc
import socket

from .hostile import Callback, Moment, Mortal, Value, Whole, World, callback, keep, variable

STEPS = 25


def play(seed, new_loop):
    world = World(seed, new_loop)
    pair = socket.socketpair()
    world.sockets = pair
    for each in pair:
        each.setblocking(False)
    gc.disable()
    try:
        for _ in range(STEPS):
            step = world.choose("step", STEP)
            world.attempt(step.__name__, step, world)
            if world.loop.is_closed():
                break
        run_for_a_while(world)
        # Nothing may have been freed twice.
        if not world.loop.is_closed():
            handles = [world.loop.call_later(1000, print) for _ in range(20)]
            world.note("distinct", len({id(handle) for handle in handles}))
    finally:
        world.ended = True
        for each in pair:
            each.close()
        world.handles.clear()
        world.loop.close()
        gc.enable()
    return world.outcome()


def soon(world):
    function, args = callback(world)
    keep(world, world.loop.call_soon(function, *args))


def later(world):
    function, args = callback(world)
    # In the past, so that due times do not depend on the speed of the machine.
    when = world.loop.time() - 1 - world.random("when").randrange(100)
    kind = world.random("when").randrange(3)
    if kind == 0:
        when = Moment(when)
    elif kind == 1:
        # Not the same twice: asyncio keeps timers in a heap, which does not preserve the order of equal ones.
        world.whole_moments += 1
        when = Whole(when - 101 * world.whole_moments)
    keep(world, world.loop.call_at(when, function, *args))


def far(world):
    function, args = callback(world)
    keep(world, world.loop.call_later(world.choose("far", [1e6, Whole(10**6), 9e9]), function, *args))


def in_context(world):
    function, args = callback(world)
    context = contextvars.copy_context()
    if world.random("context").random() < 0.5:
        context.run(variable.set, Value(world, world.name("value")))
    for _ in range(2):
        keep(world, world.loop.call_soon(function, *args, context=context))


def task(world):
    name = world.name("task")

    async def body():
        for _ in range(3):
            await asyncio.sleep(0)
            world.act(name)
        return Mortal(world, world.name("result"))

    new = world.loop.create_task(body())
    if world.random(name).random() < 0.3:
        new.add_done_callback(lambda _: world.act_without_failing(name))
    if world.random(name).random() < 0.3:
        new.cancel()


def future(world):
    name = world.name("future")
    new = world.loop.create_future()
    new.add_done_callback(Callback(world, name))
    if world.random(name).random() < 0.5:
        new.set_result(Mortal(world, world.name("result")))
    elif world.random(name).random() < 0.5:
        new.set_exception(LookupError())
    else:
        new.cancel()


class File:
    """A custom file class."""

    def __init__(self, world, sock):
        # How often it is called is up to each loop.
        self.number = world.choose("fileno", [sock.fileno(), sock.fileno(), Whole(sock.fileno()), -1, "x", None])

    def fileno(self):
        gc.collect()
        return self.number


def watch(world):
    sock = world.choose("watch", world.sockets)
    given = world.choose("watch", [sock, sock.fileno(), Whole(sock.fileno()), File(world, sock), -1, 10**6, None, "x"])
    name = world.name("watch")
    method = world.choose("watch", ["add_reader", "add_writer", "remove_reader", "remove_writer"])

    def ready(mortal):
        world.loop.remove_reader(sock)
        world.loop.remove_writer(sock)
        world.note(name, "ready")
        world.act_without_failing(name)

    args = [ready, Mortal(world, world.name("argument"))] if method.startswith("add") else []
    world.attempt(name, getattr(world.loop, method), given, *args)


def send(world):
    world.choose("send", world.sockets).send(b"x")


def cancel(world):
    if world.handles:
        handle = world.choose("cancel", world.handles)
        handle.cancel()
        world.note(handle.cancelled(), "cancelled" in repr(handle))


def ask(world):
    loop = world.loop
    world.note(loop.is_running(), loop.is_closed(), loop.get_debug(), loop.get_task_factory(), type(loop.time()).__name__)
    if len(world.handles) > 1:
        one, other = world.random("ask").sample(world.handles, 2)
        if hasattr(one, "when") and hasattr(other, "when"):
            world.note(one == other, one == one, hash(one) == hash(one))


def forget(world):
    world.handles.clear()


def collect(world):
    gc.collect()


def debug(world):
    world.loop.slow_callback_duration = 1e9
    world.loop.set_debug(not world.loop.get_debug())


def factory(world):
    name = world.name("factory")

    def make(loop, coroutine, **options):
        world.note(name, sorted(set(options) - {"eager_start"}))
        gc.collect()
        return asyncio.Task(coroutine, loop=loop)

    world.loop.set_task_factory(world.choose(name, [make, None, None]))


def wrong(world):
    """Arguments that must be refused."""
    for method, args in (
        ("call_soon", []), ("call_later", [1]), ("call_later", [None, print]), ("call_at", [None, print]), ("call_later", ["x", print]),
        ("add_reader", [0]), ("remove_reader", []), ("create_task", []), ("create_task", [5]), ("call_soon_threadsafe", []),
    ):  # fmt: skip
        world.attempt(method, getattr(world.loop, method), *args)


def run_once(world):
    world.runs += 1
    world.loop.call_soon(world.loop.stop)
    world.loop.run_forever()


def run_for_a_while(world):
    """Run until nothing happens any more. Callbacks that are missed show up after the watchdog, or never."""
    if world.loop.is_closed():
        return
    world.arm()
    world.runs += 1
    try:
        world.loop.run_forever()
    except BaseException as exc:
        world.note("run raised", type(exc).__name__)
    world.watchdog.cancel()


STEP = [
    soon, soon, soon, soon, later, later, far, in_context, task, task, future, watch, watch, send, cancel, ask, forget, collect, debug,
    factory, wrong, run_once, run_once, run_once, run_for_a_while,
]  # fmt: skip
