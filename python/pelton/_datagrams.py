"""Datagram transports. The reactor's datagram sockets receive and send; asyncio's manners are kept here."""

import collections
import logging
import socket
import sys
import warnings
from asyncio import constants, selector_events, transports

from . import _transports

logger = logging.getLogger("asyncio")

_AF_UNIX = getattr(socket, "AF_UNIX", None)

# What the reactor has addresses for.
_FAMILIES = {socket.AF_INET, socket.AF_INET6, _AF_UNIX}

_Base = selector_events._SelectorDatagramTransport

# Newer versions of asyncio send empty datagrams, and count some bytes for each that is queued.
_SENDS_EMPTY = sys.version_info >= (3, 13)
_HEADER = getattr(_Base, "_header_size", 8 if _SENDS_EMPTY else 0)


def _is_connected(sock):
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


class _Queue:
    """The reactor's queue of a transport, in the place of asyncio's.

    It is true until ``_sendto_ready`` has found it empty, because asyncio's own methods ask whether that will be called.
    """

    __slots__ = ("_loop", "_fd", "_sock", "unsent")

    def __init__(self, loop, fd, sock):
        self._loop, self._fd, self._sock = loop, fd, sock
        self.unsent = False

    def __bool__(self):
        return self.unsent

    def __len__(self):
        return self._loop._queued_datagrams(self._fd)[0]

    def size(self):
        count, size = self._loop._queued_datagrams(self._fd)
        return size + count * _HEADER

    def append(self, datagram):
        data, address = datagram
        if not self._loop._queue_datagram(self._fd, data, address):
            # The socket's own method, which had no room, has resolved the name before.
            host, port = address[:2]
            found = socket.getaddrinfo(host, port, self._sock.family, self._sock.type)
            self._loop._queue_datagram(self._fd, data, found[0][4][:2])
        self.unsent = True

    def clear(self):
        self.unsent = False
        self._loop._drop_datagrams(self._fd)


class DatagramTransport(_Base, transports.DatagramTransport):
    """asyncio's transport, on a datagram socket of the reactor.

    A socket that overrides methods, or has another kind of address, is only watched, and its own methods do everything.
    """

    # Whether the reactor has the socket.
    _adopted = False
    # One of a pair of Unix sockets. Its peer has no address, so asyncio considers it not connected.
    _has_nameless_peer = False
    # Early releases of Python 3.11 do not set it.
    _paused = False

    def __init__(self, loop, sock, protocol, address=None, waiter=None, extra=None):
        super().__init__(loop, sock, protocol, address, waiter, extra)
        self._has_nameless_peer = sock.family == _AF_UNIX and not self._extra["peername"] and _is_connected(sock)
        if not _transports.overrides(sock) and _transports.family_of(sock) in _FAMILIES:
            self._adopted = loop._adopt_datagrams(self._sock_fd, sock)
            if self._adopted:
                self._buffer = _Queue(loop, self._sock_fd, sock)

    def get_write_buffer_size(self):
        return self._buffer.size() if self._adopted else super().get_write_buffer_size()

    def _read_ready(self):
        if self._conn_lost:
            return
        if not self._adopted or not self._loop._receive_datagrams(self, self._sock_fd):
            super()._read_ready()

    def sendto(self, data, addr=None):
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if not data and not _SENDS_EMPTY:
            return
        if self._address:
            if addr not in (None, self._address):
                raise ValueError(f"Invalid address: must be None or {self._address}")
        if self._sock is None:
            # It is closed. Sends are ignored, as with streams.
            return
        if self._conn_lost and (self._address or self._has_nameless_peer):
            if self._conn_lost >= constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES:
                logger.warning("socket.send() raised exception.")
            self._conn_lost += 1
            return
        if addr is None and self._has_nameless_peer:
            return self._send(data, None)
        if self._extra["peername"]:
            # It is connected, and asyncio ignores the address.
            self._send(data, None)
        elif addr is None and not self._address:
            # asyncio's method raises the right error.
            super().sendto(data, addr)
        else:
            self._send(data, addr or self._address)

    def _send(self, data, addr):
        sent = NotImplemented
        if self._adopted:
            try:
                sent = self._loop._send_datagram(self._sock_fd, data, addr)
            except BlockingIOError:
                # Another thread runs the loop. Without room, it would have been queued.
                self._loop.call_soon_threadsafe(self.sendto, bytes(data), addr)
                return
            except OSError as exc:
                self._protocol.error_received(exc)
                return
        if sent is True:
            return
        if sent is NotImplemented:
            # The socket's own methods are to be called.
            return self._send_by_methods(data, addr)
        self._queued()

    def _queued(self):
        if not self._buffer:
            self._buffer.unsent = True
            self._loop._add_writer(self._sock_fd, self._sendto_ready)
        self._maybe_pause_protocol()

    def _send_by_methods(self, data, addr):
        if not self._has_nameless_peer:
            try:
                return super().sendto(data, addr)
            except socket.gaierror as exc:
                return self._protocol.error_received(exc)
        if not self._buffer:
            try:
                self._sock.send(data)
                return
            except (BlockingIOError, InterruptedError):
                self._loop._add_writer(self._sock_fd, self._sendto_ready)
            except OSError as exc:
                return self._protocol.error_received(exc)
        self._buffer.append((bytes(data), None))
        self._buffer_size += len(data)
        self._maybe_pause_protocol()

    def _sendto_ready(self):
        if not self._adopted:
            return self._sendto_ready_by_methods()
        try:
            self._loop._check_datagrams(self._sock_fd)
        except OSError as exc:
            # As in asyncio, the rest comes when this is called again.
            return self._protocol.error_received(exc)
        if not len(self._buffer):
            self._buffer.unsent = False
        self._maybe_resume_protocol()  # May append to the buffer.
        if not self._buffer:
            self._loop._remove_writer(self._sock_fd)
            if self._closing:
                self._call_connection_lost(None)

    def _sendto_ready_by_methods(self):
        if not self._has_nameless_peer:
            return super()._sendto_ready()
        while self._buffer:
            data, _ = self._buffer.popleft()
            self._buffer_size -= len(data)
            try:
                self._sock.send(data)
            except (BlockingIOError, InterruptedError):
                self._buffer.appendleft((data, None))
                self._buffer_size += len(data)
                break
            except OSError as exc:
                return self._protocol.error_received(exc)
        self._maybe_resume_protocol()
        if not self._buffer:
            self._loop._remove_writer(self._sock_fd)
            if self._closing:
                self._call_connection_lost(None)

    def _call_connection_lost(self, exc):
        self._give_back()
        super()._call_connection_lost(exc)

    def __del__(self, _warn=warnings.warn):
        self._give_back()
        super().__del__(_warn)

    def _give_back(self):
        """Let the reactor give the descriptor back, before it is closed."""
        if self._adopted:
            self._adopted = False
            self._buffer, self._buffer_size = collections.deque(), 0
            self._loop._release(self._sock_fd)
