//! Datagram sockets.

use std::rc::Rc;

use magnus::{Error, RString};
use pelton::{Address, Datagram, DatagramIo, Datagrams, DatagramsId, Reactor, Reason};

use crate::access::{ask, machine};
use crate::addresses::{self, Use};
use crate::call::Told;
use crate::errors;
use crate::machine::{Machine, Source, next_signature};
use crate::streams::error_number;

struct Socket {
    machine: Rc<Machine>,
    sig: u64,
}

impl Datagrams for Socket {
    fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
        self.machine.senders.borrow_mut().insert(self.sig, datagram.from);
        self.machine.tell(io.reactor(), Told::Received(self.sig, &datagram.bytes));
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        self.machine.unbind(reactor, self.sig, error_number(&reason));
    }
}

/// `open_udp_socket`
pub(crate) fn open_udp_socket(host: String, port: i64) -> Result<u64, Error> {
    const FAILED: &str = "no datagram socket";
    let port = u16::try_from(port).map_err(|_| errors::runtime(format!("{FAILED}: port {port}")))?;
    let address =
        addresses::resolve(&host, port, Use::Bind).map_err(|error| errors::runtime(format!("{FAILED}: {error}")))?;
    let opened = ask("open_datagram_socket", move |machine, reactor| {
        let sig = next_signature();
        let handler = Socket { machine: machine.clone(), sig };
        let id = reactor.bind_datagrams(&Address::Tcp(address), handler).map_err(|error| error.to_string())?;
        if let Some(mut io) = reactor.datagrams(id) {
            io.set_broadcast(true).map_err(|error| error.to_string())?;
        }
        machine.add(sig, Source::Datagrams(id));
        Ok::<u64, String>(sig)
    })?;
    opened.map_err(|error| errors::runtime(format!("{FAILED}: {error}")))
}

/// Sends to the sender of the last datagram.
pub(crate) fn answer(machine: &Machine, reactor: &mut Reactor, sig: u64, id: DatagramsId, bytes: &[u8]) -> i64 {
    let Some(to) = machine.senders.borrow().get(&sig).cloned() else { return -1 };
    let sent = reactor.datagrams(id).map(|mut io| io.send_to(&to, bytes));
    if sent.is_some_and(|sent| sent.is_ok()) { bytes.len() as i64 } else { 0 }
}

/// `send_datagram`
pub(crate) fn send_datagram(sig: u64, data: RString, length: i64, host: String, port: i64) -> Result<i64, Error> {
    let port = u16::try_from(port).map_err(|_| errors::connection("port out of range"))?;
    let to = addresses::resolve(&host, port, Use::Connect)
        .map_err(|error| errors::connection(format!("error in sending datagram: {error}")))?;
    // SAFETY: no Ruby code runs while the slice is copied.
    let bytes = unsafe { data.as_slice() };
    let length = usize::try_from(length).unwrap_or(0).min(bytes.len());
    let bytes = bytes[..length].to_vec();
    machine("send_datagram")?;
    let sent = ask("send_datagram", move |machine, reactor| match machine.source(sig) {
        Some(Source::Datagrams(id)) => match reactor.datagrams(id) {
            Some(mut io) => {
                io.send_to(&Address::Tcp(to), &bytes).map(|()| bytes.len() as i64).map_err(|error| error.to_string())
            }
            None => Ok(-1),
        },
        Some(_) => Ok(0),
        None => Ok(-1),
    })?;
    sent.map_err(|error| errors::connection(format!("error in sending datagram: {error}")))
}
