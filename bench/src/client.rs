//! A load: connections that each keep one message in flight, and wait for what comes back before they send the next.

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

/// A server that says nothing for this long is broken.
const PATIENCE_MS: u16 = 10_000;

/// Connections that are opened before the first of them is waited for: fewer than any server's backlog.
const OPENED_TOGETHER: usize = 64;

/// Connections from one source address. Each address has some 28,000 ports of its own, and picking one is slow when few
/// of them are left.
const PER_SOURCE: usize = 4_000;

const EVENTS_PER_WAIT: usize = 1024;

/// Longest latency that the histogram tells apart, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// When to send no more.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Elapsed(Duration),
    /// So many have been sent.
    Sent(u64),
}

/// What is sent, and what comes back for it.
#[derive(Clone, Debug)]
pub struct Exchange {
    message: Pages,
    /// How long an answer is.
    length: usize,
    /// What it begins with: all of it, or what is the same in every answer.
    begins: Vec<u8>,
}

impl Exchange {
    /// Random bytes, which come back as they are.
    pub fn echo(size: usize) -> Self {
        let message: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(size).collect();
        Self { length: size, message: Pages::new(&message), begins: message }
    }

    /// A message whose answers are of this length, and begin with this.
    pub fn answered(message: Vec<u8>, length: usize, begins: &[u8]) -> Self {
        Self { message: Pages::new(&message), length, begins: begins.to_vec() }
    }
}

/// What came of a burst.
pub struct Burst {
    pub messages: u64,
    pub wall: Duration,
    /// Nanoseconds from sending a message to having all of the answer.
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
    /// Of the message in flight.
    sent: usize,
    /// Of the answer.
    received: usize,
    since: Instant,
}

impl Client {
    /// Opens `count` connections and has a message answered on each of them, which is compared.
    pub fn open(server: SocketAddrV4, count: usize, exchange: Exchange) -> Result<Self> {
        let mut client = Self::over([], exchange)?;
        client.grow(server, count)?;
        Ok(client)
    }

    /// Takes over connections, of any kind that answers what is sent at once, and has a message answered on each.
    pub fn over(sockets: impl IntoIterator<Item = OwnedFd>, exchange: Exchange) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll set")?;
        let mut client = Self { epoll, connections: Vec::new(), exchange, buffer: Pages::new(&[0; 64 << 10]) };
        for socket in sockets {
            client.take(socket)?;
        }
        client.compare_answers(0).context("compare what comes back with what should")?;
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
            self.compare_answers(first).context("compare what comes back with what should")?;
        }
        Ok(())
    }

    /// One message on each connection from `first` on.
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

    /// Keeps a message in flight on every connection, and ends when the last answer is in.
    pub fn run(&mut self, until: Until) -> Result<Burst> {
        self.run_held(until, || Ok(()))
    }

    /// The same with a server that is held until `let_go`, which is called when the first message of each connection is there.
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

    /// Goes on with what is in flight. `true` if the answer is complete.
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
        ensure!(received <= length, "{received} bytes came back, and not {length}");
        let whole = received == length;
        if whole {
            (connection.sent, connection.received) = (0, 0);
        }
        Ok(whole)
    }
}

/// Clients that come, have one byte echoed, and go.
///
/// They wait for the echo so that each has been accepted and served for certain. They go by a reset: an orderly close
/// would leave each port waiting for a minute, and there are fewer ports than clients. So for every server alike, the
/// end of a connection is a read that fails, and closing costs no last exchange of packets.
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
            ensure!(count == 1 && echo[0] == b'!', "{count} bytes came back of 1 sent");
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

/// A connected socket that is reset when it is closed, so that its port is free again at once.
pub fn opened(server: SocketAddrV4, number: usize) -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    if number >= PER_SOURCE {
        let source = Ipv4Addr::new(127, 0, 0, 1 + u8::try_from(number / PER_SOURCE)?);
        bind(&socket, &SocketAddrV4::new(source, 0))?;
    }
    // On the loopback interface this is done as soon as the packets have been passed on, whether or not the server is awake.
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
            Ok(0) => bail!("the server has not answered for {} s", PATIENCE_MS / 1000),
            Ok(ready) => return Ok(&events[..ready]),
            Err(error) => return Err(error).context("wait for an epoll set"),
        }
    }
}

/// Lets this process, and those it starts, have as many descriptors as the system allows, which must be these at least.
pub fn raise_descriptor_limit(needed: usize) -> Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Some(maximum) = maximum {
        ensure!(needed as u64 <= maximum, "{needed} descriptors are needed, and {maximum} allowed (ulimit -Hn)");
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).context("raise the limit of descriptors")
}

#[cfg(test)]
mod tests;
