//! Servers.

use std::os::fd::BorrowedFd;
use std::rc::Rc;

use magnus::Error;
use pelton::{Address, ListenOptions, Reactor, Socket};

use crate::access::ask;
use crate::addresses;
use crate::errors;
use crate::machine::{Machine, Source, next_signature};
use crate::streams::{Opening, Stream};

/// How many connections may wait to be accepted. EventMachine's number.
const BACKLOG: u32 = 1024;

/// Returns the closure that makes the handlers of accepted connections.
fn serving(machine: &Rc<Machine>, server: u64) -> impl FnMut(&mut Reactor) -> Stream + 'static {
    let machine = machine.clone();
    move |_| Stream { machine: machine.clone(), sig: next_signature(), opening: Opening::Accepted(server) }
}

fn listen(address: Address, failed: &'static str) -> Result<u64, Error> {
    let started = ask("create_server", move |machine, reactor| {
        let sig = next_signature();
        let options = ListenOptions::default().backlog(BACKLOG);
        reactor.listen_with(&address, &options, serving(machine, sig)).map(|id| {
            machine.add(sig, Source::Server(id));
            sig
        })
    })?;
    // The text that programs know first, then the cause.
    started.map_err(|error| errors::runtime(format!("{failed}: {error}")))
}

/// `start_tcp_server`
pub(crate) fn start_tcp_server(host: String, port: i64) -> Result<u64, Error> {
    const FAILED: &str = "no acceptor (port is in use or requires root privileges)";
    let port = u16::try_from(port).map_err(|_| errors::runtime(format!("{FAILED}: port {port}")))?;
    let address = addresses::resolve(&host, port, addresses::Use::Bind)
        .map_err(|error| errors::runtime(format!("{FAILED}: {error}")))?;
    listen(Address::Tcp(address), FAILED)
}

/// `start_unix_server`
pub(crate) fn start_unix_server(path: String) -> Result<u64, Error> {
    listen(addresses::unix(&path), "no unix-domain acceptor")
}

/// `attach_sd`: accepts on a descriptor that Ruby owns. A duplicate of it is used, which ends with the server.
pub(crate) fn attach_sd(descriptor: i32) -> Result<u64, Error> {
    const FAILED: &str = "no socket descriptor acceptor";
    if descriptor < 0 {
        return Err(errors::runtime(FAILED));
    }
    // SAFETY: the descriptor is used for this call only. If it is not open, the call fails.
    let owned = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
    let socket = Socket::from(owned.map_err(|error| errors::runtime(format!("{FAILED}: {error}")))?);
    if !matches!(socket.is_listening(), Ok(true)) {
        return Err(errors::runtime(format!("{FAILED}: the socket does not listen")));
    }
    let started = ask("attach_sd", move |machine, reactor| {
        let sig = next_signature();
        reactor.adopt_listener(socket, serving(machine, sig)).map(|id| {
            machine.add(sig, Source::Server(id));
            sig
        })
    })?;
    started.map_err(|error| errors::runtime(format!("{FAILED}: {error}")))
}

/// `stop_tcp_server`
pub(crate) fn stop_tcp_server(sig: u64) -> Result<bool, Error> {
    ask("stop_tcp_server", move |machine, reactor| match machine.source(sig) {
        Some(Source::Server(id)) => {
            machine.remove(sig);
            reactor.end(id)
        }
        _ => false,
    })
}
