"""The parts of TLS that are not hot, in Python.

``BaseSSLProtocol`` derives from asyncio's own TLS protocol and uses its handshake, shutdown and error reporting.
``pelton._pelton.SSLProtocol`` derives from it in Rust, and replaces the code that every message passes through: decryption,
encryption, and the transfer between OpenSSL's buffers and the socket. The ``ssl.SSLContext`` is still Python's own.
"""

try:
    import ssl
except ImportError:
    ssl = None
from asyncio import sslproto

_State = sslproto.SSLProtocolState

# Bytes; a few records.
_DISCARDED_AT_ONCE = 64 * 1024


class BaseSSLTransport(sslproto._SSLProtocolTransport):
    """The base class of ``pelton._pelton.SSLTransport``. Not useful by itself."""


class BaseSSLProtocol(sslproto.SSLProtocol):
    """The base class of ``pelton._pelton.SSLProtocol``. Not useful by itself."""

    def __init__(self, *args, **kwargs):
        # asyncio allocates a receive buffer of this size for each connection; the loop has one for all of them.
        self.max_size = 0
        super().__init__(*args, **kwargs)
        del self.max_size

    def _get_app_transport(self):
        if self._app_transport is None:
            if self._app_transport_created:
                raise RuntimeError("a TLS protocol has only one transport")
            # Imported here, not at the top: `_pelton` derives its classes from those in this module, so the import
            # would be circular.
            from . import _pelton

            self._app_transport = _pelton.SSLTransport(self._loop, self)
            self._app_transport_created = True
        return self._app_transport

    def _received(self):
        """Handle received data outside of the phase in which application data can be read."""
        state = self._state
        if state is _State.DO_HANDSHAKE:
            self._do_handshake()
        elif state is _State.FLUSHING:
            self._do_flush()
        elif state is _State.SHUTDOWN:
            self._do_shutdown()

    def _start_shutdown(self):
        if self._state is _State.FLUSHING and self._eof_received and self._app_reading_paused:
            # The peer ended the connection while reading was paused, and now the program has closed it: nothing
            # will be read.
            if self._app_transport is not None:
                self._app_transport._closed = True
            self._do_flush()
        else:
            super()._start_shutdown()

    def _do_shutdown(self):
        if not self._eof_received:
            try:
                self._discard_incoming()
            except ssl.SSLError as exc:
                return self._on_shutdown_complete(exc)
        super()._do_shutdown()

    def _discard_incoming(self):
        """Discard data received since the program closed the connection: OpenSSL cannot shut down with unread data."""
        try:
            while self._sslobj.read(_DISCARDED_AT_ONCE):
                pass
        except (*sslproto.SSLAgainErrors, ssl.SSLZeroReturnError):
            pass
        self._control_ssl_reading()

    def _write_later(self, data):
        """Queue data that cannot be encrypted yet, because OpenSSL has to receive something first."""
        # Copied, because its owner may change it.
        data = bytes(data)
        self._write_backlog.append(data)
        self._write_buffer_size += len(data)

    def _abort(self, *args):
        # In asyncio, data written in data_received() would already have been sent.
        if self._transport is not None and self._state is _State.WRAPPED:
            self._process_outgoing()
        super()._abort(*args)
