"""What of TLS is not hot, in Python.

``BaseSSLProtocol`` derives from asyncio's own TLS protocol, whose handshake, shutdown and reporting of errors are used as they are;
``pelton._pelton.SSLProtocol`` derives from it, in Rust, and replaces what every message goes through: decrypting, encrypting,
and what passes between the two buffers of OpenSSL and the socket. The ``ssl.SSLContext`` and all that it does stay Python's.
"""

try:
    import ssl
except ImportError:
    ssl = None
from asyncio import sslproto

_State = sslproto.SSLProtocolState

# Bytes, as much as a few records.
_DISCARDED_AT_ONCE = 64 * 1024


class BaseSSLTransport(sslproto._SSLProtocolTransport):
    """The base class of ``pelton._pelton.SSLTransport``, of no use by itself."""


class BaseSSLProtocol(sslproto.SSLProtocol):
    """The base class of ``pelton._pelton.SSLProtocol``, of no use by itself."""

    def __init__(self, *args, **kwargs):
        # asyncio gives each connection a buffer of that size to receive into; the loop has one for all of them.
        self.max_size = 0
        super().__init__(*args, **kwargs)
        del self.max_size

    def _get_app_transport(self):
        if self._app_transport is None:
            if self._app_transport_created:
                raise RuntimeError("a TLS protocol has one transport only")
            # Not before: it is made out of this module.
            from . import _pelton

            self._app_transport = _pelton.SSLTransport(self._loop, self)
            self._app_transport_created = True
        return self._app_transport

    def _received(self):
        """Something has been received while no data can be read yet, or any more."""
        state = self._state
        if state is _State.DO_HANDSHAKE:
            self._do_handshake()
        elif state is _State.FLUSHING:
            self._do_flush()
        elif state is _State.SHUTDOWN:
            self._do_shutdown()

    def _start_shutdown(self):
        if self._state is _State.FLUSHING and self._eof_received and self._app_reading_paused:
            # The other side has ended while the program did not read, and now the program has closed: nobody will read on.
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
        """Take out what has come in since the program has closed: OpenSSL does not shut down before it has been read."""
        try:
            while self._sslobj.read(_DISCARDED_AT_ONCE):
                pass
        except (*sslproto.SSLAgainErrors, ssl.SSLZeroReturnError):
            pass
        self._control_ssl_reading()

    def _write_later(self, data):
        """Data could not be encrypted at once, because OpenSSL has to receive something first."""
        # A copy of what its owner may yet change.
        data = bytes(data)
        self._write_backlog.append(data)
        self._write_buffer_size += len(data)

    def _abort(self, *args):
        # What data_received() has written would have been sent already in asyncio.
        if self._transport is not None and self._state is _State.WRAPPED:
            self._process_outgoing()
        super()._abort(*args)
