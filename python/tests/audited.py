"""Audit events of sockets. In its own process, because a hook cannot be removed and changes how pelton uses sockets."""

import asyncio
import contextlib
import socket
import sys
import unittest

from both_loops import on_both_loops

# The socket events seen by the hook, while it is a list, and the event to forbid.
audit = {"events": None, "forbid": None}


def hook(event, arguments):
    events = audit["events"]
    if events is not None and event.startswith("socket."):
        events.append((event, arguments))
        if audit["forbid"] == event:
            raise PermissionError("forbidden by the hook")


sys.addaudithook(hook)


@contextlib.contextmanager
def audited(forbid=None):
    """Collect the socket events that hooks see."""
    audit.update(events=[], forbid=forbid)
    try:
        yield audit["events"]
    finally:
        audit.update(events=None, forbid=None)


@on_both_loops
class Auditing:
    def test_connecting_is_audited(self):
        address, ways = self.ways_to_connect()
        for way in ways:
            with self.subTest(way.__name__), audited() as events:
                self.run_main(way())
                made = [arguments[0] for event, arguments in events if event == "socket.__new__"]
                connected = [arguments for event, arguments in events if event == "socket.connect"]
                self.assertEqual(len(made), 1)
                self.assertEqual(connected, [(made[0], address)])

    def test_a_hook_can_forbid_connecting(self):
        _, ways = self.ways_to_connect()
        for way in ways:
            for event in "socket.__new__", "socket.connect":
                with self.subTest(way.__name__, event=event), audited(forbid=event):
                    with self.assertRaisesRegex(PermissionError, "by the hook"):
                        self.run_main(way())

    def test_sending_datagrams_is_audited(self):
        address, ways = self.ways_to_send_datagrams()
        for way in ways:
            with self.subTest(way.__name__), audited() as events:
                self.run_main(way())
                sent = [arguments[1] for event, arguments in events if event == "socket.sendto"]
                self.assertEqual(sent, [address])

    def test_accepting_is_audited(self):
        async def main():
            made = self.loop.create_future()

            class Accepted(asyncio.Protocol):
                def connection_made(self, transport):
                    made.set_result(transport)

            server = await self.loop.create_server(Accepted, sock=self.bound())
            with socket.socket() as client, audited() as events:
                client.setblocking(False)
                client.connect_ex(server.sockets[0].getsockname())
                transport = await made
                self.assertEqual([event for event, _ in events], ["socket.connect", "socket.__new__"])
                transport.abort()
            server.close()

            listener = self.bound()
            with socket.socket() as client, audited() as events:
                client.setblocking(False)
                client.connect_ex(listener.getsockname())
                accepted, _ = await self.loop.sock_accept(listener)
                accepted.close()
                self.assertEqual([event for event, _ in events], ["socket.connect", "socket.__new__"])

        self.run_main(main())


if __name__ == "__main__":
    unittest.main()
