"""Start and end of sockets and transports, where bytes get lost and programs hang.

Tests that pass on asyncio's own loop run on both; where asyncio hangs or loses data, they run on pelton's loop only.
"""

import asyncio
import contextvars
import errno
import socket
import unittest

from both_loops import Buffered, FirstDatagram, Recorder, on_both_loops, on_pelton, until


@on_pelton
class ClosedMeanwhile:
    """A socket that is closed while an operation waits for it."""

    def operations(self):
        def pair():
            return self.pair()[0]

        def datagrams():
            return self.bound(socket.SOCK_DGRAM)

        return [
            ("sock_recv", pair, lambda sock: self.loop.sock_recv(sock, 10)),
            ("sock_recv_into", pair, lambda sock: self.loop.sock_recv_into(sock, bytearray(10))),
            ("sock_recvfrom", datagrams, lambda sock: self.loop.sock_recvfrom(sock, 10)),
            ("sock_recvfrom_into", datagrams, lambda sock: self.loop.sock_recvfrom_into(sock, bytearray(10))),
            ("sock_accept", self.bound, lambda sock: self.loop.sock_accept(sock)),
        ]

    async def waiting(self, operation):
        task = self.loop.create_task(operation)
        await asyncio.sleep(0)
        self.assertFalse(task.done())
        return task

    async def assertBadDescriptor(self, task):
        with self.assertRaises(OSError) as raised:
            await task
        self.assertEqual(raised.exception.errno, errno.EBADF)

    def test_waiting_fails(self):
        async def main():
            for name, make, operation in self.operations():
                with self.subTest(name):
                    sock = make()
                    task = await self.waiting(operation(sock))
                    sock.close()
                    await self.assertBadDescriptor(task)

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_waiting_fails_after_messages_were_received(self):
        async def main():
            one, other = self.pair()
            for _ in range(2):
                task = await self.waiting(self.loop.sock_recv(one, 10))
                other.send(b"x")
                self.assertEqual(await task, b"x")
            task = await self.waiting(self.loop.sock_recv(one, 10))
            one.close()
            await self.assertBadDescriptor(task)

        self.run_main(main())

    def test_waiting_fails_if_another_socket_has_the_number(self):
        async def main():
            for watch in (
                lambda sock: self.loop.create_task(self.loop.sock_recv(sock, 10)),
                lambda sock: self.loop.add_reader(sock, int),
                lambda sock: self.loop.add_reader(sock.fileno(), int),
            ):
                one, _ = self.pair()
                task = await self.waiting(self.loop.sock_recv(one, 10))
                number = one.fileno()
                one.close()
                while True:
                    pair = self.pair()
                    again = [sock for sock in pair if sock.fileno() == number]
                    if again:
                        break
                watched = watch(again[0])
                await self.assertBadDescriptor(task)
                # The new socket is not affected.
                if watched is None:
                    self.assertTrue(self.loop.remove_reader(again[0]))
                else:
                    pair[1 - pair.index(again[0])].send(b"data")
                    self.assertEqual(await watched, b"data")

        self.run_main(main())

    def test_all_of_many_closed_sockets_are_detected(self):
        async def main():
            socks = [self.pair()[0] for _ in range(300)]
            tasks = [await self.waiting(self.loop.sock_recv(sock, 10)) for sock in socks]
            for sock in socks[::3]:
                sock.close()
            for task in tasks[::3]:
                await self.assertBadDescriptor(task)
            for sock, task in zip(socks, tasks):
                self.assertEqual(task.done(), sock.fileno() < 0)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run_main(main())

    def test_the_loop_sleeps_while_many_wait(self):
        async def main():
            tasks = [await self.waiting(self.loop.sock_recv(self.pair()[0], 10)) for _ in range(300)]
            await asyncio.sleep(0.3)
            before = self.loop.stats()["turns"]
            await asyncio.sleep(0.5)
            self.assertLess(self.loop.stats()["turns"] - before, 20)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.run_main(main())


@on_both_loops
class Plain:
    def test_a_protocol_set_in_connection_made_gets_the_first_bytes(self):
        async def main():
            events = []

            class Switching(Recorder):
                def connection_made(self, transport):
                    super().connection_made(transport)
                    transport.set_protocol(Buffered(self.events))

            one, other = self.pair()
            other.send(b"first")
            transport, _ = await self.loop.create_connection(lambda: Switching(events), sock=one)
            await until(lambda: len(events) > 1)
            transport.set_protocol(Recorder(events))
            other.send(b"second")
            await until(lambda: len(events) > 2)
            self.assertEqual(events, ["made", ("buffered", b"first"), b"second"])
            transport.abort()

        self.run_main(main())

    def test_the_socket_is_available_after_an_abort(self):
        async def main():
            for connected in True, False:
                events = []
                if connected:
                    one, other = self.pair()
                    transport, _ = await self.loop.create_connection(lambda: Recorder(events), sock=one)
                else:
                    listener = self.bound()
                    transport, _ = await self.loop.create_connection(
                        lambda: Recorder(events), *listener.getsockname()
                    )
                    other, _ = listener.accept()
                transport.abort()
                self.assertGreaterEqual(transport.get_extra_info("socket").fileno(), 0)
                await until(lambda: len(events) > 1)
                self.assertEqual(events, ["made", ("lost", None)])
                self.assertEqual(transport.get_extra_info("socket").fileno(), -1)
                self.assertEqual(transport.get_extra_info("socket").type, socket.SOCK_STREAM)
                other.close()

        self.run_main(main())

    def test_protocols_run_in_the_context_of_their_creation(self):
        variable = contextvars.ContextVar("variable")

        class Telling(asyncio.Protocol):
            def __init__(self, name):
                self.name = name
                seen.append((name, "factory", variable.get()))

            def connection_made(self, transport):
                self.transport = transport
                seen.append((self.name, "made", variable.get()))

            def data_received(self, data):
                seen.append((self.name, data, variable.get()))

            def eof_received(self):
                seen.append((self.name, "eof", variable.get()))

            def connection_lost(self, exc):
                seen.append((self.name, "lost", variable.get()))

        seen = []

        async def main():
            variable.set("server")
            server = await self.loop.create_server(lambda: Telling("server"), "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            variable.set("client")
            transport, client = await self.loop.create_connection(lambda: Telling("client"), *address)
            variable.set("later")
            transport.write(b"data")
            transport.write_eof()
            await until(lambda: len([name for name, *_ in seen if name == "server"]) == 5)
            await until(lambda: ("client", "lost", "client") in seen)
            server.close()
            self.assertEqual({(name, value) for name, _, value in seen}, {("server", "server"), ("client", "client")})

        self.run_main(main())

    def test_variables_set_by_a_factory_are_only_seen_by_its_connection(self):
        variable = contextvars.ContextVar("variable", default=0)
        seen = []

        class Telling(asyncio.Protocol):
            def __init__(self):
                seen.append(variable.get())
                variable.set(variable.get() + 1)

            def connection_made(self, transport):
                seen.append(variable.get())
                transport.abort()

        async def main():
            server = await self.loop.create_server(Telling, "127.0.0.1", 0)
            for count in range(1, 4):
                with socket.socket() as client:
                    client.setblocking(False)
                    client.connect_ex(server.sockets[0].getsockname())
                    await until(lambda: len(seen) == 2 * count)
            server.close()

        self.run_main(main())
        self.assertEqual(seen, [0, 1] * 3)


@on_pelton
class Datagrams:
    def test_over_a_pair_of_unix_sockets(self):
        async def main():
            one, other = self.pair(socket.SOCK_DGRAM)
            transport, protocol = await self.loop.create_datagram_endpoint(FirstDatagram, sock=one)
            other.send(b"to one")
            self.assertEqual(await protocol.received, b"to one")
            sent = [b"to other %d" % number for number in range(2000)]
            for message in sent:
                transport.sendto(message)
            self.assertGreater(transport.get_write_buffer_size(), 0)
            received = [await self.loop.sock_recv(other, 100) for _ in sent]
            self.assertEqual(received, sent)
            self.assertFalse(transport.is_closing())
            transport.abort()

        self.run_main(main())
        self.assertEqual(self.errors, [])

    def test_sending_after_closing_is_ignored(self):
        async def main():
            address = self.bound(socket.SOCK_DGRAM).getsockname()
            for remote in None, address:
                for end in "close", "abort":
                    transport, _ = await self.loop.create_datagram_endpoint(
                        FirstDatagram, local_addr=("127.0.0.1", 0), remote_addr=remote
                    )
                    getattr(transport, end)()
                    transport.sendto(b"let pass", None if remote else address)
                    await asyncio.sleep(0.01)
                    for _ in range(3):
                        transport.sendto(b"let pass", None if remote else address)
                    with self.assertRaises(TypeError):
                        transport.sendto("text", None if remote else address)
                    if remote:
                        with self.assertRaises(ValueError):
                            transport.sendto(b"to another", ("127.0.0.1", 1))

        self.run_main(main())
        self.assertEqual(self.errors, [])


if __name__ == "__main__":
    unittest.main()
