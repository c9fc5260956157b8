"""What of transports is not hot, in Python.

``BaseStreamTransport`` derives from asyncio's own transport; ``pelton.StreamTransport`` derives from it, in Rust, and replaces
what receives and sends, together with the fields that this needs.
"""

import logging
import socket
from asyncio import protocols, selector_events

logger = logging.getLogger("asyncio")


class BaseStreamTransport(selector_events._SelectorSocketTransport):
    """The base class of ``pelton.StreamTransport``, of no use by itself."""

    def set_protocol(self, protocol):
        self._buffered = isinstance(protocol, protocols.BufferedProtocol)
        self._protocol = protocol
        self._protocol_connected = True

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


def writes_after_loss():
    """Log that a program goes on writing to a connection that is lost, as asyncio's transports do."""
    selector_events.logger.warning("socket.send() raised exception.")
