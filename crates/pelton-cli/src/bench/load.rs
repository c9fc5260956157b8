//! The load of one thread: when a request is sent, on which connection, and when the run ends.
//!
//! Without a rate, every connection sends its next request as soon as it has a response. With a rate, requests are due at fixed
//! times, regardless of earlier ones. A request that finds no free connection waits, and the wait is part of its latency.
//! Otherwise a server that stalls would be judged by the few requests it held up, not by all that should have been sent meanwhile
//! (coordinated omission).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use pelton::{Address, ConnectionId, Error, Reactor};
use pelton_http::wire::responses::To;

use super::fetching::{Fetching, Requests};
use super::pipelined::Pipelined;
use super::tally::Tally;

/// Delay before the next attempt after a connection failed to open.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// What all threads together have to do.
pub struct Plan {
    pub requests_to_send: Arc<Requests>,
    /// Where pipelined requests go.
    pub address: Address,
    /// The pipelined request, as bytes on the wire.
    pub request: Vec<u8>,
    pub to: To,
    pub threads: usize,
    pub connections: usize,
    pub pipeline: usize,
    pub keep_alive: bool,
    pub duration: Duration,
    /// Number of requests to send, if fixed.
    pub requests: Option<u64>,
    /// Requests per second, over all threads.
    pub rate: Option<f64>,
    pub timeout: Duration,
}

impl Plan {
    /// Returns the share of `whole` that belongs to one thread.
    fn part(&self, whole: u64, thread: usize) -> u64 {
        let threads = self.threads as u64;
        whole / threads + u64::from((thread as u64) < whole % threads)
    }
}

/// Progress of all threads, for the progress line.
#[derive(Default)]
pub struct Progress {
    pub completed: AtomicU64,
    pub failed: AtomicU64,
}

/// The load of one thread.
pub struct Load {
    pub plan: Arc<Plan>,
    pub tally: RefCell<Tally>,
    progress: Arc<Progress>,
    /// Since when no connection could be made.
    unreachable_since: Cell<Option<Instant>>,
    /// Number of requests left to send, if fixed.
    left: Cell<Option<u64>>,
    /// Requests sent, and neither answered nor failed.
    outstanding: Cell<u64>,
    over: Cell<bool>,
    /// Due times of requests still to be sent, or sent again.
    backlog: RefCell<VecDeque<Instant>>,
    pace: Option<Pace>,
    /// Sends the requests, unless they are pipelined.
    fetching: Option<Fetching>,
}

/// A schedule of requests at fixed times.
struct Pace {
    interval: Duration,
    next: Cell<Instant>,
    /// Pipelined connections with room for another request. Some may have ended.
    free: RefCell<VecDeque<ConnectionId>>,
    /// The number of other connections without a request.
    idle: Cell<usize>,
}

/// Starts the load of a thread. Its reactor stops by itself, and sends the counts when it does.
pub fn start(
    reactor: &mut Reactor,
    plan: &Arc<Plan>,
    thread: usize,
    progress: &Arc<Progress>,
    done: Sender<Tally>,
) -> Result<(), Error> {
    let pace = plan.rate.map(|rate| {
        let interval = Duration::from_secs_f64(plan.threads as f64 / rate);
        // The threads interleave their requests.
        let next = Instant::now() + interval.mul_f64(thread as f64 / plan.threads as f64);
        Pace { interval, next: Cell::new(next), free: RefCell::default(), idle: Cell::default() }
    });
    let connections = plan.part(plan.connections as u64, thread);
    let load = Rc::new(Load {
        plan: plan.clone(),
        tally: RefCell::new(Tally::new()),
        progress: progress.clone(),
        unreachable_since: Cell::default(),
        left: Cell::new(plan.requests.map(|requests| plan.part(requests, thread))),
        outstanding: Cell::new(0),
        over: Cell::new(false),
        backlog: RefCell::default(),
        pace,
        fetching: (plan.pipeline == 1).then(|| Fetching::new(plan, connections as usize)),
    });
    for _ in 0..connections {
        load.connect(reactor);
    }
    if plan.requests.is_none() {
        let load = load.clone();
        reactor.after(plan.duration, move |reactor| load.end(reactor));
    }
    if load.pace.is_some() {
        load.clone().keep_pace(reactor);
    }
    let counted = load.clone();
    reactor.on_shutdown(move |reactor| {
        let mut tally = counted.tally.replace(Tally::new());
        if let Some(stats) = counted.fetching.as_ref().map(|fetching| fetching.stats(reactor)) {
            tally.connections = stats.opened;
            tally.received_bytes = stats.received;
            tally.errors.malformed += stats.unasked;
            if stats.unasked > 0 {
                tally
                    .first_fault
                    .get_or_insert_with(|| "a response was malformed: no request was waiting for it".into());
            }
        }
        tally.unsent = counted.backlog.borrow().len() as u64;
        let _ = done.send(tally);
    });
    reactor.put_state(load.clone());
    // With many threads, one may have nothing to do.
    load.end_if_done(reactor);
    Ok(())
}

/// Ends the load of a thread early.
pub fn interrupt(reactor: &mut Reactor) {
    if let Some(load) = reactor.try_state::<Rc<Load>>().cloned() {
        load.end(reactor);
    }
}

impl Load {
    pub fn connect(self: &Rc<Load>, reactor: &mut Reactor) {
        if self.over.get() {
            return;
        }
        if self.fetching.is_some() {
            return self.fetch(reactor);
        }
        self.tally.borrow_mut().connections += 1;
        if let Err(error) = reactor.connect(&self.plan.address, Pipelined::new(self.clone())) {
            self.connecting_failed(reactor, &error.to_string());
        }
    }

    pub fn connecting_failed(self: &Rc<Load>, reactor: &mut Reactor, why: &str) {
        if self.over.get() {
            return;
        }
        let mut tally = self.tally.borrow_mut();
        tally.errors.connect += 1;
        tally.connections = tally.connections.saturating_sub(1);
        tally.first_fault.get_or_insert_with(|| why.to_owned());
        // In a timed run the server may come back. A run with a fixed number of requests would never end.
        let waits = tally.completed > 0 && self.plan.requests.is_none();
        let since = self.unreachable_since.get().unwrap_or_else(Instant::now);
        self.unreachable_since.set(Some(since));
        let nobody_is_there = !waits && since.elapsed() >= self.plan.timeout;
        drop(tally);
        if nobody_is_there {
            return self.end(reactor);
        }
        let load = self.clone();
        reactor.after(CONNECT_AGAIN_AFTER, move |reactor| load.connect(reactor));
    }

    /// Sends the next request, if one should be sent now.
    pub fn fetch(self: &Rc<Load>, reactor: &mut Reactor) {
        let Some(fetching) = &self.fetching else { return };
        match (self.take(), &self.pace) {
            (Some(due), _) => fetching.send(reactor, self, due),
            (None, Some(pace)) => pace.idle.set(pace.idle.get() + 1),
            (None, None) => {}
        }
    }

    /// Records that a connection was made.
    pub fn is_reached(&self) {
        self.unreachable_since.set(None);
    }

    /// Returns the due time of the next request, if one should be sent now, and counts it as sent.
    pub fn take(&self) -> Option<Instant> {
        if self.over.get() {
            return None;
        }
        let due = match (self.backlog.borrow_mut().pop_front(), self.left.get()) {
            (Some(due), _) => Some(due),
            _ if self.pace.is_some() => None,
            (None, Some(0)) => None,
            (None, left) => {
                self.left.set(left.map(|left| left - 1));
                Some(Instant::now())
            }
        }?;
        self.outstanding.set(self.outstanding.get() + 1);
        self.tally.borrow_mut().sent += 1;
        Some(due)
    }

    /// Records that a connection has room for another request, but there was none to send.
    pub fn is_free(&self, connection: ConnectionId) {
        if let Some(pace) = &self.pace {
            pace.free.borrow_mut().push_back(connection);
        }
    }

    /// Queues a request again that was sent on a connection which the server had announced to close: the server has not processed
    /// it.
    pub fn send_again(&self, due: Instant) {
        self.outstanding.set(self.outstanding.get() - 1);
        self.tally.borrow_mut().sent -= 1;
        self.backlog.borrow_mut().push_back(due);
    }

    pub fn answered(&self, status: u16, body: u64, due: Instant) {
        self.outstanding.set(self.outstanding.get() - 1);
        self.tally.borrow_mut().answered(status, body, due.elapsed());
        self.progress.completed.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts requests that will not be answered.
    pub fn failed(&self, count: u64, kind: impl FnOnce(&mut Tally, u64)) {
        if count > 0 {
            self.outstanding.set(self.outstanding.get() - count);
            kind(&mut self.tally.borrow_mut(), count);
            self.progress.failed.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub fn is_over(&self) -> bool {
        self.over.get()
    }

    /// Starts nothing new, and waits for outstanding responses, up to the timeout.
    fn end(&self, reactor: &mut Reactor) {
        self.over.set(true);
        reactor.after(self.plan.timeout, Reactor::stop);
        self.end_if_done(reactor);
    }

    /// Stops the reactor if nothing is left to do.
    pub fn end_if_done(&self, reactor: &mut Reactor) {
        let sent_all = self.over.get() || (self.left.get() == Some(0) && self.backlog.borrow().is_empty());
        if sent_all && self.outstanding.get() == 0 {
            self.over.set(true);
            reactor.stop();
        }
    }

    /// Sends the requests that are due, and sets a timer for the next one.
    fn keep_pace(self: Rc<Load>, reactor: &mut Reactor) {
        let Some(pace) = &self.pace else { return };
        let now = Instant::now();
        while pace.next.get() <= now && !self.over.get() {
            if let Some(left) = self.left.get() {
                if left == 0 {
                    return;
                }
                self.left.set(Some(left - 1));
            }
            self.backlog.borrow_mut().push_back(pace.next.get());
            pace.next.set(pace.next.get() + pace.interval);
            self.hand_out(pace, reactor);
        }
        if !self.over.get() {
            let until = pace.next.get().saturating_duration_since(Instant::now());
            reactor.after(until, move |reactor| self.keep_pace(reactor));
        }
    }
}

impl Load {
    /// Sends waiting requests on free connections.
    fn hand_out(self: &Rc<Load>, pace: &Pace, reactor: &mut Reactor) {
        if let Some(idle) = pace.idle.get().checked_sub(1) {
            pace.idle.set(idle);
            return self.fetch(reactor);
        }
        loop {
            let Some(id) = pace.free.borrow_mut().pop_front() else { return };
            if reactor.visit(id, |client: &mut Pipelined, io| client.send_more(io)).is_some() {
                return;
            }
        }
    }
}
