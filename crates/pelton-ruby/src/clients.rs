//! Clients.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use magnus::Error;
use pelton::{Address, ConnectOptions, Reactor};

use crate::access::ask;
use crate::addresses::{self, Use};
use crate::errors;
use crate::machine::{Machine, Source, next_signature};
use crate::streams::{Opening, Stream};
use crate::tuning::settings;

fn port_of(port: i64) -> Result<u16, Error> {
    u16::try_from(port).map_err(|_| errors::connection("invalid server or port"))
}

fn look_up(host: &str, port: i64) -> Result<SocketAddr, Error> {
    let port = port_of(port)?;
    addresses::resolve(host, port, Use::Connect)
        .map_err(|error| errors::connection(format!("unable to resolve address: {error}")))
}

/// Connects. A failure that the system reports at once is told like any other: by `unbind`, after the program has the
/// connection.
fn connect(
    machine: &Rc<Machine>,
    reactor: &mut Reactor,
    address: &Address,
    options: &ConnectOptions,
) -> Result<u64, String> {
    let sig = next_signature();
    let handler = Stream { machine: machine.clone(), sig, opening: Opening::Connecting };
    match reactor.connect_with(address, options, handler) {
        Ok(id) => machine.add(sig, Source::Connection(id)),
        Err(pelton::Error::System { error, .. }) if options.bind_address().is_none() => {
            let number = error.raw_os_error().unwrap_or(libc::EIO);
            machine.add(sig, Source::Over(number));
            let owner = machine.clone();
            reactor.next_tick(move |reactor| owner.unbind(reactor, sig, number));
        }
        Err(error) => return Err(error.to_string()),
    }
    Ok(sig)
}

/// Connects to a name. It is looked up while the loop runs, and a failure is told by `unbind`.
fn connect_by_name(machine: &Rc<Machine>, reactor: &mut Reactor, target: (String, u16)) -> Result<u64, String> {
    let sig = next_signature();
    let handler = Stream { machine: machine.clone(), sig, opening: Opening::Connecting };
    let id = reactor.connect_to(target, handler).map_err(|error| error.to_string())?;
    machine.add(sig, Source::Connection(id));
    Ok(sig)
}

/// `connect_server`
pub(crate) fn connect_server(host: String, port: i64) -> Result<u64, Error> {
    if settings().happy_eyeballs.get() && host.parse::<IpAddr>().is_err() {
        let port = port_of(port)?;
        return ask("connect_to_server", move |machine, reactor| connect_by_name(machine, reactor, (host, port)))?
            .map_err(errors::connection);
    }
    let address = Address::Tcp(look_up(&host, port)?);
    ask("connect_to_server", move |machine, reactor| connect(machine, reactor, &address, &ConnectOptions::default()))?
        .map_err(errors::connection)
}

/// `bind_connect_server`
pub(crate) fn bind_connect_server(
    bind_host: Option<String>,
    bind_port: Option<i64>,
    host: String,
    port: i64,
) -> Result<u64, Error> {
    let address = look_up(&host, port)?;
    let Some(bind_host) = bind_host else { return connect_server(host, port) };
    let bind = addresses::resolve(&bind_host, port_of(bind_port.unwrap_or(0))?, Use::Bind)
        .map_err(|error| errors::connection(format!("invalid bind address: {error}")))?;
    if bind.is_ipv4() != address.is_ipv4() {
        return Err(errors::connection("couldn't bind to address"));
    }
    let options = ConnectOptions::default().bind(Address::Tcp(bind));
    ask("connect_to_server", move |machine, reactor| connect(machine, reactor, &Address::Tcp(address), &options))?
        .map_err(|error| errors::connection(format!("couldn't bind to address: {error}")))
}

/// `connect_unix_server`
pub(crate) fn connect_unix_server(path: String) -> Result<u64, Error> {
    let address = addresses::unix(&path);
    ask("connect_to_unix_server", move |machine, reactor| {
        let sig = next_signature();
        let handler = Stream { machine: machine.clone(), sig, opening: Opening::Connecting };
        reactor.connect(&address, handler).map(|id| {
            machine.add(sig, Source::Connection(id));
            sig
        })
    })?
    .map_err(|error| errors::runtime(format!("no connection: {error}")))
}
