//! `kqueue`, the poller of macOS and the BSDs.
//!
//! ```text
//! mod.rs       the poller; from here down to queue.rs the code is the same on every system
//! watched.rs   its list of descriptors, and the reports of a wait
//! plan.rs      changes to one descriptor that belong together
//! queue.rs     a safe interface to a kernel queue
//! abi.rs       the C interface of real queues
//! emulated.rs  an emulation of it for tests on Linux
//! ```
//!
//! The kernel has a registration for each descriptor and *filter* (reading, writing), and each may fire alone. Pollers have one
//! per descriptor. So this poller keeps a list of descriptors, to combine reports, to silence the other filter when one of a
//! one-shot has fired, and to refuse a second `add`, which the kernel would take for a change. It does not use `udata`: a token
//! does not fit on 32-bit systems, and the list is consulted for each event anyway.
//!
//! # A descriptor that was closed and whose number was reused
//!
//! The kernel drops the filters of a descriptor when it is closed, even if there are duplicates, and does not tell. So a listed
//! descriptor is checked before it is changed or added: a change to a filter that should exist fails if it does not. Then
//! `modify` fails instead of watching another file, and `add` goes ahead. The check is impossible for a pipe that the kernel
//! has refused (below), because it has no filter.
//!
//! # A pipe without a reader
//!
//! Some kernels refuse a write filter for it (`EPIPE`) instead of reporting it. This poller then reports such a descriptor as
//! an error with each wait until it is removed, as other pollers do.
//!
//! # What the tests on the emulated queue prove
//!
//! They run everything except `abi.rs` unchanged, with real descriptors. They prove the bookkeeping, and that the interface is
//! used as the man pages describe: which changes are made when, and how receipts, failed changes and ends are handled. They do
//! not prove `abi.rs`, which is not compiled on Linux, nor the behaviour in a forked child, where real queues are closed, nor
//! that the kernels behave as modelled: when exactly `EV_EOF` is set and for which files, what terminals, devices and regular
//! files report, the order of events, and the precision of timeouts. Only a run on the real systems shows that.

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
    /// The other filters of one-shots that have fired. The next wait silences them, unless they are armed again before. Changes
    /// are made before events are collected, so that is early enough, and it needs no extra call.
    silence: Vec<(RawFd, Filter)>,
    changes: Changes,
    /// Descriptors whose write filter the kernel has refused, and perhaps some that are no longer watched.
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

    /// Returns whether `fd` is listed and still the same file.
    fn is_known(&self, fd: RawFd) -> io::Result<bool> {
        let Some(watched) = self.watched.get(fd) else { return Ok(false) };
        let Some(filter) = filters_of(watched.filters).next() else { return Ok(true) };
        // Sets a filter to the state that it should have, to learn whether it exists.
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

    /// Records what the queue has found, and the refused descriptors.
    fn collect(&mut self) {
        for found in self.queue.found() {
            // The kernel has no filter for a descriptor that is not listed.
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
                // A filter keeps the flags of its creation, so a change of mode needs a new filter.
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
