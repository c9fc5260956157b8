//! TLS on one connection.

use std::convert::Infallible;
use std::io::IoSlice;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::Poll;

use openssl::nid::Nid;
use openssl::ssl::{ErrorCode, NameType, SslRef, SslStream};
use openssl::x509::{X509, X509VerifyResult};
use pelton::{Layer, LayerIo, Reason};

use crate::TlsError;
use crate::error::text;
use crate::pipe::Pipe;
use crate::verify::Checks;

/// The largest record.
const RECORD: usize = 16 * 1024;

/// Records up to this size together are passed on in a block that the loop uses again.
const BLOCK: usize = 16 * 1024;

/// The encrypted bytes of one call at most, so that the layer below is not flooded.
const SEND_AT_ONCE: usize = 64 * 1024;

/// The memory that a loop keeps between calls.
const SCRATCH: usize = 128 * 1024;

/// TLS on one connection, as a [`Layer`]. [`Config::layer`](crate::Config::layer) makes it.
pub struct Tls {
    stream: Box<SslStream<Pipe>>,
    stage: Stage,
    checks: Arc<Checks>,
    tolerates_truncation: bool,
    /// The peer has sent its closing message.
    peer_closed: bool,
    /// An error in what arrived together with the end of the handshake. The handler is opened first.
    failure: Option<TlsError>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Handshake,
    Open,
    Failed,
}

/// Memory that all TLS connections of a loop use in turn, so that none has to keep any.
#[derive(Default)]
struct Scratch {
    input: Vec<u8>,
    output: Vec<u8>,
    joined: Vec<u8>,
}

/// What was agreed on.
impl Tls {
    pub(crate) fn new(stream: SslStream<Pipe>, checks: Arc<Checks>, tolerates_truncation: bool) -> Tls {
        Tls {
            stream: Box::new(stream),
            stage: Stage::Handshake,
            checks,
            tolerates_truncation,
            peer_closed: false,
            failure: None,
        }
    }

    /// Returns OpenSSL's object, to ask it for details.
    pub fn ssl(&self) -> &SslRef {
        self.stream.ssl()
    }

    /// Returns the certificate of the peer.
    pub fn peer_certificate(&self) -> Option<X509> {
        self.ssl().peer_certificate()
    }

    /// Returns OpenSSL's name of the cipher.
    pub fn cipher_name(&self) -> Option<&'static str> {
        self.ssl().current_cipher().map(|cipher| cipher.name())
    }

    /// Returns the number of secret bits of the cipher.
    pub fn cipher_bits(&self) -> Option<i32> {
        self.ssl().current_cipher().map(|cipher| cipher.bits().secret)
    }

    /// Returns the version of the protocol, such as `TLSv1.3`, once there is a cipher.
    pub fn protocol(&self) -> Option<&'static str> {
        self.ssl().current_cipher().map(|_| self.ssl().version_str())
    }

    /// Returns the name that the client has told the server.
    pub fn server_name(&self) -> Option<&str> {
        self.ssl().servername(NameType::HOST_NAME)
    }

    /// Returns whether the handshake is complete.
    pub fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Returns the name of the group in which keys were exchanged, if OpenSSL tells it.
    pub fn group(&self) -> Option<&'static str> {
        let nid = self.ssl().peer_tmp_key().ok()?.ec_key().ok()?.group().curve_name()?;
        (nid != Nid::UNDEF).then(|| nid.short_name().ok()).flatten()
    }
}

impl Tls {
    /// Lets OpenSSL process what was received, delivers the plaintext and transmits the answers.
    fn process(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<(), Reason> {
        let mut scratch = std::mem::take(io.reactor().state::<Scratch>());
        scratch.input.clear();
        scratch.input.extend_from_slice(input);
        self.lend(&mut scratch);
        let outcome = match self.stage {
            Stage::Handshake => self.shake_hands(io).map(|done| {
                if done && let Err(error) = self.read(io) {
                    self.failure = Some(error);
                    io.again();
                }
            }),
            Stage::Open => self.read(io),
            Stage::Failed => Ok(()),
        };
        self.take_back(io, scratch);
        if let Err(error) = outcome {
            self.stage = Stage::Failed;
            return Err(Reason::layer(error));
        }
        if self.peer_closed {
            io.end();
        }
        Ok(())
    }

    /// Continues the handshake. Returns whether it is complete.
    fn shake_hands(&mut self, io: &mut LayerIo<'_>) -> Result<bool, TlsError> {
        let stream = &mut self.stream;
        // Certificates are checked in here, with the reactor.
        let outcome = io.reactor().enter(|| stream.do_handshake());
        if let Some(panic) = self.checks.take_panic() {
            self.stage = Stage::Failed;
            resume_unwind(panic);
        }
        let error = match outcome {
            Ok(()) => {
                self.stage = Stage::Open;
                io.ready();
                return Ok(true);
            }
            Err(error) if is_blocked(&error) => return Ok(false),
            Err(error) => error,
        };
        let result = self.ssl().verify_result();
        match error.ssl_error() {
            _ if result != X509VerifyResult::OK => Err(TlsError::Certificate(result.error_string().to_owned())),
            Some(stack) => Err(TlsError::Handshake(text(stack))),
            None => Err(TlsError::Handshake(error.to_string())),
        }
    }

    /// Delivers the plaintext of what was received.
    fn read(&mut self, io: &mut LayerIo<'_>) -> Result<(), TlsError> {
        let mut outcome = Ok(true);
        while matches!(outcome, Ok(true)) {
            let (stream, peer_closed) = (&mut self.stream, &mut self.peer_closed);
            let Ok(_) = io.deliver_with(|buffer| {
                let mut filled = 0;
                while filled < buffer.len() {
                    match stream.ssl_read(&mut buffer[filled..]) {
                        Ok(count) => filled += count,
                        Err(error) => {
                            outcome = match error.code() {
                                _ if is_blocked(&error) => Ok(false),
                                ErrorCode::ZERO_RETURN => {
                                    *peer_closed = true;
                                    Ok(false)
                                }
                                _ => Err(record_error(&error)),
                            };
                            break;
                        }
                    }
                }
                Ok::<_, Infallible>(filled)
            });
        }
        outcome.map(drop)
    }

    /// Encrypts bytes from above into records. Returns how many.
    fn encrypt(&mut self, output: &[IoSlice<'_>], joined: &mut Vec<u8>) -> Result<usize, TlsError> {
        let (mut slices, mut offset, mut sent) = (output, 0, 0);
        while self.stream.get_ref().output.len() < SEND_AT_ONCE {
            while slices.first().is_some_and(|slice| slice.len() == offset) {
                (slices, offset) = (&slices[1..], 0);
            }
            let Some(first) = slices.first() else { break };
            let first = &first[offset..];
            let whole = first.len() >= RECORD || slices.len() == 1;
            if !whole {
                // Small pieces share a record.
                joined.clear();
                let mut skip = offset;
                for slice in slices {
                    let room = RECORD - joined.len();
                    joined.extend_from_slice(&slice[skip..slice.len().min(skip + room)]);
                    skip = 0;
                }
            }
            let record = if whole { &first[..first.len().min(RECORD)] } else { &joined[..] };
            let mut count = match self.stream.ssl_write(record) {
                Ok(count) => count,
                Err(error) if is_blocked(&error) => break,
                Err(error) => return Err(record_error(&error)),
            };
            sent += count;
            while count > 0 {
                let step = count.min(slices[0].len() - offset);
                (offset, count) = (offset + step, count - step);
                if offset == slices[0].len() {
                    (slices, offset) = (&slices[1..], 0);
                }
            }
        }
        Ok(sent)
    }

    /// Gives OpenSSL memory to read from and write to.
    fn lend(&mut self, scratch: &mut Scratch) {
        let pipe = self.stream.get_mut();
        pipe.input = std::mem::take(&mut scratch.input);
        pipe.start = 0;
        pipe.output = std::mem::take(&mut scratch.output);
    }

    /// Transmits what OpenSSL has written, and keeps the memory for the next call.
    fn take_back(&mut self, io: &mut LayerIo<'_>, mut scratch: Scratch) {
        let pipe = self.stream.get_mut();
        scratch.input = std::mem::take(&mut pipe.input);
        scratch.output = std::mem::take(&mut pipe.output);
        match scratch.output.len() {
            0 => {}
            1..=BLOCK => io.transmit_block(&mut scratch.output),
            // Larger ones are not copied into the queue.
            _ => io.transmit_bytes(std::mem::take(&mut scratch.output)),
        }
        scratch.input.clear();
        for memory in [&mut scratch.input, &mut scratch.output, &mut scratch.joined] {
            if memory.capacity() > SCRATCH {
                *memory = Vec::new();
            }
        }
        *io.reactor().state::<Scratch>() = scratch;
    }
}

/// Returns whether OpenSSL needs more input.
fn is_blocked(error: &openssl::ssl::Error) -> bool {
    matches!(error.code(), ErrorCode::WANT_READ | ErrorCode::WANT_WRITE)
}

fn record_error(error: &openssl::ssl::Error) -> TlsError {
    TlsError::Record(error.ssl_error().map_or_else(|| error.to_string(), text))
}

impl Layer for Tls {
    fn start(&mut self, io: &mut LayerIo<'_>) -> Result<(), Reason> {
        // A client begins. A server has nothing to say yet.
        if self.ssl().is_server() { Ok(()) } else { self.process(io, &[]) }
    }

    fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
        if let Some(error) = self.failure.take() {
            self.stage = Stage::Failed;
            return Err(Reason::layer(error));
        }
        if !self.peer_closed {
            self.process(io, input)?;
        }
        Ok(input.len())
    }

    fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
        if self.stage != Stage::Open {
            return Ok(0);
        }
        let mut scratch = std::mem::take(io.reactor().state::<Scratch>());
        self.lend(&mut scratch);
        let sent = self.encrypt(output, &mut scratch.joined);
        self.take_back(io, scratch);
        sent.map_err(|error| {
            self.stage = Stage::Failed;
            Reason::layer(error)
        })
    }

    fn finish(&mut self, io: &mut LayerIo<'_>) -> Result<Poll<()>, Reason> {
        if self.stage == Stage::Open {
            // It can only fail if the session has failed, and then there is nothing to close.
            let _ = self.stream.shutdown();
            let output = std::mem::take(&mut self.stream.get_mut().output);
            io.transmit(&output);
        }
        Ok(Poll::Ready(()))
    }

    fn peer_finished(&mut self, io: &mut LayerIo<'_>, _: &[u8]) -> Result<(), Reason> {
        match self.stage {
            Stage::Open if self.tolerates_truncation => {
                io.end();
                Ok(())
            }
            Stage::Open => Err(Reason::Truncated),
            Stage::Handshake | Stage::Failed => Err(Reason::layer(TlsError::ClosedInHandshake)),
        }
    }
}
