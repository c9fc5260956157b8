"""Servers, datagram endpoints and sock_* methods, with hostile factories and arguments."""

import asyncio
import gc
import socket

from .hostile import Data, Text, Whole, World
from .streams import Hostile, HostileStream, settle


class HostileDatagrams(Hostile, asyncio.DatagramProtocol):
    def datagram_received(self, data, address):
        self.note("datagram", len(data))
        choice = self.world.random(f"{self.name}.datagram").randrange(6)
        if choice == 0:
            self.transport.sendto(self.world.choose("answer", [b"x", Data(b"y"), bytearray(b"z"), b""]), address)
        elif choice == 1:
            raise ZeroDivisionError
        elif choice == 2:
            self.transport.close()
        elif choice == 3:
            gc.collect()

    def connection_made(self, transport):
        self.note("made")
        self.transport = transport

    def error_received(self, exc):
        self.note("error", type(exc).__name__)


def play(seed, new_loop):
    world = World(seed, new_loop)
    world.log = {}
    world.loop.set_exception_handler(lambda loop, context: world.log.setdefault("told", []).append(type(context.get("exception")).__name__))
    scenario = world.choose("scenario", [serve, exchange_datagrams, use_sockets])
    try:
        # Many operations wait for something that never happens.
        world.loop.run_until_complete(asyncio.wait_for(scenario(world), 5))
    except BaseException as exc:
        world.log.setdefault("loop", []).append(type(exc).__name__)
    finally:
        world.ended = True
        settle(world)
        world.loop.close()
    return sorted([name, *events] for name, events in world.log.items())


async def turns():
    for _ in range(10):
        await asyncio.sleep(0.001)


async def serve(world):
    loop = world.loop
    made = []

    def factory():
        name = f"connection{len(made)}"
        made.append(name)
        choice = world.random("factory").randrange(10)
        if choice == 0:
            server.close()
        elif choice == 1:
            raise LookupError
        elif choice == 2:
            gc.collect()
        elif choice == 3:
            return None
        return HostileStream(world, name)

    listener = socket.create_server(("127.0.0.1", 0))
    clients = []
    for _ in range(world.random("clients").randrange(1, 6)):
        clients.append(socket.create_connection(listener.getsockname()))
    server = await loop.create_server(factory, sock=listener)
    await turns()
    for client in clients:
        client.setblocking(False)
        try:
            client.send(b"hello")
        except OSError:
            pass
    await turns()
    for client in clients:
        client.close()
    await turns()
    server.close()
    world.log["made"] = made


async def exchange_datagrams(world):
    loop = world.loop
    protocol = HostileDatagrams(world, "protocol")
    transport, _ = await loop.create_datagram_endpoint(lambda: protocol, local_addr=("127.0.0.1", 0))
    address = transport.get_extra_info("sockname")
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    peer.bind(("127.0.0.1", 0))
    for _ in range(10):
        # One at a time: how many are received in a turn is up to each loop.
        peer.sendto(world.choose("datagram", [b"a", b"b" * 1000, b""]), address)
        await turns()
        data = world.choose("send", [b"x", Data(b"y"), bytearray(b"z"), memoryview(b"w"), "text", 5])
        to = world.choose("to", [peer.getsockname(), (Text("127.0.0.1"), Whole(peer.getsockname()[1])), None, ("127.0.0.1",), 5])
        try:
            transport.sendto(data, to)
        except Exception as exc:
            # asyncio's transport fails on its missing socket after it is closed. Ours ignores datagrams then, on
            # purpose.
            if not (isinstance(exc, AttributeError) and transport.is_closing()):
                protocol.note("sendto", type(exc).__name__)
        await turns()
    transport.abort()
    peer.close()
    await turns()


async def use_sockets(world):
    loop = world.loop
    one, other = socket.socketpair()
    log = world.log.setdefault("sockets", [])
    for each in one, other:
        each.setblocking(False)
    for _ in range(15):
        choice = world.random("method").randrange(8)
        data = world.choose("data", [b"x", Data(b"y" * 100), bytearray(b"z" * 1000), memoryview(b"w"), "text"])
        size = world.choose("size", [10, Whole(20), 100_000, "x", None, -1])
        buffer = world.choose("buffer", [bytearray(100), memoryview(bytearray(10)), None, "x"])
        waiting = None
        if choice < 3:
            waiting = loop.sock_sendall(one, data)
        elif choice < 5:
            waiting = loop.sock_recv(other, size)
        elif choice == 5:
            waiting = loop.sock_recv_into(other, buffer)
        elif choice == 6:
            waiting = loop.sock_recv(world.choose("rubbish", [None, 5, "x"]), 10)
        else:
            gc.collect()
            continue
        task = loop.create_task(waiting)
        await turns()
        if not task.done():
            log.append("waits")
            task.cancel()
            await turns()
        elif task.cancelled():
            log.append("cancelled")
        elif task.exception() is not None:
            log.append(type(task.exception()).__name__)
        else:
            result = task.result()
            log.append(len(result) if isinstance(result, bytes) else result)
    one.close()
    other.close()
