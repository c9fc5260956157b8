//! Guests: runtimes that take part in the turn.

mod batches;
mod ending;
mod observing;
mod order;
mod sleeping;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;

use pelton::{Batch, EventLoop, Guest, Reactor, Sleep, Time, Wheel};
use pelton_testing::{Counted, Log};

type Job = Box<dyn FnOnce(&mut Reactor)>;

/// A small runtime: a queue of jobs, timers, and a lock that it holds unless it sleeps. Clones share it.
#[derive(Clone)]
struct Runtime(Rc<RefCell<State>>);

struct State {
    ready: VecDeque<Job>,
    timers: Wheel<Job>,
    before_sleep: Option<Job>,
    locked: bool,
    batches: u64,
    parks: u64,
    /// The current batch is the last of its turn.
    ends_turn: bool,
    quiet_sources: usize,
}

impl Runtime {
    /// Hosts a new runtime.
    fn on(reactor: &mut EventLoop) -> Runtime {
        let runtime = Runtime(Rc::new(RefCell::new(State {
            ready: VecDeque::new(),
            timers: Wheel::new(reactor.now()),
            before_sleep: None,
            locked: true,
            batches: 0,
            parks: 0,
            ends_turn: false,
            quiet_sources: 0,
        })));
        reactor.host(runtime.guest()).unwrap();
        runtime
    }

    fn guest(&self) -> impl Guest + use<> {
        RuntimeGuest { runtime: self.clone(), dropped: None }
    }

    fn soon(&self, job: impl FnOnce(&mut Reactor) + 'static) {
        self.0.borrow_mut().ready.push_back(Box::new(job));
    }

    fn soon_log(&self, log: &Log, entry: &'static str) {
        let log = log.clone();
        self.soon(move |_| log.add(entry));
    }

    /// Runs one job per batch, for ever.
    fn busy(&self) {
        let again = self.clone();
        self.soon(move |_| again.busy());
    }

    fn at(&self, deadline: Time, job: impl FnOnce(&mut Reactor) + 'static) {
        self.0.borrow_mut().timers.insert(deadline, Box::new(job));
    }

    fn batches(&self) -> u64 {
        self.0.borrow().batches
    }

    fn parks(&self) -> u64 {
        self.0.borrow().parks
    }
}

struct RuntimeGuest {
    runtime: Runtime,
    dropped: Option<(Log, Counted)>,
}

impl Drop for RuntimeGuest {
    fn drop(&mut self) {
        if let Some((log, _)) = &self.dropped {
            log.add("guest dropped");
        }
    }
}

impl Guest for RuntimeGuest {
    fn has_work(&mut self) -> bool {
        let state = self.runtime.0.borrow();
        assert!(state.locked, "it is asked with the lock held");
        !state.ready.is_empty()
    }

    fn next_deadline(&mut self) -> Option<Time> {
        self.runtime.0.borrow_mut().timers.next_deadline()
    }

    fn run(&mut self, reactor: &mut Reactor) -> Batch {
        let mut state = self.runtime.0.borrow_mut();
        assert!(state.locked, "it runs with the lock held");
        state.batches += 1;
        state.timers.expire(reactor.batch_clock());
        while let Some(due) = state.timers.next_due() {
            if let Some(job) = state.timers.cancel(due.key) {
                state.ready.push_back(job);
            }
        }
        let count = state.ready.len();
        drop(state);
        for _ in 0..count {
            let job = self.runtime.0.borrow_mut().ready.pop_front();
            if let Some(job) = job {
                job(reactor);
            }
        }
        if std::mem::take(&mut self.runtime.0.borrow_mut().ends_turn) { Batch::EndsTurn } else { Batch::MayContinue }
    }

    fn before_sleep(&mut self, reactor: &mut Reactor) {
        let job = self.runtime.0.borrow_mut().before_sleep.take();
        if let Some(job) = job {
            job(reactor);
        }
    }

    fn park(&mut self, sleep: &mut Sleep<'_>) -> io::Result<()> {
        self.runtime.0.borrow_mut().locked = false;
        self.runtime.0.borrow_mut().parks += 1;
        let outcome = sleep.block();
        self.runtime.0.borrow_mut().locked = true;
        outcome
    }

    fn quiet_sources(&self) -> usize {
        self.runtime.0.borrow().quiet_sources
    }
}
