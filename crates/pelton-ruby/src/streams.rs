//! Connections: the handler that calls Ruby, sending, closing, pausing.

use std::io::ErrorKind;
use std::rc::Rc;

use magnus::{Error, RString, Value};
use pelton::{Chunk, Connection, Io, Limit, Lingering, Reactor, Reason, SendError};
use rb_sys::VALUE;

use crate::access::{act, ask, machine};
use crate::call::{self, Told};
use crate::errors;
use crate::machine::{Machine, Source, Standing};

/// How the program learns that a connection is established.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opening {
    /// It was accepted by this server.
    Accepted(u64),
    /// It is told `connection_completed`.
    Connecting,
    /// It was open when the program passed it: nothing is told.
    Attached,
    /// It is the standard input and output of the child with this number.
    Child(u32),
}

/// Handles a connection for Ruby.
pub(crate) struct Stream {
    pub(crate) machine: Rc<Machine>,
    pub(crate) sig: u64,
    pub(crate) opening: Opening,
}

impl Connection for Stream {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.set_lingering(Lingering::Never);
        match self.opening {
            Opening::Accepted(server) => {
                self.machine.add(self.sig, Source::Connection(io.id()));
                self.machine.set_standing(self.sig, Standing::Accepted);
                if !self.machine.tell(io.reactor(), Told::Accepted(server, self.sig)) {
                    // Nobody knows of it, so nobody is told of its end.
                    self.machine.remove(self.sig);
                    io.close();
                }
            }
            Opening::Connecting | Opening::Attached | Opening::Child(_) => {
                self.machine.set_standing(self.sig, Standing::Opened);
                self.machine.start_waiting_tls(io, self.sig);
                if self.opening == Opening::Connecting {
                    self.machine.tell(io.reactor(), Told::Completed(self.sig));
                }
            }
        }
    }

    fn layer_ready(&mut self, io: &mut Io<'_>) {
        self.machine.tell(io.reactor(), Told::HandshakeCompleted(self.sig));
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        if let Some(chunk) = self.machine.pass_on(io, self.sig, chunk) {
            self.machine.tell(io.reactor(), Told::Received(self.sig, &chunk));
        }
    }

    /// Only programs that have set marks are told this.
    fn writable(&mut self, io: &mut Io<'_>) {
        self.machine.tell(io.reactor(), Told::Drained(self.sig));
    }

    /// Only proxies ask for this.
    fn sent(&mut self, io: &mut Io<'_>) {
        self.machine.target_has_sent(io.reactor(), self.sig);
    }

    /// EventMachine has no half-closed connections: the end of the input is the end.
    fn peer_finished(&mut self, io: &mut Io<'_>) {
        io.close_with(Reason::Finished);
    }

    fn timed_out(&mut self, io: &mut Io<'_>, limit: Limit) {
        let after = io.limit(limit).unwrap_or_default();
        io.close_with(Reason::TimedOut { limit, after });
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let error = error_number(&reason);
        if let Reason::Layer(error) = &reason {
            *self.machine.tls_error.borrow_mut() = Some((self.sig, error.to_string()));
        }
        match self.opening {
            Opening::Child(pid) if self.machine.source(self.sig).is_some() => {
                crate::processes::unbind_after_exit(&self.machine, reactor, self.sig, pid, error);
            }
            _ => self.machine.unbind(reactor, self.sig, error),
        }
    }
}

/// Returns the number that a program gets as the reason of `unbind`, or 0.
pub(crate) fn error_number(reason: &Reason) -> i32 {
    let of = |error: &std::io::Error| {
        error.raw_os_error().unwrap_or(match error.kind() {
            ErrorKind::TimedOut => libc::ETIMEDOUT,
            ErrorKind::ConnectionRefused => libc::ECONNREFUSED,
            _ => libc::EIO,
        })
    };
    match reason {
        Reason::Reset => libc::ECONNRESET,
        Reason::Refused { .. } => libc::ECONNREFUSED,
        Reason::Unreachable { error, .. } | Reason::Failed(error) => of(error),
        Reason::TimedOut { .. } => libc::ETIMEDOUT,
        // Only names that are looked up while the loop runs end like this.
        Reason::Unresolved(_) => libc::EHOSTUNREACH,
        Reason::AllFailed { attempts, .. } => attempts.last().map_or(libc::EHOSTUNREACH, |attempt| of(&attempt.error)),
        Reason::Layer(_) | Reason::Truncated => libc::EPROTO,
        _ => 0,
    }
}

/// What [`send_here`] returns if the program has bounded the queue and it is full.
const FULL: i64 = i64::MIN;

/// Queues bytes on a connection or a datagram socket, from the loop's thread. Returns what `send_data` returns.
fn send_here(machine: &Machine, reactor: &mut Reactor, sig: u64, bytes: &[u8]) -> i64 {
    match machine.source(sig) {
        Some(Source::Connection(id)) => {
            if machine.sends_after_tls(sig, bytes) {
                return bytes.len() as i64;
            }
            let sent = reactor.connection(id).map(|mut io| io.send(bytes));
            if matches!(sent, Some(Err(SendError::Full { .. }))) {
                return FULL;
            }
            if sent.is_some_and(|sent| sent.is_ok()) { bytes.len() as i64 } else { 0 }
        }
        Some(Source::Datagrams(id)) => crate::datagrams::answer(machine, reactor, sig, id, bytes),
        Some(_) => 0,
        None => -1,
    }
}

/// Sends a string. It is copied before anything else can run.
fn send(sig: u64, data: RString) -> Result<i64, Error> {
    let machine = machine("send_data_to_connection")?;
    // SAFETY: no Ruby code runs while the slice is used, so the string is neither changed nor freed.
    let bytes = unsafe { data.as_slice() };
    if bytes.is_empty() {
        return Ok(0);
    }
    if let Some(sent) = machine.with(|reactor| send_here(&machine, reactor, sig, bytes)) {
        if sent == FULL {
            let text = format!("{} bytes more than limit_outbound allows to queue", bytes.len());
            return Err(errors::of_module("OutboundFull", text));
        }
        return Ok(sent);
    }
    let (bytes, len) = (bytes.to_vec(), bytes.len() as i64);
    act("send_data_to_connection", move |machine, reactor| {
        send_here(machine, reactor, sig, &bytes);
    })?;
    Ok(len)
}

/// `send_data`
pub(crate) fn send_data(sig: u64, data: RString, length: i64) -> Result<i64, Error> {
    let size = data.len() as i64;
    if (0..size).contains(&length) {
        // SAFETY: as in `send`.
        let part = unsafe { data.as_slice() }[..length as usize].to_vec();
        let part = magnus::Ruby::get_with(data).str_from_slice(&part);
        return send(sig, part);
    }
    send(sig, data)
}

/// `Connection#send_data`
pub(crate) fn connection_send_data(connection: Value, data: Value) -> Result<i64, Error> {
    use magnus::rb_sys::AsRawValue;
    let data = match RString::from_value(data) {
        Some(data) => data,
        None => magnus::value::ReprValue::funcall::<_, _, RString>(data, "to_s", ())?,
    };
    // SAFETY: the lock is held, and the object is alive.
    match unsafe { call::signature_of(connection.as_raw() as VALUE) } {
        Some(sig) => send(sig, data),
        None => Ok(-1),
    }
}

/// `close_connection`
pub(crate) fn close_connection(sig: u64, after_writing: bool) -> Result<(), Error> {
    act("close_connection", move |machine, reactor| {
        let source = machine.source(sig);
        match source {
            Some(Source::Connection(id)) => {
                let Some(mut io) = reactor.connection(id) else { return };
                if after_writing {
                    io.close_after_writing();
                } else {
                    io.close();
                }
            }
            Some(Source::Datagrams(id)) => {
                let Some(mut io) = reactor.datagrams(id) else { return };
                if after_writing { io.close_after_sending() } else { io.close() }
            }
            _ => return,
        }
        machine.will_close(sig);
    })
}

/// `pause_connection`
pub(crate) fn pause_connection(sig: u64) -> Result<bool, Error> {
    set_paused(sig, true)
}

/// `resume_connection`
pub(crate) fn resume_connection(sig: u64) -> Result<bool, Error> {
    set_paused(sig, false)
}

fn set_paused(sig: u64, pause: bool) -> Result<bool, Error> {
    let source = machine("pause")?.source(sig);
    match source {
        Some(Source::Connection(id)) => {
            act("pause", move |_, reactor| {
                let Some(mut io) = reactor.connection(id) else { return };
                if pause {
                    io.pause();
                    io.pause_sending();
                } else {
                    io.resume();
                    io.resume_sending();
                }
            })?;
            Ok(true)
        }
        Some(Source::Watch(_)) => {
            Err(errors::runtime("a watched descriptor cannot be paused; use notify_readable and notify_writable"))
        }
        _ => Ok(false),
    }
}

/// `connection_paused?`
pub(crate) fn is_connection_paused(sig: u64) -> Result<bool, Error> {
    ask("connection_paused", move |machine, reactor| match machine.source(sig) {
        Some(Source::Connection(id)) => reactor.connection(id).is_some_and(|mut io| io.is_paused()),
        _ => false,
    })
}
