//! The poller's list of descriptors, and the reports of a wait.

use std::os::fd::RawFd;

use super::queue::Filter;
use crate::{Interest, Mode, Readiness, Token};

/// How a descriptor is watched.
pub struct Watched {
    pub token: Token,
    pub mode: Mode,
    pub interest: Interest,
    /// The filters that the kernel has: those of interest, except a refused one.
    pub filters: Interest,
    /// It is one-shot and has fired.
    pub spent: bool,
    /// Its last report: the number of the wait, and the index in its list.
    reported: (u64, usize),
}

impl Watched {
    pub fn new(token: Token, mode: Mode, interest: Interest, filters: Interest) -> Watched {
        Watched { token, mode, interest, filters, spent: false, reported: (0, 0) }
    }

    /// Returns whether to report it as an error because the kernel has refused its write filter.
    pub fn is_refused(&self) -> bool {
        self.interest.writable() && !self.filters.writable()
    }
}

/// Returns the filters for an interest.
pub fn filters_of(interest: Interest) -> impl Iterator<Item = Filter> {
    [(interest.readable(), Filter::Read), (interest.writable(), Filter::Write)]
        .into_iter()
        .filter_map(|(wanted, filter)| wanted.then_some(filter))
}

/// Watched descriptors, by number.
#[derive(Default)]
pub struct List(Vec<Option<Watched>>);

impl List {
    pub fn get(&self, fd: RawFd) -> Option<&Watched> {
        self.0.get(usize::try_from(fd).ok()?)?.as_ref()
    }

    pub fn get_mut(&mut self, fd: RawFd) -> Option<&mut Watched> {
        self.0.get_mut(usize::try_from(fd).ok()?)?.as_mut()
    }

    /// `fd` is never negative, because the kernel has accepted it.
    pub fn put(&mut self, fd: RawFd, watched: Watched) {
        let place = fd as usize;
        if place >= self.0.len() {
            self.0.resize_with(place + 1, || None);
        }
        self.0[place] = Some(watched);
    }

    pub fn take(&mut self, fd: RawFd) -> Option<Watched> {
        self.0.get_mut(usize::try_from(fd).ok()?)?.take()
    }
}

/// A report about a descriptor.
pub struct Report {
    pub fd: RawFd,
    token: Token,
    readiness: Readiness,
    /// The filters that have reached their end.
    ended: Interest,
}

impl Report {
    /// Returns whether `filter` has fired.
    pub fn includes(&self, filter: Filter) -> bool {
        self.readiness.contains(match filter {
            Filter::Read => Readiness::READABLE,
            Filter::Write => Readiness::WRITABLE,
        })
    }
}

/// The reports of the last wait, one per descriptor.
#[derive(Default)]
pub struct Reports {
    list: Vec<Report>,
    next: usize,
    waits: u64,
}

impl Reports {
    /// Discards the reports of the last wait.
    pub fn new_wait(&mut self) {
        self.list.clear();
        self.next = 0;
        self.waits += 1;
    }

    /// Records `readiness`, combined with what this wait has already found about the descriptor.
    pub fn add(&mut self, fd: RawFd, watched: &mut Watched, readiness: Readiness, ended: Interest) {
        if watched.reported.0 == self.waits {
            let report = &mut self.list[watched.reported.1];
            report.readiness |= readiness;
            report.ended = report.ended | ended;
        } else if !watched.spent {
            watched.reported = (self.waits, self.list.len());
            watched.spent = watched.mode == Mode::OneShot;
            self.list.push(Report { fd, token: watched.token, readiness, ended });
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Report> {
        self.list.iter()
    }

    pub fn next(&mut self) -> Option<(Token, Readiness)> {
        let &Report { token, mut readiness, ended, .. } = self.list.get(self.next)?;
        self.next += 1;
        // One end can be a half-closed connection, or all that the descriptor has. Only both are certainly a hang-up.
        if ended == Interest::READABLE | Interest::WRITABLE {
            readiness |= Readiness::HANGUP;
        }
        Some((token, readiness))
    }
}
