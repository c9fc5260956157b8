//! What a program can ask about a connection, and its time limits.

use std::time::Duration;

use magnus::{Error, RString, Ruby};
use pelton::{Limit, Reactor};

use crate::access::{act, ask, machine};
use crate::addresses::{self, End};
use crate::machine::{Machine, Source};

/// `report_connection_error_status`: the pending error of the socket, 0, or -1 if there is no connection.
pub(crate) fn report_connection_error_status(sig: u64) -> Result<i32, Error> {
    ask("report_connection_error_status", move |machine, reactor| match machine.source(sig) {
        Some(Source::Connection(id)) => match reactor.connection(id).as_ref().and_then(|io| io.descriptor()) {
            Some(socket) => crate::socket_options::pending_error(socket),
            None => 0,
        },
        Some(Source::Over(_)) | None => -1,
        Some(_) => 0,
    })
}

fn name(machine: &Machine, reactor: &mut Reactor, sig: u64, end: End) -> Option<Vec<u8>> {
    match machine.source(sig)? {
        Source::Connection(id) => addresses::of_socket(reactor.connection(id)?.descriptor()?, end),
        Source::Datagrams(_) if end == End::Peer => addresses::pack(machine.senders.borrow().get(&sig)?),
        Source::Datagrams(id) => addresses::of_socket(reactor.datagrams(id)?.descriptor()?, end),
        Source::Server(id) if end == End::Local => addresses::pack(reactor.listening_on(id)?),
        _ => None,
    }
}

fn packed(ruby: &Ruby, function: &'static str, sig: u64, end: End) -> Result<Option<RString>, Error> {
    let found = ask(function, move |machine, reactor| name(machine, reactor, sig, end))?;
    Ok(found.map(|packed| ruby.str_from_slice(&packed)))
}

/// `get_peername`
pub(crate) fn get_peername(ruby: &Ruby, sig: u64) -> Result<Option<RString>, Error> {
    packed(ruby, "get_peername", sig, End::Peer)
}

/// `get_sockname`
pub(crate) fn get_sockname(ruby: &Ruby, sig: u64) -> Result<Option<RString>, Error> {
    packed(ruby, "get_sockname", sig, End::Local)
}

/// `get_idle_time`
pub(crate) fn get_idle_time(sig: u64) -> Result<Option<f64>, Error> {
    ask("get_idle_time", move |machine, reactor| match machine.source(sig)? {
        Source::Connection(id) => Some(reactor.connection(id)?.idle_time().as_secs_f64()),
        _ => None,
    })
}

/// The number of bytes that are queued on a connection.
pub(crate) fn get_outbound_data_size(sig: u64) -> Result<usize, Error> {
    ask("get_outbound_data_size", move |machine, reactor| match machine.source(sig) {
        Some(Source::Connection(id)) => {
            let queued = reactor.connection(id).map_or(0, |mut io| io.queued() + io.queued_in_files() as usize);
            queued + machine.waiting_for_tls(sig)
        }
        Some(Source::Datagrams(id)) => reactor.datagrams(id).map_or(0, |mut io| io.queued()),
        _ => 0,
    })
}

fn limit(sig: u64, limit: Limit) -> Result<f64, Error> {
    ask("get_timeout", move |machine, reactor| match machine.source(sig) {
        Some(Source::Connection(id)) => {
            reactor.connection(id).and_then(|mut io| io.limit(limit)).map_or(0.0, |after| after.as_secs_f64())
        }
        _ => 0.0,
    })
}

fn set_limit(sig: u64, limit: Limit, seconds: f64) -> Result<bool, Error> {
    let after = if seconds > 0.0 { Duration::try_from_secs_f64(seconds).ok() } else { None };
    let known = matches!(machine("set_timeout")?.source(sig), Some(Source::Connection(_)));
    act("set_timeout", move |machine, reactor| {
        if let Some(Source::Connection(id)) = machine.source(sig)
            && let Some(mut io) = reactor.connection(id)
        {
            io.set_limit(limit, after);
        }
    })?;
    Ok(known)
}

/// `get_comm_inactivity_timeout`
pub(crate) fn get_comm_inactivity_timeout(sig: u64) -> Result<f64, Error> {
    limit(sig, Limit::Inactivity)
}

/// `set_comm_inactivity_timeout`
pub(crate) fn set_comm_inactivity_timeout(sig: u64, seconds: f64) -> Result<bool, Error> {
    set_limit(sig, Limit::Inactivity, seconds)
}

/// `get_pending_connect_timeout`
pub(crate) fn get_pending_connect_timeout(sig: u64) -> Result<f64, Error> {
    limit(sig, Limit::Connect)
}

/// `set_pending_connect_timeout`
pub(crate) fn set_pending_connect_timeout(sig: u64, seconds: f64) -> Result<bool, Error> {
    set_limit(sig, Limit::Connect, seconds)
}

/// `accepted?`: whether a server has accepted the connection.
pub(crate) fn is_accepted(sig: u64) -> Result<bool, Error> {
    let machine = machine("accepted")?;
    let entries = machine.entries.borrow();
    Ok(entries.get(&sig).is_some_and(|entry| entry.standing == crate::machine::Standing::Accepted))
}
