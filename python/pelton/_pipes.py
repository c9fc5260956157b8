"""Pipe transports. The reactor's connections receive and send; asyncio's manners are kept here."""

import logging
import os
import warnings
from asyncio import unix_events

logger = logging.getLogger("asyncio")

# A program that has replaced them wants them to be called.
_READ, _WRITE = os.read, os.write


class ReadPipeTransport(unix_events._UnixReadPipeTransport):
    """asyncio's transport, on a connection of the reactor."""

    # The capacity of a pipe. asyncio's larger buffer would be mapped and unmapped for every read.
    max_size = 64 * 1024

    # Whether the reactor has the pipe.
    _adopted = False

    def __init__(self, loop, pipe, protocol, waiter=None, extra=None):
        super().__init__(loop, pipe, protocol, waiter, extra)
        self._adopted = loop._adopt_pipe(self._fileno)

    def _read_ready(self):
        if not self._adopted or os.read is not _READ:
            return super()._read_ready()
        try:
            data = self._loop._receive_from_pipe(self._fileno, self.max_size)
        except OSError as exc:
            self._fatal_error(exc, "Fatal read error on pipe transport")
            return
        if data:
            self._protocol.data_received(data)
        elif data is not None:
            if self._loop.get_debug():
                logger.info("%r was closed by peer", self)
            self._closing = True
            self._loop._remove_reader(self._fileno)
            self._loop.call_soon(self._protocol.eof_received)
            self._loop.call_soon(self._call_connection_lost, None)

    def _call_connection_lost(self, exc):
        _release(self)
        super()._call_connection_lost(exc)

    def __del__(self, _warn=warnings.warn):
        _release(self)
        super().__del__(_warn)


def _release(transport):
    """Let the reactor give the descriptor back, before it is closed."""
    if transport._adopted:
        transport._adopted = False
        loop, fd = transport._loop, transport._fileno
        # asyncio adds the reader of a write end even if its protocol has closed it in connection_made(). The next file with that
        # number would inherit it.
        loop._remove_reader(fd)
        loop._remove_writer(fd)
        loop._release(fd)


class _Queue:
    """The reactor's queue of a transport, in the place of asyncio's buffer.

    It is true until ``_write_ready`` has found it empty, because asyncio's own methods ask whether that will be called.
    """

    __slots__ = ("_loop", "_fd", "unsent")

    def __init__(self, loop, fd):
        self._loop, self._fd = loop, fd
        self.unsent = False

    def __bool__(self):
        return self.unsent

    def __len__(self):
        return self._loop._pipe_backlog(self._fd)

    def __iadd__(self, data):
        self._loop._queue_for_pipe(self._fd, data)
        self.unsent = True
        return self

    def clear(self):
        if self.unsent:
            self.unsent = False
            self._loop._drop_pipe_queue(self._fd)


class WritePipeTransport(unix_events._UnixWritePipeTransport):
    """asyncio's transport, on a connection of the reactor."""

    _adopted = False

    def __init__(self, loop, pipe, protocol, waiter=None, extra=None):
        super().__init__(loop, pipe, protocol, waiter, extra)
        self._adopted = loop._adopt_pipe(self._fileno)
        if self._adopted:
            self._buffer = _Queue(loop, self._fileno)

    def write(self, data):
        """Write some data, without blocking."""
        if not self._adopted or os.write is not _WRITE or self._conn_lost or self._closing:
            return super().write(data)
        assert isinstance(data, (bytes, bytearray, memoryview)), repr(data)
        if not data:
            return
        try:
            is_sent = self._loop._send_to_pipe(self._fileno, data)
        except BlockingIOError:
            # Another thread runs the loop. Without room, it would have been queued.
            self._loop.call_soon_threadsafe(self.write, bytes(data))
            return
        except Exception as exc:
            self._conn_lost += 1
            self._fatal_error(exc, "Fatal write error on pipe transport")
            return
        if is_sent:
            return
        if not self._buffer:
            self._buffer.unsent = True
            self._loop._add_writer(self._fileno, self._write_ready)
        self._maybe_pause_protocol()

    def _write_ready(self):
        if not self._adopted:
            return super()._write_ready()
        try:
            queued = self._loop._queued_for_pipe(self._fileno)
        except OSError as exc:
            self._buffer.clear()
            self._conn_lost += 1
            # _fatal_error() does not, because the buffer is empty.
            self._loop._remove_writer(self._fileno)
            self._fatal_error(exc, "Fatal write error on pipe transport")
            return
        if not queued:
            self._buffer.unsent = False
            self._loop._remove_writer(self._fileno)
            self._maybe_resume_protocol()  # May append to the buffer.
            if self._closing:
                self._loop._remove_reader(self._fileno)
                self._call_connection_lost(None)

    def _call_connection_lost(self, exc):
        self._give_back()
        super()._call_connection_lost(exc)

    def __del__(self, _warn=warnings.warn):
        self._give_back()
        super().__del__(_warn)

    def _give_back(self):
        if self._adopted:
            _release(self)
            self._buffer = bytearray()
