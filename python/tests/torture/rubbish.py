"""Private attributes overwritten with rubbish. Any result is fine except a crash."""

import asyncio
import gc
import socket

from .hostile import ACTIONS, Callback, Data, Moment, Mortal, Text, Whole, World, run_inside


class Equal(int):
    """A key that changes the dictionary in which it is compared."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        gc.collect()
        return False


class Strange:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Strange()

    def __call__(self, *args, **kwargs):
        gc.collect()
        return Strange()

    def __len__(self):
        gc.collect()
        return 10**9

    def __index__(self):
        return 10**9

    def fileno(self):
        return 10**6


def rubbish(world):
    return world.choose(
        "rubbish",
        [
            None, 5, -5, 1 << 40, 1 << 80, [], {}, {Equal(1): 1, Equal(2): 2}, Strange(), "x", b"x", print, gc.collect, Mortal(world, "rubbish"),
            Whole(3), Text("x"), Data(b"x"), object(), Callback(world, "rubbish"), Moment(1.5), True, int,
        ],
    )  # fmt: skip


def spoil(world, thing):
    names = sorted(name for name in {*dir(thing), *getattr(thing, "__dict__", {})} if name.startswith("_") and not name.startswith("__"))
    # If the loop's own turn is replaced, it may never end.
    name = world.choose("name", [name for name in names if name not in ("_run_once", "_run_until_stopped", "_ssock", "_csock")])
    try:
        if world.random("delete").random() < 0.1:
            delattr(thing, name)
        else:
            setattr(thing, name, rubbish(world))
    except Exception:
        pass


def play(seed, new_loop):
    world = World(seed, new_loop)
    # A loop that does not know that it is running would run inside itself and not end.
    world.actions = [action for action in ACTIONS if action is not run_inside]
    loop = world.loop
    pairs = [socket.socketpair() for _ in range(2)]
    for each in sum(pairs, ()):
        each.setblocking(False)

    def turn():
        loop.call_later(0.01, loop.stop)
        loop.run_forever()

    async def open_all():
        return [(await loop.create_connection(asyncio.Protocol, sock=one))[0] for one, _ in pairs]

    transports = loop.run_until_complete(open_all())
    handles = [loop.call_later(1000, print), loop.call_soon(print, 1), loop.call_at(Moment(9e9), print)]
    things = [loop, *transports, *handles]
    for _ in range(10):
        spoil(world, world.choose("thing", things))
        transport, peer = transports[0], pairs[0][1]
        use = [
            lambda: loop.add_reader(pairs[1][1], int), lambda: loop.remove_reader(pairs[1][1]), lambda: loop.add_writer(0, int),
            lambda: loop.call_soon(int), lambda: loop.call_later(0, int), loop.create_future, turn, loop.stats if hasattr(loop, "stats") else int,
            lambda: transport.write(b"x" * 1000), lambda: transport.write(Data(b"x" * 1_000_000)), lambda: transport.writelines([b"x", bytearray(3)]),
            lambda: transport.get_extra_info("socket"), lambda: transport.get_extra_info(Text("peername")), transport.pause_reading,
            transport.resume_reading, lambda: transport.set_protocol(asyncio.Protocol()), lambda: peer.send(b"y"), lambda: peer.recv(100_000),
            lambda: repr(transport), lambda: repr(handles), transport.close, transport.abort, handles[0].cancel, handles[1].cancel, gc.collect,
        ]  # fmt: skip
        for action in world.random("use").sample(use, 6):
            try:
                action()
            except (Exception, KeyboardInterrupt, SystemExit):
                pass
    world.ended = True
    for each in sum(pairs, ()):
        each.close()
    # A loop with rubbish in its attributes may end without resetting the running loop, and then no other could run.
    asyncio._set_running_loop(None)
    return []
