"""The parts of transports that are not hot, in Python.

``BaseStreamTransport`` derives from asyncio's own transport. ``pelton.StreamTransport`` derives from it in Rust, and replaces
receiving and sending, with the fields that these need.
"""

import _socket
import logging
import socket
from asyncio import selector_events, transports, trsock, unix_events

logger = logging.getLogger("asyncio")


def _original_socket():
    """Return CPython's ``socket.socket``, even if the program has replaced it with another class."""
    for cls in _socket.socket.__subclasses__():
        if (cls.__module__, cls.__qualname__) == ("socket", "socket"):
            return cls
    return socket.socket


def _original_methods():
    """Return the original methods of that class by name.

    Most belong to the base class in C, which cannot be changed. A Python method that was replaced before this module was
    imported is None here.
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

# The methods that transports call. Not every system has all of them.
_USED = [
    name
    for name in ("recv", "recv_into", "recvfrom", "send", "sendmsg", "sendto", "shutdown")
    if hasattr(_socket.socket, name)
]


def overrides(sock):
    """Return whether a socket or its class overrides methods that transports call."""
    # A mock with a spec claims to be an instance, so check its type.
    return not issubclass(type(sock), _socket.socket) or any(
        getattr(sock, name) != getattr(_socket.socket, name).__get__(sock) for name in _USED
    )


# The attributes of socket.socket create an enum on every access.
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
    """The base class of ``pelton.StreamTransport``. Not useful by itself."""

    def __init__(self, loop, sock, protocol, waiter=None, extra=None, server=None):
        # Replaces the chain of four constructors in asyncio.
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


# For sockets of a class that overrides methods, which are called for everything.
SocketTransport = selector_events._SelectorSocketTransport


class DatagramTransport(selector_events._SelectorDatagramTransport, transports.DatagramTransport):
    """asyncio's transport, with the common case in Rust: IP datagrams to literal addresses."""

    _over_ip = False
    # One of a pair of Unix sockets. Its peer has no address, so asyncio considers it not connected.
    _has_nameless_peer = False
    # Early releases of Python 3.11 do not set it.
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
            # It is closed. Sends are ignored, as with streams, unless they would also be errors on an open
            # transport.
            if not isinstance(data, (bytes, bytearray, memoryview)):
                raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
            if self._address and addr not in (None, self._address):
                raise ValueError(f"Invalid address: must be None or {self._address}")
            return
        if addr is None and self._has_nameless_peer:
            return self._send_to_nameless(data)
        if self._over_ip and data and not self._buffer and not self._conn_lost and self._sock is not None:
            # A connected socket only sends to its peer.
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
    """asyncio's transport, with a smaller buffer: asyncio's would be mapped and unmapped for every read."""

    # The capacity of a pipe.
    max_size = 64 * 1024


# Not all systems can create nonblocking sockets directly.
_NONBLOCK = getattr(socket, "SOCK_NONBLOCK", 0)


def make_socket(family, number, fd):
    """Create a socket object for a descriptor that a transport owned so far; for -1, a closed one."""
    if fd < 0:
        sock = socket.socket(family, socket.SOCK_STREAM, number)
        sock.close()
        return sock
    sock = socket.socket(family, socket.SOCK_STREAM | _NONBLOCK, number, fd)
    if not _NONBLOCK:
        sock.setblocking(False)
    return sock


def describe_socket(sock):
    """Return the entries of ``get_extra_info`` for a socket with uncommon addresses."""
    extra = {"socket": trsock.TransportSocket(sock)}
    for name, ask in ("sockname", sock.getsockname), ("peername", sock.getpeername):
        try:
            extra[name] = ask()
        except OSError:
            extra[name] = None
    return extra


def lost_while_emptying(waiter):
    """Tell sendfile() that the connection is lost."""
    if not waiter.done():
        waiter.set_exception(ConnectionError("Connection is closed by peer"))


def writes_after_loss():
    """Log that a program keeps writing to a lost connection, as asyncio's transports do."""
    selector_events.logger.warning("socket.send() raised exception.")
