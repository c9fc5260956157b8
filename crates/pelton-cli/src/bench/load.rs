//! The load that one thread makes: when a request is sent, on which connection, and when it is over.
//!
//! Without a rate, every connection sends its next request when it has its answer. With one, requests are due at fixed times,
//! whatever has become of those before; one that finds no connection free waits, and that wait is part of its latency. Otherwise a server
//! that stands still would be measured by the few requests that caught it, instead of by all that should have been sent meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use pelton::{Address, ConnectionId, Error, Reactor};
use pelton_http::wire::responses::To;

use super::client::Client;
use super::tally::Tally;

/// After a connection could not be made, the next attempt is this much later.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// What is to be done, for all threads.
pub struct Plan {
    pub address: Address,
    /// The request, as it is sent.
    pub request: Vec<u8>,
    pub to: To,
    pub threads: usize,
    pub connections: usize,
    pub pipeline: usize,
    pub keep_alive: bool,
    pub duration: Duration,
    /// How many requests to send, if that is fixed.
    pub requests: Option<u64>,
    /// Requests per second, of all threads together.
    pub rate: Option<f64>,
    pub timeout: Duration,
}

impl Plan {
    /// How much of `whole` is the part of one thread.
    fn part(&self, whole: u64, thread: usize) -> u64 {
        let threads = self.threads as u64;
        whole / threads + u64::from((thread as u64) < whole % threads)
    }
}

/// How far all threads are, for those who watch.
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
    /// Since when no connection can be made.
    unreachable_since: Cell<Option<Instant>>,
    /// How many more requests may be sent, if that is fixed.
    left: Cell<Option<u64>>,
    /// Sent, and neither answered nor failed.
    outstanding: Cell<u64>,
    over: Cell<bool>,
    /// When requests were due that have yet to be sent, or sent again.
    backlog: RefCell<VecDeque<Instant>>,
    pace: Option<Pace>,
}

/// Requests at fixed times.
struct Pace {
    interval: Duration,
    next: Cell<Instant>,
    /// Connections with room for another request. Some may be gone.
    free: RefCell<VecDeque<ConnectionId>>,
}

/// Begins the load of a thread. What it has counted is sent when its reactor ends, which it does by itself.
pub fn start(
    reactor: &mut Reactor,
    plan: &Arc<Plan>,
    thread: usize,
    progress: &Arc<Progress>,
    done: Sender<Tally>,
) -> Result<(), Error> {
    let pace = plan.rate.map(|rate| {
        let interval = Duration::from_secs_f64(plan.threads as f64 / rate);
        // The threads take turns.
        let next = Instant::now() + interval.mul_f64(thread as f64 / plan.threads as f64);
        Pace { interval, next: Cell::new(next), free: RefCell::default() }
    });
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
    });
    for _ in 0..plan.part(plan.connections as u64, thread) {
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
    reactor.on_shutdown(move |_| {
        let mut tally = counted.tally.replace(Tally::new());
        tally.unsent = counted.backlog.borrow().len() as u64;
        let _ = done.send(tally);
    });
    reactor.put_state(load.clone());
    // There may be nothing to do for one of many threads.
    load.end_if_done(reactor);
    Ok(())
}

/// Ends the load of a thread before its time.
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
        self.tally.borrow_mut().connections += 1;
        if let Err(error) = reactor.connect(&self.plan.address, Client::new(self.clone())) {
            self.connecting_failed(reactor, &error.to_string());
        }
    }

    pub fn connecting_failed(self: &Rc<Load>, reactor: &mut Reactor, why: &str) {
        if self.over.get() {
            return;
        }
        let mut tally = self.tally.borrow_mut();
        tally.errors.connect += 1;
        tally.connections -= 1;
        tally.first_fault.get_or_insert_with(|| why.to_owned());
        // For a given time, the server may come back; for a number of requests, there would be no end.
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

    /// A connection was made.
    pub fn is_reached(&self) {
        self.unreachable_since.set(None);
    }

    /// When the next request was due, if there is one to be sent now. It counts as sent.
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

    /// A connection has room for another request, but there was none.
    pub fn is_free(&self, connection: ConnectionId) {
        if let Some(pace) = &self.pace {
            pace.free.borrow_mut().push_back(connection);
        }
    }

    /// A request that was sent on a connection which the server said it would close: it has not been looked at, and is sent again.
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

    /// So many requests will not be answered.
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

    /// Nothing more is begun. What has been sent is waited for, but not for ever.
    fn end(&self, reactor: &mut Reactor) {
        self.over.set(true);
        reactor.after(self.plan.timeout, Reactor::stop);
        self.end_if_done(reactor);
    }

    /// Stops the reactor if nothing is left to be done.
    pub fn end_if_done(&self, reactor: &mut Reactor) {
        let sent_all = self.over.get() || (self.left.get() == Some(0) && self.backlog.borrow().is_empty());
        if sent_all && self.outstanding.get() == 0 {
            self.over.set(true);
            reactor.stop();
        }
    }

    /// Sends what is due, and comes back when the next is.
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
            self.hand_out(reactor, pace);
        }
        if !self.over.get() {
            let until = pace.next.get().saturating_duration_since(Instant::now());
            reactor.after(until, move |reactor| self.keep_pace(reactor));
        }
    }

    /// Has a free connection send what waits.
    fn hand_out(&self, reactor: &mut Reactor, pace: &Pace) {
        loop {
            let Some(id) = pace.free.borrow_mut().pop_front() else { return };
            if reactor.visit(id, |client: &mut Client, io| client.send_more(io)).is_some() {
                return;
            }
        }
    }
}
