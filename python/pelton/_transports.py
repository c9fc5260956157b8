"""What of transports is not hot, in Python.

``BaseStreamTransport`` derives from asyncio's own transport; ``pelton.StreamTransport`` derives from it, in Rust, and replaces
what receives and sends, together with the fields that this needs.
"""

import _socket
import logging
import socket
from asyncio import base_events, selector_events, transports, trsock, unix_events

logger = logging.getLogger("asyncio")


def _original_socket():
    """Return ``socket.socket`` as CPython made it, also if a program has put another class in its place."""
    for cls in _socket.socket.__subclasses__():
        if (cls.__module__, cls.__qualname__) == ("socket", "socket"):
            return cls
    return socket.socket


def _original_methods():
    """Return the methods of that class by name, as they are unless somebody has replaced them.

    Most are of the class in C that it derives from, which cannot be changed. Of those in Python, one that was replaced before this
    module was imported is None here.
    """
    in_python = {"accept", "close", "detach"}
    methods = {
        name: method
        for name, method in vars(_socket.socket).items()
        if callable(method) and not name.startswith("__") and name not in in_python
    }
    for name in in_python:
        method = vars(SOCKET).get(name)
        methods[name] = method if getattr(method, "__globals__", None) is vars(socket) else None
    return methods


SOCKET = _original_socket()
# None if it was replaced before this module was imported.
GET_EXTRA_INFO = transports.BaseTransport.get_extra_info
if getattr(GET_EXTRA_INFO, "__globals__", None) is not vars(transports):
    GET_EXTRA_INFO = None
SOCKET_METHODS = _original_methods()

# What transports call. Not every system has all of them.
_USED = [
    name
    for name in ("recv", "recv_into", "recvfrom", "send", "sendmsg", "sendto", "shutdown")
    if hasattr(_socket.socket, name)
]

# Whether asyncio's stream transports have several pieces sent by one call.
SEND_PIECES = getattr(selector_events, "_HAS_SENDMSG", False)


def overrides(sock):
    """Return whether a socket has methods of its own, or of its class, in the place of those that transports call."""
    # A mock that is specified as one says that it is an instance.
    return not issubclass(type(sock), _socket.socket) or any(
        getattr(sock, name) != getattr(_socket.socket, name).__get__(sock) for name in _USED
    )


# The attributes of socket.socket make enums of them, each time.
family_of = _socket.socket.family.__get__
protocol_of = _socket.socket.proto.__get__


_AF_UNIX = getattr(socket, "AF_UNIX", None)


def _is_connected(sock):
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


class BaseStreamTransport(selector_events._SelectorSocketTransport):
    """The base class of ``pelton.StreamTransport``, of no use by itself."""

    def __init__(self, loop, sock, protocol, waiter=None, extra=None, server=None):
        # What asyncio's constructors do, of which there are four, one calling the other.
        self._open(loop, sock, protocol, waiter, extra, server)

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


class DatagramTransport(selector_events._SelectorDatagramTransport, transports.DatagramTransport):
    """asyncio's transport, but for the common case, which is done in Rust: datagrams over IP, to literal addresses."""

    _over_ip = False
    # One of a pair of Unix sockets: its peer has no address, and asyncio takes it for not connected.
    _has_nameless_peer = False
    # Releases of Python 3.11 before some point do not set it.
    _paused = False

    def __init__(self, loop, sock, protocol, address=None, waiter=None, extra=None):
        super().__init__(loop, sock, protocol, address, waiter, extra)
        self._has_nameless_peer = sock.family == _AF_UNIX and not self._extra["peername"] and _is_connected(sock)
        self._over_ip = not overrides(sock) and family_of(sock) in (socket.AF_INET, socket.AF_INET6)

    def _read_ready(self):
        if self._conn_lost:
            return
        if not self._over_ip or not self._loop._receive_datagrams(self, self._sock.fileno()):
            super()._read_ready()

    def sendto(self, data, addr=None):
        if self._sock is None:
            # It is closed. What is sent is let pass, as with streams, unless it is a mistake also on one that is open.
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
            if self._address and addr not in (None, self._address):
                raise ValueError(f"Invalid address: must be None or {self._address}")
            return
        if addr is None and self._has_nameless_peer:
            return self._send_to_nameless(data)
        if self._over_ip and data and not self._buffer and not self._conn_lost and self._sock is not None:
            # A connected socket sends to nobody else.
            to = addr if self._address is None else None
            if (addr is None) == (to is None) and (to is not None or self._extra["peername"]):
                if self._loop._send_datagram(self._sock.fileno(), data, to):
                    return
        super().sendto(data, addr)


    def _send_to_nameless(self, data):
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._conn_lost:
            self._conn_lost += 1
            return
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


class ReadPipeTransport(unix_events._UnixReadPipeTransport):
    """asyncio's transport, which would have memory mapped and unmapped for every read."""

    # What a pipe holds.
    max_size = 64 * 1024


# Not everywhere are there sockets that are made not to block.
_NONBLOCK = getattr(socket, "SOCK_NONBLOCK", 0)


def make_socket(family, number, fd):
    """Make a socket object for a descriptor that a transport has had for itself so far; for -1, one that is closed."""
    if fd < 0:
        sock = socket.socket(family, socket.SOCK_STREAM, number)
        sock.close()
        return sock
    sock = socket.socket(family, socket.SOCK_STREAM | _NONBLOCK, number, fd)
    if not _NONBLOCK:
        sock.setblocking(False)
    return sock


def describe_socket(sock):
    """Return what ``get_extra_info`` is to know of a socket whose addresses are of an uncommon kind."""
    extra = {"socket": trsock.TransportSocket(sock)}
    for name, ask in ("sockname", sock.getsockname), ("peername", sock.getpeername):
        try:
            extra[name] = ask()
        except OSError:
            extra[name] = None
    return extra


set_nodelay = base_events._set_nodelay


def lost_while_emptying(waiter):
    """Tell sendfile() that the connection is gone."""
    if not waiter.done():
        waiter.set_exception(ConnectionError("Connection is closed by peer"))


def writes_after_loss():
    """Log that a program goes on writing to a connection that is lost, as asyncio's transports do."""
    selector_events.logger.warning("socket.send() raised exception.")
