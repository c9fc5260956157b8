//! A load: connections that each keep one message in flight and wait for its answer before they send the next.

mod pages;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, connect, recv, send, socket_with, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use pages::Pages;

/// A server that does not answer for this long is broken.
const PATIENCE_MS: u16 = 10_000;

/// Connections that are opened before waiting for the first of them: fewer than any server's backlog.
const OPENED_TOGETHER: usize = 64;

/// Connections per source address. Each address has about 28,000 ports, and picking one gets slow when few are left.
const PER_SOURCE: usize = 4_000;

const EVENTS_PER_WAIT: usize = 1024;

/// Longest latency that the histogram distinguishes, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// When to stop sending.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Elapsed(Duration),
    /// After this many messages.
    Sent(u64),
}

/// A message, and the answer it gets.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub message: Pages,
    /// Length of the answer.
    pub length: usize,
    /// What the answer begins with: all of it, or the part that is the same in every answer.
    pub begins: Vec<u8>,
}

impl Exchange {
    /// Creates an exchange of random bytes that are echoed.
    pub fn echo(size: usize) -> Self {
        let message: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(size).collect();
        Self { length: size, message: Pages::new(&message), begins: message }
    }

    /// Creates an exchange whose answers have this length and begin with these bytes.
    pub fn answered(message: Vec<u8>, length: usize, begins: &[u8]) -> Self {
        Self { message: Pages::new(&message), length, begins: begins.to_vec() }
    }
}

/// The result of a burst.
pub struct Burst {
    pub messages: u64,
    pub wall: Duration,
    /// Nanoseconds from sending a message to receiving the complete answer.
    pub latencies: Histogram<u64>,
}

/// Connections to one server.
pub struct Client {
    epoll: Epoll,
    connections: Vec<Connection>,
    exchange: Exchange,
    buffer: Pages,
}

struct Connection {
    socket: OwnedFd,
    /// Bytes sent of the message in flight.
    sent: usize,
    /// Bytes received of the answer.
    received: usize,
    since: Instant,
}

impl Client {
    /// Opens `count` connections, and exchanges and checks a message on each of them.
    pub fn open(server: SocketAddrV4, count: usize, exchange: Exchange) -> Result<Self> {
        let mut client = Self::over([], exchange)?;
        client.grow(server, count)?;
        Ok(client)
    }

    /// Takes over connections of any kind whose peer answers at once, and exchanges a message on each.
    pub fn over(sockets: impl IntoIterator<Item = OwnedFd>, exchange: Exchange) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll set")?;
        let mut client = Self { epoll, connections: Vec::new(), exchange, buffer: Pages::new(&[0; 64 << 10]) };
        for socket in sockets {
            client.take(socket)?;
        }
        client.compare_answers(0).context("check the first answers")?;
        Ok(client)
    }

    fn take(&mut self, socket: OwnedFd) -> Result<()> {
        let number = self.connections.len();
        self.epoll.add(&socket, event(EpollFlags::EPOLLIN, number)).context("watch a connection")?;
        self.connections.push(Connection { socket, sent: 0, received: 0, since: Instant::now() });
        Ok(())
    }

    /// Opens more connections, until there are `count`.
    pub fn grow(&mut self, server: SocketAddrV4, count: usize) -> Result<()> {
        while self.connections.len() < count {
            let first = self.connections.len();
            for number in first..count.min(first + OPENED_TOGETHER) {
                self.take(opened(server, number).with_context(|| format!("open connection {number}"))?)?;
            }
            // Once all of these have been answered, they have been accepted.
            self.compare_answers(first).context("check the first answers")?;
        }
        Ok(())
    }

    /// Exchanges and checks one message on each connection from `first` on.
    fn compare_answers(&mut self, first: usize) -> Result<()> {
        for number in first..self.connections.len() {
            self.begin(number)?;
        }
        let mut events = [EpollEvent::empty(); EVENTS_PER_WAIT];
        let mut left = self.connections.len() - first;
        while left > 0 {
            for event in wait(&self.epoll, &mut events)? {
                let number = event.data() as usize;
                let before = self.connections[number].received;
                let whole = self.advance(number, event.events())?;
                let after = if whole { self.exchange.length } else { self.connections[number].received };
                let stated = self.exchange.begins.get(before..).unwrap_or_default();
                let same = stated.iter().zip(&self.buffer[..after - before]).all(|(stated, came)| stated == came);
                ensure!(same, "the answer differs: {:?}", String::from_utf8_lossy(&self.buffer[..after - before]));
                left -= usize::from(whole);
            }
        }
        Ok(())
    }

    /// Keeps a message in flight on every connection, and ends when the last answer has arrived.
    pub fn run(&mut self, until: Until) -> Result<Burst> {
        self.run_held(until, || Ok(()))
    }

    /// Like [`run`](Client::run), with a server that is stopped until `let_go`, which is called when the first message of each
    /// connection has arrived.
    pub fn run_held(&mut self, until: Until, let_go: impl FnOnce() -> Result<()>) -> Result<Burst> {
        let mut latencies = Histogram::new_with_bounds(1, LONGEST, 2).context("make a histogram")?;
        let mut events = [EpollEvent::empty(); EVENTS_PER_WAIT];
        let start = Instant::now();
        let mut sent = 0;
        let may_send = |sent: u64, now: Instant| match until {
            Until::Elapsed(time) => now - start < time,
            Until::Sent(most) => sent < most,
        };
        for number in 0..self.connections.len() {
            if may_send(sent, start) {
                self.begin(number)?;
                sent += 1;
            }
        }
        let_go()?;
        let mut messages = 0;
        while messages < sent {
            for event in wait(&self.epoll, &mut events)? {
                let number = event.data() as usize;
                if !self.advance(number, event.events())? {
                    continue;
                }
                messages += 1;
                let now = Instant::now();
                latencies.saturating_record((now - self.connections[number].since).as_nanos() as u64);
                if may_send(sent, now) {
                    self.connections[number].since = now;
                    self.send(number)?;
                    sent += 1;
                }
            }
        }
        Ok(Burst { messages, wall: start.elapsed(), latencies })
    }

    fn begin(&mut self, number: usize) -> Result<()> {
        self.connections[number].since = Instant::now();
        self.send(number)
    }

    /// Sends the rest of a message, as far as there is room.
    fn send(&mut self, number: usize) -> Result<()> {
        let connection = &mut self.connections[number];
        let waited = connection.sent > 0;
        match send(
            &connection.socket,
            &self.exchange.message[connection.sent..],
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(sent) => connection.sent += sent,
            Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error).context("send a message"),
        }
        let waits = connection.sent < self.exchange.message.len();
        if waited || waits {
            let room = if waits { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            let mut interest = event(EpollFlags::EPOLLIN | room, number);
            self.epoll.modify(&connection.socket, &mut interest).context("watch for room to send")?;
        }
        Ok(())
    }

    /// Continues the exchange in flight. Returns `true` if the answer is complete.
    fn advance(&mut self, number: usize, flags: EpollFlags) -> Result<bool> {
        if flags.contains(EpollFlags::EPOLLOUT) {
            self.send(number)?;
        }
        let connection = &mut self.connections[number];
        match recv(&connection.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => bail!("the server closed a connection"),
            Ok((count, _)) => connection.received += count,
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error).context("receive an answer"),
        }
        let (length, received) = (self.exchange.length, connection.received);
        ensure!(received <= length, "received {received} bytes instead of {length}");
        let whole = received == length;
        if whole {
            (connection.sent, connection.received) = (0, 0);
        }
        Ok(whole)
    }
}

/// Clients that connect, have one byte echoed, and disconnect.
///
/// Each waits for the echo, so that it has certainly been accepted and served. They disconnect by a reset: an orderly close would
/// block each port for a minute, and there are fewer ports than clients. So for every server alike, a connection ends with a
/// failing read, and closing costs no last exchange of packets.
pub fn come_and_go(server: SocketAddrV4, at_once: usize, window: Duration) -> Result<(u64, Duration)> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll set")?;
    let mut events = [EpollEvent::empty(); EVENTS_PER_WAIT];
    let mut sockets: Vec<Option<OwnedFd>> = (0..at_once).map(|_| None).collect();
    let come = |number: usize| -> Result<OwnedFd> {
        let socket = opened(server, 0)?;
        epoll.add(&socket, event(EpollFlags::EPOLLIN, number)).context("watch a connection")?;
        send(&socket, b"!", SendFlags::NOSIGNAL).context("send one byte")?;
        Ok(socket)
    };
    let start = Instant::now();
    for (number, socket) in sockets.iter_mut().enumerate() {
        *socket = Some(come(number)?);
    }
    let (mut served, mut here) = (0, at_once);
    while here > 0 {
        for event in wait(&epoll, &mut events)? {
            let number = event.data() as usize;
            let socket = sockets[number].take().context("an event without a connection")?;
            let mut echo = [0; 2];
            let (count, _) = recv(&socket, &mut echo[..], RecvFlags::DONTWAIT).context("receive one byte")?;
            ensure!(count == 1 && echo[0] == b'!', "received {count} bytes instead of 1");
            served += 1;
            drop(socket);
            if start.elapsed() < window {
                sockets[number] = Some(come(number)?);
            } else {
                here -= 1;
            }
        }
    }
    Ok((served, start.elapsed()))
}

/// Returns a connected socket that is reset on close, so that its port is free again at once.
pub fn opened(server: SocketAddrV4, number: usize) -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if number >= PER_SOURCE {
        let source = Ipv4Addr::new(127, 0, 0, 1 + u8::try_from(number / PER_SOURCE)?);
        bind(&socket, &SocketAddrV4::new(source, 0))?;
    }
    // On the loopback interface, connecting completes as soon as the packets are queued, whether or not the server is awake.
    connect(&socket, &server)?;
    Ok(socket)
}

pub fn event(flags: EpollFlags, number: usize) -> EpollEvent {
    EpollEvent::new(flags, number as u64)
}

pub fn wait<'a>(epoll: &Epoll, events: &'a mut [EpollEvent]) -> Result<&'a [EpollEvent]> {
    loop {
        match epoll.wait(events, EpollTimeout::from(PATIENCE_MS)) {
            Err(Errno::EINTR) => {}
            Ok(0) => bail!("the server did not answer for {} s", PATIENCE_MS / 1000),
            Ok(ready) => return Ok(&events[..ready]),
            Err(error) => return Err(error).context("wait for an epoll set"),
        }
    }
}

/// Raises the descriptor limit of this process and its children to the system's maximum. Fails if that is below `needed`.
pub fn raise_descriptor_limit(needed: usize) -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Some(maximum) = maximum {
        ensure!(
            needed as u64 <= maximum,
            "{needed} descriptors are needed, but only {maximum} are allowed (ulimit -Hn)"
        );
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("raise the limit of descriptors")
}

#[cfg(test)]
mod tests;
