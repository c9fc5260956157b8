//! Proxies: what one connection receives is sent on another, without Ruby.

use magnus::Error;
use pelton::{Chunk, Io, Reactor};

use crate::access::ask;
use crate::call::Told;
use crate::errors;
use crate::machine::{Machine, Source};

/// What happens with the input of a connection.
pub(crate) struct Proxy {
    /// Where it goes. `None` once the proxy has ended; the number of bytes can still be asked for.
    to: Option<u64>,
    /// How many bytes are left to send, if not all of them are.
    left: Option<usize>,
    /// While more bytes than this are queued at the target, the source is not read from. 0: always.
    most_queued: usize,
    bytes: u64,
}

/// `start_proxy`
pub(crate) fn start_proxy(from: u64, to: u64, most_queued: usize, length: usize) -> Result<(), Error> {
    let started = ask("start_proxy", move |machine, reactor| {
        let open = |sig, reactor: &mut Reactor| match machine.source(sig) {
            Some(Source::Connection(id)) => reactor.connection(id).is_some(),
            _ => false,
        };
        if from == to || !open(from, reactor) || !open(to, reactor) {
            return Err("a proxy needs two different open connections");
        }
        let mut proxies = machine.proxies.borrow_mut();
        if proxies.iter().any(|(sig, proxy)| proxy.to.is_some() && (*sig == from || proxy.to == Some(to))) {
            return Err("one of the connections has a proxy already");
        }
        let left = if length == 0 { None } else { Some(length) };
        proxies.insert(from, Proxy { to: Some(to), left, most_queued, bytes: 0 });
        Ok(())
    })?;
    started.map_err(errors::connection)
}

/// `stop_proxy`
pub(crate) fn stop_proxy(from: u64) -> Result<(), Error> {
    ask("stop_proxy", move |machine, reactor| {
        if let Some(proxy) = machine.proxies.borrow_mut().get_mut(&from) {
            proxy.to = None;
        }
        resume(machine, reactor, from);
    })
}

/// `get_proxied_bytes`
pub(crate) fn get_proxied_bytes(from: u64) -> Result<u64, Error> {
    Ok(crate::access::machine("proxied_bytes")?.proxies.borrow().get(&from).map_or(0, |proxy| proxy.bytes))
}

fn resume(machine: &Machine, reactor: &mut Reactor, sig: u64) {
    if let Some(Source::Connection(id)) = machine.source(sig)
        && let Some(mut io) = reactor.connection(id)
        // The program may have paused it.
        && !io.is_sending_paused()
    {
        io.resume();
    }
}

impl Machine {
    /// Sends input on, if it goes through a proxy. Returns what is left for the program.
    #[inline]
    pub(crate) fn pass_on(&self, io: &mut Io<'_>, sig: u64, chunk: Chunk) -> Option<Chunk> {
        if self.proxies.borrow().is_empty() {
            return Some(chunk);
        }
        self.pass_on_by_proxy(io, sig, chunk)
    }

    fn pass_on_by_proxy(&self, io: &mut Io<'_>, sig: u64, chunk: Chunk) -> Option<Chunk> {
        let (to, part, most_queued, completes) = {
            let mut proxies = self.proxies.borrow_mut();
            let Some(proxy) = proxies.get_mut(&sig) else { return Some(chunk) };
            let Some(to) = proxy.to else { return Some(chunk) };
            let part = proxy.left.map_or(chunk.len(), |left| left.min(chunk.len()));
            proxy.left = proxy.left.map(|left| left - part);
            proxy.bytes += part as u64;
            let completes = proxy.left == Some(0);
            if completes {
                proxy.to = None;
            }
            (to, part, proxy.most_queued, completes)
        };
        let rest = (part < chunk.len()).then(|| Chunk::from(chunk[part..].to_vec()));
        let mut queued = 0;
        if let Some(Source::Connection(id)) = self.source(to)
            && let Some(mut target) = io.reactor().connection(id)
        {
            // A target that is closing takes nothing more; the program is told when it has ended.
            let _ = if rest.is_some() { target.send(&chunk[..part]) } else { target.send_chunk(chunk) };
            queued = target.queued();
            if most_queued > 0 && queued > most_queued {
                target.tell_when_sent();
            }
        }
        if most_queued > 0 && queued > most_queued {
            io.pause();
        }
        if completes {
            self.tell(io.reactor(), Told::ProxyCompleted(sig));
        }
        rest
    }

    /// Reads again from the connection whose proxy leads to this one.
    pub(crate) fn target_has_sent(&self, reactor: &mut Reactor, to: u64) {
        let from = self.proxies.borrow().iter().find(|(_, proxy)| proxy.to == Some(to)).map(|(from, _)| *from);
        if let Some(from) = from {
            resume(self, reactor, from);
        }
    }

    /// Ends the proxy that leads to a connection that has ended.
    pub(crate) fn target_has_ended(&self, reactor: &mut Reactor, to: u64) {
        let from = {
            let mut proxies = self.proxies.borrow_mut();
            let Some((from, proxy)) = proxies.iter_mut().find(|(_, proxy)| proxy.to == Some(to)) else { return };
            proxy.to = None;
            *from
        };
        resume(self, reactor, from);
        self.tell(reactor, Told::ProxyTargetUnbound(from));
    }
}
