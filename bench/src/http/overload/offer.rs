//! Requests that arrive at fixed times, whether or not earlier ones have been answered: half of them on kept connections, as far
//! as there are any, the others on new ones.

use std::net::SocketAddrV4;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::client::{event, opened};

/// A server that does not answer for this long is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it sleeps at most before it checks whether another request is due.
const TICK_MS: u16 = 1;

/// With more outstanding requests than this, the run fails: the server has stopped refusing.
const MOST_WAITING: usize = 4_000;

/// Longest latency that the histograms distinguish, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;

const SERVED: &[u8] = b"HTTP/1.1 200 ";
const REFUSED: &[u8] = b"HTTP/1.1 503 ";

/// The load to offer.
pub struct Offer {
    pub server: SocketAddrV4,
    pub request: Vec<u8>,
    /// Requests per second.
    pub rate: f64,
    /// Most idle connections to keep.
    pub kept: usize,
    pub window: Duration,
}

/// The result.
#[derive(Debug)]
pub struct Offered {
    pub served: u64,
    pub refused: u64,
    /// Connections that ended without a response.
    pub failed: u64,
    pub wall: Duration,
    /// Nanoseconds from when a request was due.
    pub served_after: Histogram<u64>,
    pub refused_after: Histogram<u64>,
}

/// Offers the load, and waits for the last response.
pub fn offer(offer: &Offer) -> Result<Offered> {
    let histogram = || Histogram::new_with_bounds(1, LONGEST, 2).context("make a histogram");
    let outcome = Offered {
        served: 0,
        refused: 0,
        failed: 0,
        wall: Duration::ZERO,
        served_after: histogram()?,
        refused_after: histogram()?,
    };
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll set")?;
    let crowd =
        Crowd { offer, epoll, connections: Vec::new(), vacant: Vec::new(), kept: Vec::new(), waiting: 0, outcome };
    crowd.run()
}

struct Crowd<'a> {
    offer: &'a Offer,
    epoll: Epoll,
    connections: Vec<Option<Connection>>,
    /// Slots of connections that are over.
    vacant: Vec<usize>,
    /// Idle connections.
    kept: Vec<usize>,
    waiting: usize,
    outcome: Offered,
}

struct Connection {
    socket: OwnedFd,
    /// When the outstanding request was due; `None` if there is none.
    due: Option<Instant>,
}

impl Crowd<'_> {
    fn run(mut self) -> Result<Offered> {
        let mut events = [EpollEvent::empty(); 256];
        let start = Instant::now();
        let interval = Duration::from_secs_f64(1.0 / self.offer.rate);
        let mut arrivals = 0;
        let mut last_heard = start;
        loop {
            let now = Instant::now();
            let end = start + self.offer.window;
            let mut due = start + interval * arrivals;
            while due <= now && due < end {
                self.arrive(due, arrivals.is_multiple_of(2))?;
                arrivals += 1;
                due = start + interval * arrivals;
            }
            if due >= end && self.waiting == 0 {
                break;
            }
            ensure!(now - last_heard < PATIENCE, "{} requests were not answered within {PATIENCE:?}", self.waiting);
            // Requests may be due more often than the clock ticks, and then arrive together.
            let ready = match self.epoll.wait(&mut events, EpollTimeout::from(TICK_MS)) {
                Err(Errno::EINTR) => 0,
                found => found.context("wait for an epoll set")?,
            };
            if ready > 0 {
                last_heard = now;
            }
            for event in &events[..ready] {
                self.hear(event.data() as usize)?;
            }
        }
        self.outcome.wall = start.elapsed();
        Ok(self.outcome)
    }

    /// Sends a request that is due.
    fn arrive(&mut self, due: Instant, by_new: bool) -> Result<()> {
        ensure!(self.waiting < MOST_WAITING, "{MOST_WAITING} requests were neither answered nor refused");
        let kept = if by_new { None } else { self.kept.pop() };
        let number = match kept {
            Some(number) => number,
            None => self.connect()?,
        };
        let connection = self.connections[number].as_mut().context("a slot without a connection")?;
        connection.due = Some(due);
        self.waiting += 1;
        match send(&connection.socket, &self.offer.request, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) if sent == self.offer.request.len() => Ok(()),
            Ok(sent) => bail!("{sent} bytes of a request were sent"),
            // The server has refused and closed it already; the response can be read.
            Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
            Err(error) => Err(error).context("send a request"),
        }
    }

    fn connect(&mut self) -> Result<usize> {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let socket = opened(self.offer.server, 0).context("open a connection")?;
        self.epoll.add(&socket, event(EpollFlags::EPOLLIN, number)).context("watch a connection")?;
        self.connections[number] = Some(Connection { socket, due: None });
        Ok(number)
    }

    /// Reads a response, which is short and arrives in one piece.
    fn hear(&mut self, number: usize) -> Result<()> {
        let Some(connection) = &mut self.connections[number] else { return Ok(()) };
        let mut buffer = [0; 2048];
        let answer = match recv(&connection.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((count, _)) => &buffer[..count],
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(_) => &[],
        };
        let due = connection.due.take();
        self.waiting -= usize::from(due.is_some());
        let after = due.map(|due| due.elapsed().as_nanos() as u64);
        match after {
            Some(after) if answer.starts_with(SERVED) => {
                self.outcome.served += 1;
                self.outcome.served_after.saturating_record(after);
                if self.kept.len() < self.offer.kept {
                    self.kept.push(number);
                    return Ok(());
                }
            }
            Some(after) if answer.starts_with(REFUSED) => {
                self.outcome.refused += 1;
                self.outcome.refused_after.saturating_record(after);
            }
            Some(_) if answer.is_empty() => self.outcome.failed += 1,
            Some(_) => bail!("unexpected response: {:?}", String::from_utf8_lossy(answer)),
            // The server has closed an idle connection.
            None => self.kept.retain(|kept| *kept != number),
        }
        self.connections[number] = None;
        self.vacant.push(number);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
