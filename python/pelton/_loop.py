"""The parts of the loop that are not hot, in Python.

``BaseLoop`` derives from asyncio's own loop for Unix, which implements everything that is built on watching descriptors:
TLS, pipes, subprocesses, signals, servers. ``pelton.Loop`` derives from ``BaseLoop`` in Rust, and replaces the foundation:
queue, timers, descriptor watching, and the turn.
"""

import _socket
import asyncio
import errno
import functools
import os
import selectors
import signal
import socket
import sys
import threading

try:
    import ssl
except ImportError:
    ssl = None
from asyncio import base_events, constants, events, format_helpers, futures, trsock, unix_events

from . import _datagrams, _pipes, _transports

# Temporary shortages.
_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_SOCKET = _transports.SOCKET

_OVER_IP = socket.AF_INET, socket.AF_INET6

# The options of create_connection(), which differ between versions of Python.
_CONNECT_OPTIONS = base_events.BaseEventLoop.create_connection.__kwdefaults__.keys()

# Seconds; longer than any callback takes.
_A_LIFETIME = 3e9

_NAMES_DEBUG = sys.version_info >= (3, 13)


@functools.cache
def _has_pidfds():
    """Return whether the kernel supports process descriptors and lets us use them."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class Selector(selectors.BaseSelector):
    """The object behind ``loop._selector``.

    asyncio's transports ask it for their repr whether a descriptor is watched. Waiting is done by the loop itself.
    """

    def __init__(self, loop):
        self._loop = loop

    def _not_here(self, *_args):
        raise NotImplementedError(
            "a pelton.Loop watches descriptors itself; use its add_reader() and add_writer()"
        )

    register = unregister = modify = _not_here

    def select(self, timeout=None):
        raise NotImplementedError(
            "a pelton.Loop watches descriptors itself and cannot be nested, which is what nest_asyncio does. "
            "Instead of loop.run_until_complete(), await the coroutine: a notebook allows it in any cell. From code that "
            "cannot await, run it on a loop of another thread with asyncio.run_coroutine_threadsafe(). A program that needs "
            "nest_asyncio has to run on asyncio's own loop: asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)"
        )

    def get_key(self, fileobj):
        loop = self._loop
        if loop is None:
            raise RuntimeError("Selector is closed")
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        reader, writer = loop._watched(fd)
        mask = (selectors.EVENT_READ if reader else 0) | (selectors.EVENT_WRITE if writer else 0)
        if not mask:
            raise KeyError(f"{fileobj!r} is not registered")
        return selectors.SelectorKey(fileobj, fd, mask, (reader, writer))

    def get_map(self):
        loop = self._loop
        return None if loop is None else {fd: self.get_key(fd) for fd in loop._watched_descriptors()}

    def close(self):
        loop, self._loop = self._loop, None
        if loop is not None:
            loop._close_core()


class BaseLoop(asyncio.SelectorEventLoop):
    """The base class of ``pelton.Loop``. Not useful by itself."""

    def __init__(self):
        try:
            # asyncio's constructor starts by asking for debug mode. All state already exists, in Rust.
            super().__init__(Selector(self))
        except BaseException:
            # So that there is nothing to close when it is deleted.
            self._close_core()
            raise
        # For add_reader() and similar methods, which refuse descriptors that a transport uses.
        self._transports_by_descriptor = self._transports.data

    def run_forever(self):
        """Run until stop() is called."""
        self._check_closed()
        self._check_running()
        self._set_coroutine_origin_tracking(self._debug)

        old_hooks = sys.get_asyncgen_hooks()
        woken_by_signals = False
        try:
            self._thread_id = threading.get_ident()
            sys.set_asyncgen_hooks(
                firstiter=self._asyncgen_firstiter_hook, finalizer=self._asyncgen_finalizer_hook
            )
            events._set_running_loop(self)
            woken_by_signals = self._wake_on_signals()
            self._run_until_stopped()
        finally:
            if woken_by_signals and not self._signal_handlers:
                self._set_wakeup_fd(-1)
            self._stopping = False
            self._thread_id = None
            events._set_running_loop(None)
            self._set_coroutine_origin_tracking(False)
            sys.set_asyncgen_hooks(*old_hooks)

    def _wake_on_signals(self):
        """Let signals wake the loop, so that a signal that arrives just before it sleeps is handled at once."""
        if threading.current_thread() is not threading.main_thread():
            return False
        previous = self._set_wakeup_fd(self._csock.fileno())
        if previous is None:
            return False
        if previous not in (-1, self._csock.fileno()):
            # The program has already set its own wakeup descriptor.
            self._set_wakeup_fd(previous)
            return False
        return True

    @staticmethod
    def _set_wakeup_fd(fd):
        try:
            return signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
        except (ValueError, OSError):
            # Not in the main interpreter, or not a descriptor that signals can be written to.
            return None

    def _make_socket_transport(self, sock, protocol, waiter=None, *, extra=None, server=None):
        self._ensure_fd_no_transport(sock)
        return self._stream_transport_class(sock)(self, sock, protocol, waiter, extra, server)

    @staticmethod
    def _stream_transport_class(sock):
        """Return asyncio's own class for a socket with overridden methods, which must be called."""
        if type(sock) is _SOCKET or not _transports.overrides(sock):
            return _pelton.StreamTransport
        return _transports.SocketTransport

    def _make_ssl_transport(
        self,
        rawsock,
        protocol,
        sslcontext,
        waiter=None,
        *,
        server_side=False,
        server_hostname=None,
        extra=None,
        server=None,
        ssl_handshake_timeout=constants.SSL_HANDSHAKE_TIMEOUT,
        ssl_shutdown_timeout=constants.SSL_SHUTDOWN_TIMEOUT,
    ):
        self._ensure_fd_no_transport(rawsock)
        ssl_protocol = _pelton.SSLProtocol(
            self,
            protocol,
            sslcontext,
            waiter,
            server_side,
            server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )
        self._stream_transport_class(rawsock)(self, rawsock, ssl_protocol, extra=extra, server=server)
        return ssl_protocol._app_transport

    async def start_tls(
        self,
        transport,
        protocol,
        sslcontext,
        *,
        server_side=False,
        server_hostname=None,
        ssl_handshake_timeout=None,
        ssl_shutdown_timeout=None,
    ):
        """Upgrade a transport to TLS, and return the transport that the protocol must use from now on."""
        if ssl is None or not isinstance(sslcontext, ssl.SSLContext) or not getattr(
            transport, "_start_tls_compatible", False
        ):
            # asyncio raises the right error.
            return await super().start_tls(transport, protocol, sslcontext)
        waiter = self.create_future()
        tls = _pelton.SSLProtocol(
            self,
            protocol,
            sslcontext,
            waiter,
            server_side,
            server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
            call_connection_made=False,
        )
        # Nothing may be received before connection_made() is called.
        transport.pause_reading()
        transport.set_protocol(tls)
        handles = self.call_soon(tls.connection_made, transport), self.call_soon(transport.resume_reading)
        try:
            await waiter
        except BaseException:
            transport.close()
            for handle in handles:
                handle.cancel()
            raise
        return tls._app_transport

    def _make_read_pipe_transport(self, pipe, protocol, waiter=None, extra=None):
        return _pipes.ReadPipeTransport(self, pipe, protocol, waiter, extra)

    def _make_write_pipe_transport(self, pipe, protocol, waiter=None, extra=None):
        return _pipes.WritePipeTransport(self, pipe, protocol, waiter, extra)

    if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):

        async def _make_subprocess_transport(
            self, protocol, args, shell, stdin, stdout, stderr, bufsize, extra=None, **kwargs
        ):
            # Before Python 3.12, asyncio starts a thread for each child, unless the program has set another
            # watcher.
            arguments = self, protocol, args, shell, stdin, stdout, stderr, bufsize
            if type(events.get_child_watcher()) is not asyncio.ThreadedChildWatcher or not _has_pidfds():
                return await super()._make_subprocess_transport(*arguments[1:], extra=extra, **kwargs)
            waiter = self.create_future()
            transport = unix_events._UnixSubprocessTransport(*arguments, waiter=waiter, extra=extra, **kwargs)
            watcher = asyncio.PidfdChildWatcher()
            watcher.attach_loop(self)
            watcher.add_child_handler(transport.get_pid(), self._child_watcher_callback, transport)
            try:
                await waiter
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException:
                transport.close()
                await transport._wait()
                raise
            return transport

    def _make_datagram_transport(self, sock, protocol, address=None, waiter=None, extra=None):
        self._ensure_fd_no_transport(sock)
        return _datagrams.DatagramTransport(self, sock, protocol, address, waiter, extra)

    def _start_serving(self, protocol_factory, sock, *options, **named_options):
        if type(sock) is _SOCKET:
            # If the reactor cannot have it, it is watched, and accepts itself.
            self._adopt_listener(sock.fileno(), sock)
        super()._start_serving(protocol_factory, sock, *options, **named_options)

    def _stop_serving(self, sock):
        fd = sock.fileno()
        if fd >= 0:
            self._release(fd)
        super()._stop_serving(sock)

    def _accept_connection(
        self,
        protocol_factory,
        sock,
        sslcontext=None,
        server=None,
        backlog=100,
        *timeouts,
    ):
        if (
            self._debug
            or type(sock) is not _SOCKET
            or socket.socket is not _SOCKET
            or self._sockets_are_guarded()
        ):
            return super()._accept_connection(protocol_factory, sock, sslcontext, server, backlog, *timeouts)
        fd = sock.fileno()
        kind = _transports.family_of(sock), _transports.protocol_of(sock)
        try:
            if sslcontext is not None:
                accepts = self._accept_for_tls(fd, kind, protocol_factory, sslcontext, server, backlog, timeouts)
            else:
                accepts = self._accept_streams(fd, *kind, protocol_factory, server, backlog)
            if not accepts:
                super()._accept_connection(protocol_factory, sock, sslcontext, server, backlog, *timeouts)
        except OSError as error:
            if error.errno not in _OUT_OF_RESOURCES:
                raise
            # The listener stays readable until a descriptor is available for the connection.
            self.call_exception_handler(
                {
                    "message": "socket.accept() out of system resource",
                    "exception": error,
                    "socket": trsock.TransportSocket(sock),
                }
            )
            self._pause_accepting(fd, constants.ACCEPT_RETRY_DELAY)

    def _accept_for_tls(self, fd, kind, protocol_factory, sslcontext, server, backlog, timeouts):
        """Accept connections, and start TLS on them. Return False if the reactor does not have the listener."""
        for _ in range(backlog):
            accepted = self._accept_one(fd, kind)
            if accepted is None:
                break
            if accepted is NotImplemented:
                return False
            conn, addr = accepted
            starting = self._accept_connection2(protocol_factory, conn, {"peername": addr}, sslcontext, server, *timeouts)
            self.create_task(starting)
        return True

    async def create_connection(self, protocol_factory, host=None, port=None, *, ssl=None, **options):
        """Connect to a server, and return a transport and a protocol."""
        if (
            type(host) is not str
            or type(port) is not int
            or ssl
            or self._debug
            or any(options.values())
            or not options.keys() <= _CONNECT_OPTIONS
            # The program replaced socket classes or functions, as proxies and tests do.
            or base_events.socket is not socket
            or socket.socket is not _SOCKET
            or getattr(self.sock_connect, "__func__", None) is not BaseLoop.sock_connect
            or self._sockets_are_guarded()
        ):
            return await super().create_connection(protocol_factory, host, port, ssl=ssl, **options)
        started = self._start_connecting(host, port)
        if started is None:
            # The host needs name resolution.
            return await super().create_connection(protocol_factory, host, port, **options)
        fd, family, outcome = started
        try:
            if outcome != 0:
                address = (host, port) if family == socket.AF_INET else (host, port, 0, 0)
                await self._connected(fd, address, outcome)
            protocol = protocol_factory()
            waiter = self.create_future()
        except BaseException:
            os.close(fd)
            raise
        transport = self._open_stream(fd, family, protocol, waiter)
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return transport, protocol

    # For inspect.signature().
    create_connection.__wrapped__ = base_events.BaseEventLoop.create_connection

    async def _connected(self, fd, address, outcome):
        """Wait until a socket is connected. The outcome is None if the attempt is still in progress."""
        if outcome is None:
            waiter = self.create_future()
            self._add_writer(fd, futures._set_result_unless_cancelled, waiter, None)
            try:
                await waiter
            finally:
                self._remove_writer(fd)
            outcome = self._connect_outcome(fd)
        if outcome:
            raise OSError(outcome, f"Connect call failed {address}")

    async def sock_recv(self, sock, n):
        """Receive at most n bytes from a socket."""
        received = self._recv(sock, n)
        if type(received) is bytes:
            return received
        if received is NotImplemented:
            return await super().sock_recv(sock, n)
        return await self._received(sock, received)

    async def _received(self, sock, future):
        fd = sock.fileno()
        try:
            return await future
        except asyncio.CancelledError:
            self._stop_waiting(fd, future)
            raise

    async def sock_recv_into(self, sock, buf):
        """Receive data from a socket into a buffer, and return the number of bytes."""
        received = self._recv_into(sock, buf)
        if type(received) is int:
            return received
        if received is NotImplemented:
            return await super().sock_recv_into(sock, buf)
        return await self._received(sock, received)

    async def sock_recvfrom(self, sock, bufsize):
        """Receive a datagram of at most bufsize bytes, and return it with the sender's address."""
        if issubclass(type(sock), _socket.socket) and _transports.family_of(sock) in _OVER_IP:
            received = self._recvfrom(sock, bufsize)
            if type(received) is tuple:
                return received
            if received is not NotImplemented:
                return await self._received(sock, received)
        return await super().sock_recvfrom(sock, bufsize)

    async def sock_recvfrom_into(self, sock, buf, nbytes=0):
        """Receive a datagram into a buffer, and return the number of bytes and the sender's address."""
        if self._debug or not issubclass(type(sock), _socket.socket) or _transports.family_of(sock) not in _OVER_IP:
            return await super().sock_recvfrom_into(sock, buf, nbytes)
        with memoryview(buf) as view, view.cast("B") as room:
            if room.readonly or not 0 <= nbytes <= len(room):
                # asyncio raises the right error.
                return await super().sock_recvfrom_into(sock, buf, nbytes)
            data, address = await self.sock_recvfrom(sock, nbytes or len(room))
            room[: len(data)] = data
            return len(data), address

    async def sock_sendto(self, sock, data, address):
        """Send a datagram to an address, and return the number of bytes sent."""
        if (
            type(sock) is _SOCKET
            and data
            and not self._debug
            and address is not None
            and _transports.family_of(sock) in _OVER_IP
            and self._sendto(sock.fileno(), data, address)
        ):
            return len(data)
        return await super().sock_sendto(sock, data, address)

    async def sock_accept(self, sock):
        """Accept a connection, and return a socket for it and the peer's address."""
        # Blocking sockets are left to asyncio, which refuses them or blocks.
        if issubclass(type(sock), _socket.socket) and sock.gettimeout() == 0:
            accepted = self._accept(sock, (_transports.family_of(sock), _transports.protocol_of(sock)))
            if type(accepted) is tuple:
                return accepted
            if accepted is not NotImplemented:
                return await self._received(sock, accepted)
        return await super().sock_accept(sock)

    async def sock_connect(self, sock, address):
        """Connect a socket to an address."""
        if (
            type(sock) is _SOCKET
            and not self._debug
            and sock.gettimeout() == 0
            and _transports.family_of(sock) == socket.AF_INET
            and type(address) is tuple
        ):
            outcome = self._connect(sock.fileno(), address)
            if outcome == 0:
                return
            if outcome is not NotImplemented:
                self._ensure_fd_no_transport(sock)
                return await self._connected(sock.fileno(), address, outcome)
        await super().sock_connect(sock, address)

    async def sock_sendall(self, sock, data):
        """Send all data to a socket."""
        sent = self._send(sock, data)
        if sent is not None:
            if sent is NotImplemented:
                return await super().sock_sendall(sock, data)
            await super().sock_sendall(sock, memoryview(data).cast("B")[sent:])

    def on_slow_callback(self, seconds, callback):
        """Call ``callback(handle, seconds)`` after each callback that took at least that long.

        Callbacks in Rust on the same loop are reported too. Their handle is only a name: its repr.

        Pass None as the callback to disable it. It costs two clock readings per callback.
        """
        if callback is not None and not callable(callback):
            raise TypeError(f"expected a callable or None, got {callback!r}")
        if not seconds >= 0:
            raise ValueError(f"seconds must not be negative, got {seconds!r}")

        def tell(handle, seconds):
            if isinstance(handle, str):
                handle = NativeHandle(handle, self)
            try:
                callback(handle, seconds)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as exc:
                # The slow callback is not at fault.
                message = f"Exception in {callback!r}, the handler of slow callbacks"
                self.call_exception_handler({"message": message, "exception": exc})

        self._set_slow_hook(int(min(seconds, _A_LIFETIME) * 1e9), None if callback is None else tell)


class NativeHandle(asyncio.Handle):
    """Stands for a callback in Rust in reports. It cannot be called or cancelled."""

    __slots__ = ("_name",)

    def __init__(self, name, loop):
        super().__init__(None, (), loop)
        super().cancel()
        self._name = name

    def __repr__(self):
        return f"<NativeHandle {self._name}>"


def callback_failed(handle, exception):
    """Report an exception of a callback, as ``asyncio.Handle._run`` does."""
    loop = handle._loop
    if _NAMES_DEBUG:
        source = format_helpers._format_callback_source(
            handle._callback, handle._args, debug=loop.get_debug()
        )
    else:
        source = format_helpers._format_callback_source(handle._callback, handle._args)
    context = {
        "message": f"Exception in callback {source}",
        "exception": exception,
        "handle": handle,
    }
    if handle._source_traceback:
        context["source_traceback"] = handle._source_traceback
    loop.call_exception_handler(context)


def callback_was_slow(handle, seconds):
    """Log a slow callback, as asyncio's loop does in debug mode."""
    base_events.logger.warning("Executing %s took %.3f seconds", base_events._format_handle(handle), seconds)


# Imported last, because it needs everything above.
from . import _pelton  # noqa: E402
