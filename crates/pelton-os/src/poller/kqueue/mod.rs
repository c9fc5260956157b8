//! `kqueue`, the poller of macOS and the BSDs.
//!
//! ```text
//! mod.rs       what the backend does: the same code everywhere, down to and including queue.rs
//! watched.rs   its list of descriptors, and the reports of a wait
//! plan.rs      changes to one descriptor that belong together
//! queue.rs     a kernel queue, made safe
//! abi.rs       the C interface of the real ones
//! emulated.rs  a stand-in for it on Linux, for tests
//! ```
//!
//! The kernel knows a registration for each descriptor and *filter* (reading, writing), of which either may fire alone.
//! Pollers know descriptors. So this keeps a list of them, to put together what belongs together, to silence the other
//! filter when one of a one-shot has fired, and to tell a second `add` from a first, which the kernel would take for a
//! change. `udata` is not used: on systems of 32 bits a token does not fit, and the list is looked at for each event anyway.
//!
//! # A descriptor that was closed, and its number taken by another
//!
//! The kernel drops the filters of a descriptor when it is closed, duplicates or not, and our list does not hear of it. So a
//! descriptor on the list that is changed or added is always asked about first: a change to a filter that ought to be there
//! fails if it is not. Then a `modify` fails, rather than watch a stranger, and an `add` goes ahead. What cannot be known is
//! whether a pipe that the kernel has refused (below), and therefore has no filter of, is still the same.
//!
//! # A pipe that nobody reads any more
//!
//! Some kernels refuse a write filter for it (`EPIPE`) instead of reporting it. Such a descriptor is reported by us, as an
//! error, by each wait until it is removed, the way other pollers would.
//!
//! # What the tests on the emulated queue prove
//!
//! They run everything but `abi.rs` as it is, with real descriptors. They prove the bookkeeping, and that the interface
//! is used as the manual pages describe it: which changes are made and when, what is done with receipts, failed changes and
//! ends. They do not prove `abi.rs`, which is not even compiled on Linux, nor what happens to a queue in a forked child,
//! where the real ones are closed, nor that the kernels do as modelled: when exactly `EV_EOF` is set and for which kinds of
//! files, what terminals, devices and regular files report, in what order events come, and how precise timeouts are. That
//! takes a run on the systems themselves.

#[cfg(not(target_os = "linux"))]
mod abi;
#[cfg(target_os = "linux")]
#[path = "emulated.rs"]
mod abi;
mod plan;
mod queue;
mod watched;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::Duration;

use rustix::io::Errno;

use self::abi::{EV_ADD, EV_CLEAR, EV_DELETE, EV_DISABLE, EV_DISPATCH, EV_ENABLE, Flags};
use self::plan::{Outcome, Plan};
use self::queue::{Change, Changes, Filter, Queue};
use self::watched::{List, Reports, Watched, filters_of};
use super::{Poller, Trigger, already_watched, wait_failed};
use crate::{Interest, Mode, Readiness, Token};

/// A poller on `kqueue`, with nanosecond timeouts.
pub struct Kqueue {
    queue: Queue,
    watched: List,
    /// The other filters of one-shots that fired: silenced with the next wait, unless they are armed again before.
    /// Since changes are made before events are looked for, that is soon enough, and costs no call of its own.
    silence: Vec<(RawFd, Filter)>,
    changes: Changes,
    /// Descriptors whose write filter the kernel has refused, and perhaps some that are not watched any more.
    refused: Vec<RawFd>,
    reports: Reports,
}

impl Kqueue {
    /// Opens a kernel queue.
    pub fn new() -> io::Result<Kqueue> {
        Ok(Kqueue {
            queue: Queue::open()?,
            watched: List::default(),
            silence: Vec::new(),
            changes: Changes::default(),
            refused: Vec::new(),
            reports: Reports::default(),
        })
    }

    /// Adds `fd`, with `flags` for its filters.
    fn attach(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode, flags: Flags) -> io::Result<()> {
        if self.is_known(fd)? {
            return Err(already_watched("kqueue", fd));
        }
        self.watched.take(fd);
        let plan = filters_of(interest).fold(Plan::new(fd), |plan, filter| plan.with(filter, EV_ADD | flags));
        let outcome = plan.carry_out(&self.queue)?;
        self.put(fd, token, interest, mode, outcome);
        Ok(())
    }

    /// Whether `fd` is on the list, and is still the file that was put there.
    fn is_known(&self, fd: RawFd) -> io::Result<bool> {
        let Some(watched) = self.watched.get(fd) else { return Ok(false) };
        let Some(filter) = filters_of(watched.filters).next() else { return Ok(true) };
        // A filter that is as it should be is told to stay so, to hear whether it is there.
        let flags = if watched.spent { EV_DISABLE } else { EV_ENABLE };
        Ok(self.queue.apply(&[Change { fd, filter, flags }])?[0].is_none())
    }

    fn put(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode, outcome: Outcome) {
        let filters = match outcome {
            Outcome::Done => interest,
            Outcome::Refused if interest.readable() => Interest::READABLE,
            Outcome::Refused => Interest::NONE,
        };
        if outcome == Outcome::Refused && !self.refused.contains(&fd) {
            self.refused.push(fd);
        }
        self.watched.put(fd, Watched::new(token, mode, interest, filters));
    }

    /// Notes down what the queue has found, and the refused ones.
    fn collect(&mut self) {
        for found in self.queue.found() {
            // What is not on the list, the kernel has not got either.
            let Some(watched) = self.watched.get_mut(found.fd) else { continue };
            let (mut readiness, side) = match found.filter {
                Filter::Read => (Readiness::READABLE, Interest::READABLE),
                Filter::Write => (Readiness::WRITABLE, Interest::WRITABLE),
            };
            if found.failed {
                readiness |= Readiness::ERROR;
            }
            self.reports.add(found.fd, watched, readiness, if found.ended { side } else { Interest::NONE });
        }
        for fd in &self.refused {
            if let Some(watched) = self.watched.get_mut(*fd) {
                self.reports.add(*fd, watched, Readiness::WRITABLE | Readiness::ERROR, Interest::NONE);
            }
        }
        for report in self.reports.iter() {
            let Some(watched) = self.watched.get(report.fd).filter(|watched| watched.spent) else { continue };
            let quiet = filters_of(watched.filters).filter(|filter| !report.includes(*filter));
            self.silence.extend(quiet.map(|filter| (report.fd, filter)));
        }
    }
}

fn mode_flags(mode: Mode) -> Flags {
    match mode {
        Mode::Level => 0,
        Mode::OneShot => EV_DISPATCH,
    }
}

impl Poller for Kqueue {
    fn add(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        self.attach(fd, token, interest, mode, mode_flags(mode))
    }

    fn modify(&mut self, fd: RawFd, token: Token, interest: Interest, mode: Mode) -> io::Result<()> {
        let Some(watched) = self.watched.get(fd) else {
            return Err(Errno::NOENT.into());
        };
        let mut plan = Plan::new(fd);
        for filter in [Filter::Read, Filter::Write] {
            let is_in = |interest| filters_of(interest).any(|other| other == filter);
            plan = match (is_in(watched.filters), is_in(interest)) {
                // A filter keeps the flags it was made with, so another mode takes another filter.
                (true, true) if watched.mode != mode => {
                    plan.with(filter, EV_DELETE).with(filter, EV_ADD | mode_flags(mode))
                }
                (true, true) => plan.with(filter, EV_ENABLE),
                (true, false) => plan.with(filter, EV_DELETE),
                (false, true) => plan.with(filter, EV_ADD | mode_flags(mode)),
                (false, false) => plan,
            };
        }
        match plan.carry_out(&self.queue) {
            Ok(outcome) => self.put(fd, token, interest, mode, outcome),
            Err(error) => {
                self.watched.take(fd);
                return Err(error);
            }
        }
        Ok(())
    }

    fn remove(&mut self, fd: RawFd) -> io::Result<()> {
        let Some(watched) = self.watched.take(fd) else { return Ok(()) };
        let plan = filters_of(watched.filters).fold(Plan::new(fd), |plan, filter| plan.with(filter, EV_DELETE));
        plan.clear_away(&self.queue)
    }

    fn add_loopbreaker(&mut self, fd: RawFd, trigger: Trigger) -> io::Result<Trigger> {
        let flags = if trigger == Trigger::Edge { EV_CLEAR } else { 0 };
        self.attach(fd, Token::LOOPBREAKER, Interest::READABLE, Mode::Level, flags)?;
        Ok(trigger)
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.reports.new_wait();
        for (fd, filter) in self.silence.drain(..) {
            if self.watched.get(fd).is_some_and(|watched| watched.spent) {
                self.changes.push(Change { fd, filter, flags: EV_DISABLE });
            }
        }
        self.refused.retain(|fd| self.watched.get(*fd).is_some_and(Watched::is_refused));
        let overdue = self.refused.iter().any(|fd| self.watched.get(*fd).is_some_and(|watched| !watched.spent));
        self.queue.wait(&mut self.changes, if overdue { Some(Duration::ZERO) } else { timeout })?;
        self.collect();
        Ok(())
    }

    fn next(&mut self) -> Option<(Token, Readiness)> {
        self.reports.next()
    }

    fn renew(&mut self) -> io::Result<()> {
        self.queue.renew()?;
        self.watched = List::default();
        self.silence.clear();
        self.refused.clear();
        self.reports = Reports::default();
        Ok(())
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.as_fd())
    }
}
