//! One side of a TLS session: rustls' state machine without its buffers.
//!
//! rustls' buffered connections keep a read buffer each. The unbuffered ones keep nothing between records, so an idle
//! connection costs only its keys.

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, Error};

/// The largest plaintext of a record, which the standard fixes.
pub(crate) const LARGEST_PLAINTEXT: usize = 16 * 1024;

/// Bytes that a record adds to its plaintext: 5 of the header, and at most 29 of type, nonce and tag with the cipher
/// suites of rustls. rustls asks for more where this is too little.
pub(crate) const RECORD_OVERHEAD: usize = 40;

pub(crate) enum Session {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// What a step of a session led to.
pub(crate) enum Step {
    /// There may be more to do with the same input.
    Again,
    /// Nothing more can be done without further input.
    Blocked,
    /// The peer has sent its closing message.
    PeerClosed,
}

/// Makes a session's next step, which needs the concrete type of its state.
macro_rules! with_status {
    ($session:expr, $input:expr, |$status:ident| $body:expr) => {
        match $session {
            Session::Client(connection) => {
                let $status = connection.process_tls_records($input);
                $body
            }
            Session::Server(connection) => {
                let $status = connection.process_tls_records($input);
                $body
            }
        }
    };
}

impl Session {
    pub(crate) fn state(&self) -> &CommonState {
        match self {
            Session::Client(connection) => connection,
            Session::Server(connection) => connection,
        }
    }

    /// Makes one step with `input`. Appends records to send to `out`, and passes plaintext to `plain`. Returns how many
    /// bytes at the front of `input` are done with. The rest has to be passed again, as rustls may have changed it in
    /// place.
    pub(crate) fn step(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
        plain: impl FnMut(&[u8]),
    ) -> (usize, Result<Step, Error>) {
        with_status!(self, input, |status| take_step(status, out, plain))
    }

    /// Appends the records that rustls still wants to send after an error: the alert. `input` is what
    /// [`step`](Session::step) left.
    pub(crate) fn rest(&mut self, input: &mut [u8], out: &mut Vec<u8>) {
        // Only as long as there are such records: rustls must not see the input again, which is what was wrong.
        while self.state().wants_write() {
            let encoded = with_status!(&mut *self, input, |status| match status.state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => grow(out, 0, |out| encoded(data.encode(out))).is_ok(),
                _ => false,
            });
            if !encoded {
                return;
            }
        }
    }

    /// Calls `write` when the session can send application data. Records that have to be sent before go to `out`.
    /// Returns `None` if it cannot.
    fn write<R>(
        &mut self,
        input: &mut [u8],
        out: &mut Vec<u8>,
        write: impl FnOnce(&mut dyn Write, &mut Vec<u8>) -> R,
    ) -> Option<R> {
        loop {
            let again = with_status!(&mut *self, input, |status| match status.state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => return Some(write(&mut traffic, out)),
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    grow(out, 0, |out| encoded(data.encode(out))).is_ok()
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    true
                }
                _ => false,
            });
            if !again {
                return None;
            }
        }
    }

    /// Encrypts `plain` into one record, which it appends to `out`. `input` is received data that was not processed.
    pub(crate) fn encrypt(&mut self, input: &mut [u8], plain: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let written = self.write(input, out, |traffic, out| {
            grow(out, plain.len() + RECORD_OVERHEAD, |out| traffic.encrypt(plain, out))
        });
        written.unwrap_or(Err(Error::HandshakeNotComplete))
    }

    /// Appends the closing message to `out`.
    pub(crate) fn close(&mut self, input: &mut [u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let written = self.write(input, out, |traffic, out| grow(out, RECORD_OVERHEAD, |out| traffic.close(out)));
        // Without a way to send, there is nothing to close.
        written.unwrap_or(Ok(()))
    }
}

/// [`WriteTraffic`] without its type parameter.
trait Write {
    fn encrypt(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, Written>;
    fn close(&mut self, out: &mut [u8]) -> Result<usize, Written>;
}

impl<Data> Write for WriteTraffic<'_, Data> {
    fn encrypt(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, Written> {
        encrypted(WriteTraffic::encrypt(self, plain, out))
    }

    fn close(&mut self, out: &mut [u8]) -> Result<usize, Written> {
        encrypted(self.queue_close_notify(out))
    }
}

/// Why nothing was written.
enum Written {
    NeedsRoom(usize),
    Failed(Error),
}

fn encoded(outcome: Result<usize, EncodeError>) -> Result<usize, Written> {
    outcome.map_err(|error| match error {
        EncodeError::InsufficientSize(InsufficientSizeError { required_size }) => Written::NeedsRoom(required_size),
        EncodeError::AlreadyEncoded => Written::Failed(Error::EncryptError),
    })
}

fn encrypted(outcome: Result<usize, EncryptError>) -> Result<usize, Written> {
    outcome.map_err(|error| match error {
        EncryptError::InsufficientSize(InsufficientSizeError { required_size }) => Written::NeedsRoom(required_size),
        EncryptError::EncryptExhausted => Written::Failed(Error::EncryptError),
    })
}

/// Lets `write` append to `out`, with `room` bytes or as many as it asks for.
fn grow(
    out: &mut Vec<u8>,
    room: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Written>,
) -> Result<(), Error> {
    let start = out.len();
    let mut room = room;
    // It asks at most once; the second bound only guards against an endless loop.
    for _ in 0..3 {
        out.resize(start + room, 0);
        match write(&mut out[start..]) {
            Ok(count) => {
                out.truncate(start + count);
                return Ok(());
            }
            Err(Written::NeedsRoom(needed)) => room = needed,
            Err(Written::Failed(error)) => {
                out.truncate(start);
                return Err(error);
            }
        }
    }
    out.truncate(start);
    Err(Error::EncryptError)
}

fn take_step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    out: &mut Vec<u8>,
    mut plain: impl FnMut(&[u8]),
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let state = match state {
        Ok(state) => state,
        Err(error) => return (discard, Err(error)),
    };
    let step = match state {
        ConnectionState::ReadTraffic(mut records) => {
            while let Some(record) = records.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        plain(record.payload);
                    }
                    Err(error) => return (discard, Err(error)),
                }
            }
            Ok(Step::Again)
        }
        // Only with a configuration that allows it. See `Server::from_config`.
        ConnectionState::ReadEarlyData(_) => Err(Error::General("early data is not supported".into())),
        ConnectionState::EncodeTlsData(mut data) => grow(out, 0, |out| encoded(data.encode(out))).map(|()| Step::Again),
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::Again)
        }
        ConnectionState::PeerClosed => Ok(Step::PeerClosed),
        ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) | ConnectionState::Closed => {
            Ok(Step::Blocked)
        }
        _ => Err(Error::General("unknown state".into())),
    };
    (discard, step)
}
