//! Descriptors that Ruby owns: watched, or attached as connections.

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::rc::Rc;

use magnus::Error;
use pelton::{Interest, Reactor, Socket};

use crate::access::ask;
use crate::call::Told;
use crate::errors;
use crate::machine::{Entry, Machine, Source, Standing, next_signature};
use crate::streams::{Opening, Stream};

/// The interest of a watch, as the program has set it.
#[derive(Clone, Copy, Default)]
struct Wanted {
    readable: bool,
    writable: bool,
}

impl Wanted {
    fn of(interest: Interest) -> Wanted {
        Wanted { readable: interest.readable(), writable: interest.writable() }
    }

    fn interest(self) -> Interest {
        match (self.readable, self.writable) {
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (true, false) => Interest::READABLE,
            (false, true) => Interest::WRITABLE,
            (false, false) => Interest::NONE,
        }
    }
}

/// Watches a descriptor for nothing yet.
fn watch(machine: &Rc<Machine>, reactor: &mut Reactor, descriptor: RawFd) -> Result<u64, String> {
    let sig = next_signature();
    let owner = machine.clone();
    // SAFETY: the descriptor is used for this call, and the engine copes with one that is closed or not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let id = reactor
        .watch(&borrowed, Interest::NONE, move |reactor, ready| {
            if ready.closed() {
                return owner.unbind(reactor, sig, libc::EBADF);
            }
            // A descriptor that hung up is ready for both: the program finds out when it uses it.
            let wanted = owner.wanted(sig);
            let broken = ready.hangup() || ready.error();
            if wanted.readable && (ready.readable() || broken) {
                owner.tell(reactor, Told::Readable(sig));
            }
            if owner.wanted(sig).writable && (ready.writable() || broken) {
                owner.tell(reactor, Told::Writable(sig));
            }
        })
        .map_err(|error| error.to_string())?;
    machine.add_attached(sig, Source::Watch(id), descriptor);
    Ok(sig)
}

impl Machine {
    fn add_attached(&self, sig: u64, source: Source, descriptor: RawFd) {
        self.entries
            .borrow_mut()
            .insert(sig, Entry { source, standing: Standing::Opening, closing: false, attached: Some(descriptor) });
    }

    fn is_attached(&self, descriptor: RawFd) -> bool {
        self.entries
            .borrow()
            .values()
            .any(|entry| entry.attached == Some(descriptor) && !matches!(entry.source, Source::Over(_)))
    }

    fn wanted(&self, sig: u64) -> Wanted {
        self.wanted.borrow().get(&sig).map_or(Wanted::default(), |interest| Wanted::of(*interest))
    }
}

/// `attach_fd`: watches a descriptor, or makes a connection of a duplicate of it.
pub(crate) fn attach_fd(descriptor: i32, watch_only: bool) -> Result<u64, Error> {
    if descriptor < 0 {
        return Err(errors::runtime("invalid file descriptor"));
    }
    // SAFETY: asks about a number, whatever it stands for.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
        let error = std::io::Error::last_os_error();
        return Err(errors::runtime(format!("attach descriptor {descriptor}: {error}")));
    }
    let attached = ask("attach_fd", move |machine, reactor| {
        if machine.is_attached(descriptor) {
            return Err("adding existing descriptor".to_owned());
        }
        if watch_only {
            return watch(machine, reactor, descriptor);
        }
        let sig = next_signature();
        // SAFETY: the descriptor is used for this call only. If it is not open, the call fails.
        let duplicate = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
        let socket = Socket::from(duplicate.map_err(|error| format!("attach descriptor {descriptor}: {error}"))?);
        let handler = Stream { machine: machine.clone(), sig, opening: Opening::Attached };
        let id = reactor.adopt(socket, handler).map_err(|error| error.to_string())?;
        machine.add_attached(sig, Source::Connection(id), descriptor);
        Ok(sig)
    })?;
    attached.map_err(errors::runtime)
}

/// `detach_fd`: ends a watch or a connection without closing its descriptor, which is returned. The program is told that it has
/// ended.
pub(crate) fn detach_fd(sig: u64) -> Result<i32, Error> {
    let detached = ask("detach_fd", move |machine, reactor| {
        let attached = machine.entries.borrow().get(&sig).and_then(|entry| entry.attached);
        match machine.source(sig) {
            Some(Source::Watch(id)) => {
                reactor.end(id);
                machine.wanted.borrow_mut().remove(&sig);
                machine.unbind_soon(reactor, sig);
                attached.ok_or_else(|| "detach: no descriptor".to_owned())
            }
            Some(Source::Connection(id)) => {
                let Some(mut io) = reactor.connection(id) else {
                    return Err("detach: the connection has ended".to_owned());
                };
                if io.has_layers() {
                    return Err("detach: a connection with TLS cannot be detached".to_owned());
                }
                let descriptor = match attached {
                    Some(descriptor) => descriptor,
                    // The connection closes its own descriptor; the duplicate keeps the socket open.
                    None => {
                        let Some(own) = io.descriptor() else { return Err("detach: no descriptor".to_owned()) };
                        own.try_clone_to_owned().map_err(|error| format!("detach: {error}"))?.into_raw_fd()
                    }
                };
                io.close();
                machine.will_close(sig);
                Ok(descriptor)
            }
            _ => Err("invalid connection signature".to_owned()),
        }
    })?;
    detached.map_err(errors::runtime)
}

/// `watch_only?`
pub(crate) fn is_watch_only(sig: u64) -> Result<bool, Error> {
    Ok(matches!(crate::access::machine("is_watch_only")?.source(sig), Some(Source::Watch(_))))
}

/// `get_file_descriptor`
pub(crate) fn get_file_descriptor(sig: u64) -> Result<i32, Error> {
    let found = ask("get_file_descriptor", move |machine, reactor| {
        if let Some(descriptor) = machine.entries.borrow().get(&sig).and_then(|entry| entry.attached) {
            return Some(descriptor);
        }
        match machine.source(sig)? {
            Source::Connection(id) => reactor.connection(id)?.descriptor().map(|fd| fd.as_raw_fd()),
            Source::Datagrams(id) => reactor.datagrams(id)?.descriptor().map(|fd| fd.as_raw_fd()),
            _ => None,
        }
    })?;
    found.ok_or_else(|| errors::runtime("invalid connection signature"))
}

/// What a program wants to be notified of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Readable,
    Writable,
}

fn set_notify(sig: u64, direction: Direction, on: bool) -> Result<bool, Error> {
    let set = ask("set_notify", move |machine, reactor| {
        let Some(Source::Watch(id)) = machine.source(sig) else {
            return Err("notify_readable/notify_writable are for 'watch only' connections".to_owned());
        };
        let mut wanted = machine.wanted(sig);
        match direction {
            Direction::Readable => wanted.readable = on,
            Direction::Writable => wanted.writable = on,
        }
        reactor.set_interest(id, wanted.interest()).map_err(|error| error.to_string())?;
        machine.wanted.borrow_mut().insert(sig, wanted.interest());
        Ok(on)
    })?;
    set.map_err(errors::runtime)
}

/// `set_notify_readable`
pub(crate) fn set_notify_readable(sig: u64, on: bool) -> Result<bool, Error> {
    set_notify(sig, Direction::Readable, on)
}

/// `set_notify_writable`
pub(crate) fn set_notify_writable(sig: u64, on: bool) -> Result<bool, Error> {
    set_notify(sig, Direction::Writable, on)
}

/// `is_notify_readable`
pub(crate) fn is_notify_readable(sig: u64) -> Result<bool, Error> {
    Ok(crate::access::machine("is_notify_readable")?.wanted(sig).readable)
}

/// `is_notify_writable`
pub(crate) fn is_notify_writable(sig: u64) -> Result<bool, Error> {
    Ok(crate::access::machine("is_notify_writable")?.wanted(sig).writable)
}
