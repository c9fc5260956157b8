"""The parts of transports that are not hot, in Python.

``BaseStreamTransport`` derives from asyncio's own transport. ``pelton.StreamTransport`` derives from it in Rust, and replaces
receiving and sending, with the fields that these need.
"""

import _socket
import logging
import socket
from asyncio import selector_events, transports, trsock

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
