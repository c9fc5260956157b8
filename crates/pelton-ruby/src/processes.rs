//! Child processes, whose input and output are a connection; and the exit of other processes.
//!
//! Ruby starts and waits for children, so that the status is one of Ruby's. The reactor tells when a child has exited. A
//! program is told of the end of the connection when both the output and the process have ended, and never waits in between.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use magnus::Error;
use pelton::{Reactor, Socket};

use crate::access::ask;
use crate::call::Told;
use crate::errors;
use crate::machine::{Machine, Source, next_signature};
use crate::streams::{Opening, Stream};

/// How long a child may live after its output has ended before it gets SIGTERM, and then SIGKILL.
const UNTIL_TERMINATED: Duration = Duration::from_millis(500);
const UNTIL_KILLED: Duration = Duration::from_secs(5);

/// `attach_process`: makes a connection of a duplicate of a socket whose other end is the standard input and output of a child.
pub(crate) fn attach_process(descriptor: i32, pid: u32) -> Result<u64, Error> {
    // SAFETY: the descriptor is used for this call only. If it is not open, the call fails.
    let duplicate = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
    let socket = Socket::from(duplicate.map_err(|error| errors::errno(&error))?);
    let attached = ask("popen", move |machine, reactor| {
        let sig = next_signature();
        let handler = Stream { machine: machine.clone(), sig, opening: Opening::Child(pid) };
        let id = reactor.adopt(socket, handler).map_err(|error| error.to_string())?;
        machine.add(sig, Source::Connection(id));
        Ok::<u64, String>(sig)
    })?;
    attached.map_err(errors::runtime)
}

/// Tells the program of the end of a child's connection when the child has exited. A child that does not exit is killed.
pub(crate) fn unbind_after_exit(machine: &Rc<Machine>, reactor: &mut Reactor, sig: u64, pid: u32, error: i32) {
    let owner = machine.clone();
    let watched = reactor.watch_process(pid, move |reactor, _| owner.unbind(reactor, sig, error));
    // Someone else has waited for it, or there is nothing to watch with.
    let Ok(watch) = watched else { return machine.unbind(reactor, sig, error) };
    machine.will_close(sig);
    if let Some(entry) = machine.entries.borrow_mut().get_mut(&sig) {
        entry.source = Source::Exiting(watch, error);
    }
    for (delay, signal) in [(UNTIL_TERMINATED, libc::SIGTERM), (UNTIL_TERMINATED + UNTIL_KILLED, libc::SIGKILL)] {
        let owner = machine.clone();
        reactor.after(delay, move |_| {
            // As long as the entry is there, nobody has waited for the child, so the number is its own.
            if matches!(owner.source(sig), Some(Source::Exiting(..))) {
                // SAFETY: sends a signal to a child that was not waited for.
                unsafe { libc::kill(pid.cast_signed(), signal) };
            }
        });
    }
}

/// `watch_pid`
pub(crate) fn watch_pid(pid: u32) -> Result<u64, Error> {
    let watched = ask("watch_pid", move |machine, reactor| {
        let sig = next_signature();
        let owner = machine.clone();
        let watch = reactor.watch_process(pid, move |reactor, _| {
            owner.tell(reactor, Told::Received(sig, b"exited"));
            owner.unbind(reactor, sig, 0);
        });
        watch.map(|id| {
            machine.add(sig, Source::Process(id));
            sig
        })
    })?;
    watched.map_err(|error| errors::of_module("Unsupported", error.to_string()))
}

/// `unwatch_pid`
pub(crate) fn unwatch_pid(sig: u64) -> Result<(), Error> {
    ask("unwatch_pid", move |machine, reactor| {
        if let Some(Source::Process(id)) = machine.source(sig) {
            reactor.end(id);
            machine.unbind_soon(reactor, sig);
            return true;
        }
        false
    })
    .and_then(|known| if known { Ok(()) } else { Err(errors::of_module("InvalidSignature", "invalid pid signature")) })
}
