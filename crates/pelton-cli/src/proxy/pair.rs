//! A client and its target: from the first byte to the moment at which the reactor moves the rest.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pelton::proxy_protocol::{self, Header};
use pelton::{
    Address, Chunk, Connection, ConnectionId, Endpoint, Io, Layered, Limit, Proxied, Proxy, Reactor, Reason, TimerId,
};

use super::hello::{self, Hello};
use super::record::{Counts, Record};
use super::targets::Targets;
use crate::service::access_log::Lines;

/// The settings that the workers share.
#[derive(Clone)]
pub struct Settings {
    pub targets: Arc<Targets>,
    pub counts: Arc<Counts>,
    pub accept_proxy: bool,
    pub send_proxy: Option<proxy_protocol::Version>,
    /// Targets are chosen by the name in the client's TLS hello.
    pub by_name: bool,
    pub header_time: Duration,
    pub idle_time: Option<Duration>,
    pub retries: u32,
    pub to_tls: Option<pelton_tls::Client>,
    pub max_clients: usize,
    pub per_address: Option<PerAddress>,
}

/// The most clients of one address, and how many there are of each.
pub type PerAddress = (u32, Arc<Mutex<HashMap<IpAddr, u32>>>);

/// A worker, as its connections see it.
pub struct Worker {
    pub settings: Settings,
    pub lines: Option<Lines>,
}

/// The side of the client.
pub struct Front {
    worker: Rc<Worker>,
    record: Option<Rc<Record>>,
    stage: Stage,
    /// What the client has sent before it has a target.
    early: Vec<u8>,
    /// Where the client has connected to, for the header to the target.
    connected_to: Option<SocketAddr>,
    deadline: Option<TimerId>,
    tried: Vec<usize>,
    group: usize,
    counted: Option<IpAddr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Waits for a PROXY header.
    Header,
    /// Waits for a TLS hello.
    Hello,
    /// Waits for a target.
    Connecting,
    Proxied,
}

impl Front {
    pub fn new(worker: &Rc<Worker>) -> Front {
        let stage = match (worker.settings.accept_proxy, worker.settings.by_name) {
            (true, _) => Stage::Header,
            (false, true) => Stage::Hello,
            (false, false) => Stage::Connecting,
        };
        Front {
            worker: worker.clone(),
            record: None,
            stage,
            early: Vec::new(),
            connected_to: None,
            deadline: None,
            tried: Vec::new(),
            group: 0,
            counted: None,
        }
    }

    /// Counts a client of this address. Returns whether it is one too many.
    fn is_one_too_many(&mut self, address: Option<IpAddr>) -> bool {
        let Some((most, counts)) = &self.worker.settings.per_address else { return false };
        let Some(network) = address.map(network) else { return false };
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(network).or_default();
        if *count >= *most {
            return true;
        }
        *count += 1;
        self.counted = Some(network);
        false
    }

    fn refuse(&self, io: &mut Io<'_>, why: &str) {
        self.worker.settings.counts.refused.fetch_add(1, Relaxed);
        self.fail(io, why);
    }

    fn fail(&self, io: &mut Io<'_>, why: &str) {
        if let Some(record) = &self.record {
            record.ended(|| why.to_owned());
        }
        io.close();
    }

    /// Goes on as far as the bytes allow.
    fn advance(&mut self, io: &mut Io<'_>) {
        if self.stage == Stage::Header {
            match Header::parse(&self.early) {
                Ok(None) => return,
                Ok(Some((header, length))) => {
                    self.early.drain(..length);
                    if let Some(source) = header.source() {
                        self.connected_to = header.destination();
                        self.set_client(Some(source));
                        if self.is_one_too_many(Some(source.ip())) {
                            return self.refuse(io, "too many connections from one address");
                        }
                    }
                    self.stage = if self.worker.settings.by_name { Stage::Hello } else { Stage::Connecting };
                }
                Err(error) => {
                    self.worker.settings.counts.bad_headers.fetch_add(1, Relaxed);
                    return self.fail(io, &error.to_string());
                }
            }
        }
        let mut name = None;
        if self.stage == Stage::Hello {
            match hello::look(&self.early) {
                Hello::Incomplete if self.early.len() < hello::MOST => return,
                Hello::Complete(found) => name = found,
                Hello::Incomplete | Hello::NotTls => {
                    self.worker.settings.counts.bad_headers.fetch_add(1, Relaxed);
                    return self.fail(io, "no TLS hello");
                }
            }
        }
        if let Some(deadline) = self.deadline.take() {
            io.reactor().cancel(deadline);
        }
        let group = self.worker.settings.targets.group_for(name.as_deref());
        if let Some(record) = &self.record {
            *record.name.borrow_mut() = name;
        }
        match group {
            Some(group) => {
                self.group = group;
                self.stage = Stage::Connecting;
                // Not read from before there is somewhere to send to.
                io.pause();
                self.connect(io);
            }
            None => self.no_target(io),
        }
    }

    fn set_client(&self, client: Option<SocketAddr>) {
        if let Some(record) = &self.record {
            record.client.set(client);
        }
    }

    fn no_target(&mut self, io: &mut Io<'_>) {
        self.worker.settings.counts.no_target.fetch_add(1, Relaxed);
        self.fail(io, "no target");
    }

    /// Connects to a target that was not tried yet.
    fn connect(&mut self, io: &mut Io<'_>) {
        let Some(record) = self.record.clone() else { return };
        let settings = &self.worker.settings;
        let client = record.client.get();
        while self.tried.len() <= settings.retries as usize {
            let chosen = settings.targets.choose(self.group, client.map(|client| client.ip()), &self.tried);
            let Some(index) = chosen else { break };
            self.tried.push(index);
            record.target.set(Some(index));
            settings.targets.all()[index].begin();
            let header = settings.send_proxy.map(|version| {
                let header = match (client, self.connected_to) {
                    (Some(client), Some(to)) => Header::of(client, to),
                    _ => Header::local(),
                };
                header.encode(version)
            });
            let established = Rc::new(Cell::new(false));
            let back = Back {
                front: io.id(),
                index,
                record: record.clone(),
                worker: self.worker.clone(),
                established,
                header,
            };
            match start(io.reactor(), settings, index, back) {
                Ok(_) => return,
                Err(error) => {
                    // No handler was started that would count its end.
                    settings.targets.all()[index].end();
                    settings.targets.failed(index);
                    tracing::warn!(%error, "could not connect to a target");
                }
            }
        }
        self.no_target(io);
    }
}

/// Starts to connect, with TLS if the targets have it.
fn start(
    reactor: &mut Reactor,
    settings: &Settings,
    index: usize,
    mut back: Back,
) -> Result<ConnectionId, pelton::Error> {
    let endpoint = settings.targets.all()[index].endpoint().clone();
    let Some(client) = &settings.to_tls else { return connect_to(reactor, endpoint, back) };
    match client.layer_to(&endpoint) {
        Ok(layer) => {
            // The header goes before the handshake.
            let header = back.header.take();
            let layered = Layered::new(back, move |io| {
                if let Some(header) = header {
                    let _ = io.send(&header);
                }
                io.push_layer(layer);
            });
            connect_to(reactor, endpoint, layered)
        }
        Err(error) => {
            Err(pelton::Error::System { doing: format!("connect to {endpoint}"), error: std::io::Error::other(error) })
        }
    }
}

fn connect_to(
    reactor: &mut Reactor,
    endpoint: Endpoint,
    handler: impl Connection,
) -> Result<ConnectionId, pelton::Error> {
    match endpoint {
        // The usual case needs no look-up.
        Endpoint::Address(address) => reactor.connect(&address, handler),
        name => reactor.connect_to(name, handler),
    }
}

/// The network that counts as one address.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => ip.into(),
            None => {
                let [a, b, c, d, ..] = ip.segments();
                IpAddr::from([a, b, c, d, 0, 0, 0, 0])
            }
        },
    }
}

impl Connection for Front {
    fn opened(&mut self, io: &mut Io<'_>) {
        let worker = self.worker.clone();
        let settings = &worker.settings;
        if let Some(lines) = &self.worker.lines {
            lines.expect(io.reactor());
        }
        self.record = Some(Record::new(&settings.counts, &settings.targets, self.worker.lines.clone()));
        if settings.counts.clients.load(Relaxed) > settings.max_clients {
            return self.refuse(io, "too many connections");
        }
        let needs_addresses = settings.send_proxy.is_some()
            || settings.per_address.is_some()
            || self.worker.lines.is_some()
            || settings.targets.needs_client();
        if needs_addresses {
            let tcp = |address| if let Ok(Address::Tcp(address)) = address { Some(address) } else { None };
            let client = tcp(io.peer_address());
            if settings.send_proxy.is_some() {
                self.connected_to = tcp(io.local_address());
            }
            self.set_client(client);
            // With headers, the proxy in front is not the client.
            if !settings.accept_proxy && self.is_one_too_many(client.map(|client| client.ip())) {
                return self.refuse(io, "too many connections from one address");
            }
        }
        io.count_as_used();
        if self.stage == Stage::Connecting {
            return self.advance(io);
        }
        let id = io.id();
        self.deadline = Some(io.reactor().after(settings.header_time, move |reactor| {
            reactor.visit(id, |front: &mut Front, io| {
                front.deadline = None;
                front.worker.settings.counts.bad_headers.fetch_add(1, Relaxed);
                front.fail(io, "no header or hello in time");
            });
        }));
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.early.extend_from_slice(&chunk);
        if matches!(self.stage, Stage::Header | Stage::Hello) {
            self.advance(io);
        }
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        // Proxied connections pass the end on. Before, a client that has gone needs no target.
        if self.stage != Stage::Proxied {
            self.fail(io, "the client has finished early");
        }
    }

    fn proxy_finished(&mut self, io: &mut Io<'_>, proxied: &Proxied) {
        if let Some(record) = &self.record {
            record.to_target.set(record.to_target.get() + proxied.bytes);
        }
        Passive.proxy_finished(io, proxied);
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        if self.stage != Stage::Proxied {
            self.fail(io, "draining");
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        if let Some(deadline) = self.deadline.take() {
            reactor.cancel(deadline);
        }
        if let (Some((_, counts)), Some(network)) = (&self.worker.settings.per_address, self.counted) {
            let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = counts.get_mut(&network) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&network);
                }
            }
        }
        if let Some(record) = &self.record {
            record.ended(|| format!("client: {reason}"));
        }
    }
}

/// The defaults of a handler.
struct Passive;

impl Connection for Passive {
    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

/// The side of the target.
struct Back {
    front: ConnectionId,
    index: usize,
    record: Rc<Record>,
    worker: Rc<Worker>,
    established: Rc<Cell<bool>>,
    header: Option<Vec<u8>>,
}

impl Connection for Back {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.established.set(true);
        let settings = &self.worker.settings;
        settings.targets.succeeded(self.index);
        io.count_as_used();
        if let Some(header) = self.header.take() {
            let _ = io.send(&header);
        }
        let early = RefCell::new(Vec::new());
        io.reactor().visit(self.front, |front: &mut Front, io| {
            front.stage = Stage::Proxied;
            early.replace(std::mem::take(&mut front.early));
            if let Some(idle) = front.worker.settings.idle_time {
                io.set_limit(Limit::Inactivity, Some(idle));
            }
        });
        let early = early.into_inner();
        self.record.to_target.set(early.len() as u64);
        if !early.is_empty() {
            let _ = io.send_bytes(early);
        }
        let (front, back) = (self.front, io.id());
        match io.reactor().proxy(front, back, Proxy::new()) {
            Ok(()) => {
                if let Some(mut front) = io.reactor().connection(front) {
                    front.resume();
                }
            }
            // The client has gone meanwhile.
            Err(_) => io.close(),
        }
    }

    fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
        // Nothing is received before the pair is proxied, and what follows its end has nowhere to go.
        io.close();
    }

    fn proxy_finished(&mut self, io: &mut Io<'_>, proxied: &Proxied) {
        self.record.to_client.set(self.record.to_client.get() + proxied.bytes);
        Passive.proxy_finished(io, proxied);
    }

    fn draining(&mut self, _: &mut Io<'_>) {}

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let settings = &self.worker.settings;
        settings.targets.all()[self.index].end();
        if self.established.get() {
            return self.record.ended(|| format!("target: {reason}"));
        }
        if matches!(reason, Reason::Local) {
            // The client has gone, or this process ends: nobody's fault.
            return;
        }
        settings.targets.failed(self.index);
        tracing::debug!(target = %settings.targets.all()[self.index].endpoint(), %reason, "could not connect to a target");
        reactor.visit(self.front, |front: &mut Front, io| front.connect(io));
    }
}
