"""What of transports is not hot, in Python.

``BaseStreamTransport`` derives from asyncio's own transport; ``pelton.StreamTransport`` derives from it, in Rust, and replaces
what receives and sends, together with the fields that this needs.
"""

import _socket
import logging
import socket
import sys
from asyncio import base_events, futures, protocols, selector_events, transports, trsock

logger = logging.getLogger("asyncio")

# Since then, a server keeps its transports apart.
_SERVERS_KNOW_TRANSPORTS = sys.version_info >= (3, 13)

# The attributes of socket.socket make enums of them, each time.
family_of = _socket.socket.family.__get__
type_of = _socket.socket.type.__get__
protocol_of = _socket.socket.proto.__get__


class BaseStreamTransport(selector_events._SelectorSocketTransport):
    """The base class of ``pelton.StreamTransport``, of no use by itself."""

    def __init__(self, loop, sock, protocol, waiter=None, extra=None, server=None):
        # What asyncio's constructors do, of which there are four, one calling the other.
        self._extra = extra = {} if extra is None else extra
        extra["socket"] = trsock.TransportSocket(sock)
        try:
            extra["sockname"] = sock.getsockname()
        except OSError:
            extra["sockname"] = None
        if "peername" not in extra:
            try:
                extra["peername"] = sock.getpeername()
            except OSError:
                extra["peername"] = None
        self._loop = loop
        self._sock = sock
        self._sock_fd = fd = sock.fileno()
        self._protocol_paused = False
        self._high_water = 64 * 1024
        self._low_water = 16 * 1024
        self._protocol_connected = False
        self.set_protocol(protocol)
        self._server = server
        if server is not None:
            if _SERVERS_KNOW_TRANSPORTS:
                server._attach(self)
            else:
                server._attach()
        loop._transports[fd] = self
        set_nodelay(sock)
        loop.call_soon(protocol.connection_made, self)
        # Not before the protocol knows of the connection.
        loop.call_soon(self._add_reader, fd, self._read_ready)
        if waiter is not None:
            loop.call_soon(futures._set_result_unless_cancelled, waiter, None)

    def close(self):
        if self._closing:
            return
        self._closing = True
        loop, fd = self._loop, self._sock_fd
        loop._remove_reader(fd)
        if not self._buffer:
            self._conn_lost += 1
            loop._remove_writer(fd)
            loop.call_soon(self._call_connection_lost, None)

    def set_protocol(self, protocol):
        self._buffered = isinstance(protocol, protocols.BufferedProtocol)
        self._protocol = protocol
        self._protocol_connected = True

    def _call_connection_lost(self, exc):
        # From here on, writes are let pass; also if what was waiting at close() has been sent only now.
        self._conn_lost += 1
        super()._call_connection_lost(exc)

    def _wait_for_room(self):
        """Not everything could be sent."""
        self._loop._add_writer(self._sock_fd, self._write_ready)

    def _sent_some(self):
        """There was room, and perhaps for everything."""
        self._maybe_resume_protocol()  # It may write more.
        if self._buffer:
            return
        self._loop._remove_writer(self._sock_fd)
        if self._empty_waiter is not None:
            self._empty_waiter.set_result(None)
        if self._closing:
            self._call_connection_lost(None)
        elif self._eof:
            self._sock.shutdown(socket.SHUT_WR)

    def _writing_failed(self, exc, message):
        self._loop._remove_writer(self._sock_fd)
        self._buffer.clear()
        self._fatal_error(exc, message)
        if self._empty_waiter is not None:
            self._empty_waiter.set_exception(exc)

    def _fatal_error(self, exc, message="Fatal error on transport"):
        if isinstance(exc, OSError):
            if self._loop.get_debug():
                logger.debug("%r: %s", self, message, exc_info=exc)
            self._force_close(exc)
        else:
            super()._fatal_error(exc, message)


# Datagrams that are received before others get their turn.
_DATAGRAMS_AT_ONCE = 32


class DatagramTransport(selector_events._SelectorDatagramTransport, transports.DatagramTransport):
    """asyncio's transport, but for the common case, which is done in Rust: datagrams over IP, to literal addresses."""

    _over_ip = False

    def __init__(self, loop, sock, protocol, address=None, waiter=None, extra=None):
        super().__init__(loop, sock, protocol, address, waiter, extra)
        self._over_ip = issubclass(type(sock), _socket.socket) and family_of(sock) in (socket.AF_INET, socket.AF_INET6)

    def _read_ready(self):
        if not self._over_ip:
            return super()._read_ready()
        loop = self._loop
        for _ in range(_DATAGRAMS_AT_ONCE):
            if self._conn_lost or self._paused:
                return
            try:
                received = loop._recv_datagram(self._sock.fileno())
            except OSError as error:
                self._protocol.error_received(error)
                return
            if received is None:
                return
            self._protocol.datagram_received(*received)

    def sendto(self, data, addr=None):
        if self._over_ip and data and not self._buffer and not self._conn_lost and self._sock is not None:
            # A connected socket sends to nobody else.
            to = addr if self._address is None else None
            if (addr is None) == (to is None) and (to is not None or self._extra["peername"]):
                if self._loop._send_datagram(self._sock.fileno(), data, to):
                    return
        super().sendto(data, addr)


def set_nodelay(sock):
    """Have small writes sent at once, and not when the last one has been acknowledged."""
    if not issubclass(type(sock), _socket.socket):
        base_events._set_nodelay(sock)
    elif (
        protocol_of(sock) == socket.IPPROTO_TCP
        and type_of(sock) == socket.SOCK_STREAM
        and family_of(sock) in (socket.AF_INET, socket.AF_INET6)
    ):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def writes_after_loss():
    """Log that a program goes on writing to a connection that is lost, as asyncio's transports do."""
    selector_events.logger.warning("socket.send() raised exception.")
