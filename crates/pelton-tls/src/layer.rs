//! TLS as a layer of a connection.

use std::convert::Infallible;
use std::io::IoSlice;
use std::task::Poll;

use pelton::{Layer, LayerIo, Reason};
use rustls::HandshakeKind;

use crate::TlsError;
use crate::handshakes::{self, Handshake};
use crate::records::Sizing;
use crate::server::resolver::take_server_name;
use crate::session::{LARGEST_PLAINTEXT, RECORD_OVERHEAD, Session, Step};
use crate::side::Side;

/// The largest handshake message that a peer may send, with the headers of its records. rustls' buffered connections have
/// the same bound.
const LARGEST_MESSAGE: usize = 80 * 1024;

/// Records up to this size together are passed on in a block that the loop uses again.
const BLOCK: usize = 16 * 1024;

/// The encrypted bytes of one call at most, so that the layer below is not flooded.
const SEND_AT_ONCE: usize = 64 * 1024;

/// TLS on one connection, as a [`Layer`]. [`Server::layer`](crate::Server::layer) and
/// [`Client::layer`](crate::Client::layer) make it.
pub struct Tls {
    stage: Stage,
    /// Received bytes of a record or message that is not complete. Empty most of the time.
    partial: Vec<u8>,
    server_name: Option<Box<str>>,
    sizing: Sizing,
    /// The end of the stream without a closing message counts as its end.
    tolerates_truncation: bool,
    peer_closed: bool,
    /// A record of the peer was processed.
    spoke_tls: bool,
}

enum Stage {
    /// The layer has not been started.
    New(Side),
    Handshake {
        session: Session,
        handshake: Handshake,
        admission: Admission,
        /// The end of the handshake takes as much computation as its beginning: a client's certificate is verified.
        verifies_clients: bool,
    },
    Open(Session),
    Failed,
}

/// Whether a server's handshake may take computation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// It asks whenever something arrives. An answer counts: a hello may arrive in parts, and only its last byte costs.
    Asks,
    /// It is woken when it may.
    Waits,
    /// It was woken, and may in this turn.
    Granted,
    /// Nothing expensive follows.
    Over,
}

/// Memory that all TLS connections of a loop use in turn, so that none has to keep any.
#[derive(Default)]
struct Scratch {
    input: Vec<u8>,
    out: Vec<u8>,
    joined: Vec<u8>,
}

/// The scratch memory that is kept between calls.
const SCRATCH: usize = 128 * 1024;

impl Tls {
    pub(crate) fn new(side: Side, tolerates_truncation: bool) -> Tls {
        Tls {
            stage: Stage::New(side),
            partial: Vec::new(),
            server_name: None,
            sizing: Sizing::default(),
            tolerates_truncation,
            peer_closed: false,
            spoke_tls: false,
        }
    }

    pub(crate) fn session(&self) -> Option<&Session> {
        match &self.stage {
            Stage::Handshake { session, .. } | Stage::Open(session) => Some(session),
            Stage::New(_) | Stage::Failed => None,
        }
    }

    pub(crate) fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Lets rustls process what was received, delivers the plaintext and transmits the answers.
    fn process(&mut self, io: &mut LayerIo<'_>, received: &[u8]) -> Result<(), Reason> {
        let mut scratch = std::mem::take(io.reactor().state::<Scratch>());
        scratch.input.append(&mut self.partial);
        scratch.input.extend_from_slice(received);
        let outcome = self.process_in(io, &mut scratch);
        scratch.put_back(io);
        outcome
    }

    fn process_in(&mut self, io: &mut LayerIo<'_>, scratch: &mut Scratch) -> Result<(), Reason> {
        let Scratch { input, out, .. } = scratch;
        let mut start = 0;
        if !self.spoke_tls && may_be_other_protocol(input) {
            // It is not TLS. A few more bytes tell what it is.
            self.partial = input.clone();
            return Ok(());
        }
        let mut failure = None;
        while failure.is_none() {
            let (Stage::Handshake { session, .. } | Stage::Open(session)) = &mut self.stage else { return Ok(()) };
            let peer_closed = &mut self.peer_closed;
            let Ok(delivered) = io.deliver_with(|buffer| {
                let mut filled = 0;
                // As long as there is something to do, and a record fits.
                while buffer.len() - filled >= LARGEST_PLAINTEXT {
                    let (discard, step) = session.step(&mut input[start..], out, |plain| {
                        buffer[filled..filled + plain.len()].copy_from_slice(plain);
                        filled += plain.len();
                    });
                    start += discard;
                    match step {
                        Ok(Step::Again) => {}
                        Ok(Step::PeerClosed) => *peer_closed = true,
                        Ok(Step::Blocked) => break,
                        // What was decrypted before is delivered.
                        Err(error) => {
                            failure = Some(error);
                            break;
                        }
                    }
                }
                Ok::<_, Infallible>(filled)
            });
            if delivered == 0 {
                break;
            }
        }
        if let Some(error) = failure {
            self.answers(io);
            return Err(self.fail(io, error, &mut input[start..], out));
        }
        self.spoke_tls |= start > 0;
        if !out.is_empty() {
            self.answers(io);
        }
        transmit(io, out);
        if let Some(name) = take_server_name() {
            self.server_name = Some(name);
        }
        if self.peer_closed {
            io.end();
        } else if input.len() > start {
            if input.len() - start > LARGEST_MESSAGE {
                return Err(self.refuse(TlsError::TooLarge));
            }
            self.partial = input[start..].to_vec();
        }
        self.may_be_ready(io);
        Ok(())
    }

    fn may_be_ready(&mut self, io: &mut LayerIo<'_>) {
        if self.session().is_none_or(|session| session.state().is_handshaking()) {
            return;
        }
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Handshake { session, handshake, .. } => {
                handshake.completed(session.state().handshake_kind());
                self.stage = Stage::Open(session);
                io.ready();
            }
            other => self.stage = other,
        }
    }

    /// Ends the session after an error of rustls, with an alert.
    fn fail(&mut self, io: &mut LayerIo<'_>, error: rustls::Error, input: &mut [u8], out: &mut Vec<u8>) -> Reason {
        if let Stage::Handshake { session, .. } | Stage::Open(session) = &mut self.stage {
            session.rest(input, out);
        }
        take_server_name();
        let error = match other_protocol(input).filter(|_| !self.spoke_tls) {
            Some(protocol) => TlsError::NotTls { protocol },
            None => TlsError::from_rustls(error, out),
        };
        transmit(io, out);
        self.refuse(error)
    }

    fn refuse(&mut self, error: TlsError) -> Reason {
        if let Stage::Handshake { handshake, .. } = std::mem::replace(&mut self.stage, Stage::Failed) {
            handshake.failed(&error);
        }
        Reason::layer(error)
    }

    /// Returns whether the computation of a handshake may happen in this turn.
    fn may_compute(&mut self, io: &mut LayerIo<'_>) -> bool {
        let Stage::Handshake { session: Session::Server(_), admission, .. } = &mut self.stage else { return true };
        if *admission == Admission::Asks {
            let id = io.id();
            if handshakes::may_compute(io.reactor(), id) {
                return true;
            }
            *admission = Admission::Waits;
        }
        let waits = *admission == Admission::Waits;
        if waits {
            io.wait();
        }
        !waits
    }

    /// Counts the computation of a server's handshake that led to an answer.
    fn answers(&mut self, io: &mut LayerIo<'_>) {
        let Stage::Handshake { session: session @ Session::Server(_), admission, verifies_clients, .. } =
            &mut self.stage
        else {
            return;
        };
        // Connections that were woken have been counted already.
        if *admission == Admission::Asks {
            handshakes::computed(io.reactor());
        }
        let hello_follows = session.state().handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
        *admission = if hello_follows || *verifies_clients { Admission::Asks } else { Admission::Over };
    }

    /// Encrypts bytes from above into records. Returns how many.
    fn encrypt(&mut self, output: &[IoSlice<'_>], scratch: &mut Scratch) -> Result<usize, Reason> {
        let Stage::Open(session) = &mut self.stage else { return Ok(0) };
        let Scratch { joined, out, .. } = scratch;
        let total: usize = output.iter().map(|slice| slice.len()).sum();
        let (mut slices, mut offset, mut sent) = (output, 0, 0);
        let records = total.min(SEND_AT_ONCE) / self.sizing.largest() + 1;
        out.reserve(total.min(SEND_AT_ONCE + LARGEST_PLAINTEXT) + records * RECORD_OVERHEAD);
        while sent < total && out.len() < SEND_AT_ONCE {
            while slices[0].len() == offset {
                (slices, offset) = (&slices[1..], 0);
            }
            let largest = self.sizing.largest();
            let first = &slices[0][offset..];
            // Small pieces share a record.
            let record = if first.len() >= largest.min(total - sent) {
                let count = first.len().min(largest);
                offset += count;
                &first[..count]
            } else {
                joined.clear();
                while joined.len() < largest && !slices.is_empty() {
                    let rest = &slices[0][offset..];
                    let count = rest.len().min(largest - joined.len());
                    joined.extend_from_slice(&rest[..count]);
                    offset += count;
                    if offset == slices[0].len() {
                        (slices, offset) = (&slices[1..], 0);
                    }
                }
                &joined[..]
            };
            let encrypted = session.encrypt(&mut self.partial, record, out);
            sent += record.len();
            self.sizing.sent(record.len());
            encrypted.map_err(|error| Reason::layer(TlsError::from_rustls(error, &[])))?;
        }
        Ok(sent)
    }
}

impl Scratch {
    /// Keeps the memory for the next call.
    fn put_back(mut self, io: &mut LayerIo<'_>) {
        self.input.clear();
        self.out.clear();
        for memory in [&mut self.input, &mut self.out, &mut self.joined] {
            if memory.capacity() > SCRATCH {
                *memory = Vec::new();
            }
        }
        *io.reactor().state::<Scratch>() = self;
    }
}

/// Transmits records and leaves `out` empty.
fn transmit(io: &mut LayerIo<'_>, out: &mut Vec<u8>) {
    match out.len() {
        0 => {}
        1..=BLOCK => io.transmit_block(out),
        // Larger ones are not copied into the queue.
        _ => io.transmit_bytes(std::mem::take(out)),
    }
}

/// How other protocols begin.
const OTHERS: [(&[u8], &str); 15] = [
    (b"GET ", "plain HTTP"),
    (b"POST ", "plain HTTP"),
    (b"HEAD ", "plain HTTP"),
    (b"PUT ", "plain HTTP"),
    (b"DELETE ", "plain HTTP"),
    (b"OPTIONS ", "plain HTTP"),
    (b"PATCH ", "plain HTTP"),
    (b"CONNECT ", "plain HTTP"),
    (b"HTTP/", "plain HTTP"),
    (b"PRI * HTTP/2", "plain HTTP/2"),
    (b"SSH-", "SSH"),
    (b"PROXY ", "the PROXY protocol"),
    (b"\r\n\r\n\0\r\nQUIT", "the PROXY protocol"),
    (b"220 ", "SMTP or FTP"),
    (b"220-", "SMTP or FTP"),
];

/// Recognises another protocol by the peer's first bytes.
fn other_protocol(bytes: &[u8]) -> Option<&'static str> {
    OTHERS.iter().find(|(start, _)| bytes.starts_with(start)).map(|(_, name)| *name)
}

/// Returns whether these first bytes may become another protocol's when more have arrived.
fn may_be_other_protocol(bytes: &[u8]) -> bool {
    !bytes.is_empty() && OTHERS.iter().any(|(start, _)| start.len() > bytes.len() && start.starts_with(bytes))
}

impl Layer for Tls {
    fn start(&mut self, io: &mut LayerIo<'_>) -> Result<(), Reason> {
        let Stage::New(side) = std::mem::replace(&mut self.stage, Stage::Failed) else { return Ok(()) };
        let verifies_clients = matches!(side, Side::Server { verifies_clients: true, .. });
        let (session, handshake) = side.start().map_err(Reason::layer)?;
        self.stage = Stage::Handshake { session, handshake, admission: Admission::Asks, verifies_clients };
        // A client begins. A server has nothing to say yet.
        match &self.stage {
            Stage::Handshake { session: Session::Client(_), .. } => self.process(io, &[]),
            _ => Ok(()),
        }
    }

    fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> {
        if self.peer_closed {
            return Ok(input.len());
        }
        if !self.may_compute(io) {
            return Ok(0);
        }
        self.process(io, input)?;
        if let Stage::Handshake { admission: admission @ Admission::Granted, .. } = &mut self.stage {
            *admission = Admission::Asks;
        }
        Ok(input.len())
    }

    fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
        let now = io.reactor().now();
        self.sizing.at(now);
        let mut scratch = std::mem::take(io.reactor().state::<Scratch>());
        let sent = self.encrypt(output, &mut scratch);
        transmit(io, &mut scratch.out);
        scratch.put_back(io);
        sent
    }

    fn woken(&mut self, _: &mut LayerIo<'_>) -> Result<(), Reason> {
        if let Stage::Handshake { admission: admission @ Admission::Waits, .. } = &mut self.stage {
            *admission = Admission::Granted;
        }
        Ok(())
    }

    fn finish(&mut self, io: &mut LayerIo<'_>) -> Result<Poll<()>, Reason> {
        let Stage::Open(session) = &mut self.stage else { return Ok(Poll::Ready(())) };
        let mut out = Vec::with_capacity(RECORD_OVERHEAD);
        let closed = session.close(&mut self.partial, &mut out);
        io.transmit(&out);
        closed.map_err(|error| Reason::layer(TlsError::from_rustls(error, &[])))?;
        Ok(Poll::Ready(()))
    }

    fn peer_finished(&mut self, io: &mut LayerIo<'_>, _: &[u8]) -> Result<(), Reason> {
        match &self.stage {
            Stage::Open(_) if self.tolerates_truncation && self.partial.is_empty() => {
                io.end();
                Ok(())
            }
            Stage::Open(_) => Err(Reason::Truncated),
            Stage::New(_) | Stage::Handshake { .. } | Stage::Failed => Err(self.refuse(TlsError::ClosedInHandshake)),
        }
    }
}
