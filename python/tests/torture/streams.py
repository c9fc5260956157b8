"""Stream transports with protocols that run hostile code in every callback."""

import asyncio
import gc
import inspect
import socket
from asyncio import selector_events

from .hostile import Data, Pieces, Text, Whole, World

STEPS = 20

WRITELINES_IS_LIKE_WRITE = "_maybe_pause_protocol" in inspect.getsource(selector_events._SelectorSocketTransport.writelines)


class Hostile:
    """Records its callbacks, and acts."""

    def __init__(self, world, name):
        self.world, self.name, self.transport = world, name, None
        self.received = 0
        self.patience = 30

    def note(self, *event):
        self.world.log.setdefault(self.name, []).append(event)

    def act(self, callback):
        self.patience -= 1
        if self.patience < 0 or self.world.ended:
            return None
        return self.world.choose(f"{self.name}.{callback}", ACTIONS)(self)

    def connection_made(self, transport):
        self.note("made")
        self.transport = transport
        self.act("made")

    def connection_lost(self, exc):
        self.note("lost", type(exc).__name__)
        self.act("lost")

    def eof_received(self):
        self.note("eof")
        self.act("eof")
        return self.world.random(f"{self.name}.keep").random() < 0.5

    def pause_writing(self):
        self.note("pause")
        self.act("pause")

    def resume_writing(self):
        self.note("resume")
        self.act("resume")

    def data_received(self, data):
        self.note("data", len(data))
        self.received += len(data)
        self.act("data")


class HostileStream(Hostile, asyncio.Protocol):
    pass


class HostileBuffer(Hostile, asyncio.BufferedProtocol):
    def get_buffer(self, hint):
        self.buffer = self.world.choose(f"{self.name}.buffer", [bytearray(4000), memoryview(bytearray(4000)), bytearray(10), b"fixed", bytearray(0), None])
        # Which of two protocols is called for the first one's buffer is not compared.
        if self.world.random(f"{self.name}.in_buffer").random() < 0.5:
            self.world.choose(f"{self.name}.in_buffer", [method("close"), method("abort"), method("pause_reading"), fail, collect, write])(self)
        return self.buffer

    def buffer_updated(self, count):
        self.note("data", count)
        self.received += count
        self.act("data")


def write(protocol):
    data = protocol.world.choose(
        f"{protocol.name}.write",
        [b"x", b"y" * 5000, bytearray(b"z" * 100), memoryview(b"abc"), Data(b"w" * 1000), b"", "text", None, b"large" * 100_000, Data(b"v" * 400_000)],
    )
    attempt(protocol, "write", data)


def writelines(protocol):
    data = protocol.world.choose(
        f"{protocol.name}.lines",
        [[b"a", b"b"], Pieces([b"c", bytearray(b"d")]), (b"e" for _ in range(3)), [Data(b"f" * 1000)] * 3, [], [b"g", "text"], 5, [b"", b"h" * 200_000]],
    )
    # Some versions of asyncio neither pause the protocol nor notice that the connection is lost.
    if WRITELINES_IS_LIKE_WRITE and not protocol.transport.is_closing():
        attempt(protocol, "writelines", data)


def method(name, *args):
    return lambda protocol: attempt(protocol, name, *args)


def attempt(protocol, name, *args):
    try:
        result = getattr(protocol.transport, name)(*args)
    except Exception as exc:
        protocol.note(name, type(exc).__name__)
    else:
        protocol.note(name, result if type(result) in (bool, type(None)) else type(result).__name__)


def change_protocol(protocol):
    made = protocol.world.choose(f"{protocol.name}.class", [HostileStream, HostileBuffer])(protocol.world, protocol.name)
    made.transport, made.patience = protocol.transport, protocol.patience
    attempt(protocol, "set_protocol", made)


def fail(protocol):
    raise ZeroDivisionError


def collect(protocol):
    gc.collect()


def stop(protocol):
    # Not while a scenario opens something: in which turn of that asyncio calls `connection_made` is its own business.
    if not protocol.world.opening:
        protocol.world.loop.stop()


def nothing(protocol):
    pass


ACTIONS = [
    write, write, write, writelines, change_protocol, fail, collect, stop, nothing, nothing, nothing, nothing, method("close"), method("abort"),
    method("pause_reading"), method("resume_reading"), method("is_reading"), method("is_closing"), method("write_eof"), method("can_write_eof"),
    method("get_write_buffer_size"), method("set_write_buffer_limits", 100, 10), method("set_write_buffer_limits", 10, 100),
    method("set_write_buffer_limits", Whole(100)), method("get_extra_info", "peername"), method("get_extra_info", Text("socket")),
    method("get_extra_info", "nothing", 5), method("get_extra_info", []), method("get_protocol"), method("get_write_buffer_limits"),
]  # fmt: skip


def settle(world):
    """Run the loop for many turns, including polls."""
    for _ in range(6):
        world.loop.call_later(0.0005, world.loop.stop)
        try:
            world.loop.run_forever()
        except BaseException as exc:
            world.log.setdefault("loop", []).append(type(exc).__name__)


def play(seed, new_loop):
    world = World(seed, new_loop)
    world.log = {}
    loop = world.loop
    loop.slow_callback_duration = 1e9
    loop.set_debug(world.random("debug").random() < 0.2)
    loop.set_exception_handler(lambda loop, context: world.log.setdefault("told", []).append(type(context.get("exception")).__name__))
    ours, peer = socket.socketpair()
    for each in ours, peer:
        each.setblocking(False)
        # So that little fits, on either loop.
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    kind = world.choose("kind", [HostileStream, HostileBuffer])
    protocol = kind(world, "protocol")
    peer_log, peer_received = [], 0
    try:
        try:
            loop.run_until_complete(loop.create_connection(lambda: protocol, sock=ours))
        except BaseException as exc:
            world.log.setdefault("loop", []).append(type(exc).__name__)
        settle(world)
        for _ in range(STEPS):
            choice = world.random("step").randrange(8)
            try:
                if choice < 2:
                    peer_log.append(peer.send(b"p" * world.choose("size", [1, 100, 3000])))
                elif choice < 4:
                    for _ in range(200):
                        data = peer.recv(65536)
                        peer_received += len(data)
                        if not data:
                            break
                elif choice == 4 and world.random("end").random() < 0.3:
                    world.choose("end", [lambda: peer.shutdown(socket.SHUT_WR), peer.close])()
                elif protocol.transport is not None:
                    protocol.patience += 1
                    protocol.act("outside")
            except Exception as exc:
                peer_log.append(type(exc).__name__)
            settle(world)
        # The rest arrives. How it is divided is not compared.
        for _ in range(50):
            try:
                data = peer.recv(1 << 20)
                peer_received += len(data)
                if not data:
                    break
            except OSError:
                settle(world)
                if protocol.transport is None or not protocol.transport.get_write_buffer_size():
                    break
    finally:
        world.ended = True
        for each in ours, peer:
            each.close()
        settle(world)
        loop.close()
    return [*sorted([name, *events] for name, events in world.log.items()), ["peer", peer_received, peer_log]]
