//! All watches of a reactor. They share one notifier.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use pelton_os::notify::{Level, Notice, What};

use super::listing::{Listed, Request};
use super::marks::{Marks, Role, Use};
use super::walk::{is_absent, walk};
use super::watched::{Entries, Visit, Watched};
use crate::TimerId;
use crate::reactor::slots::{Key, Slots};

/// The two notices of a move follow each other in the queue, but those of other processes may get between them.
const PAIR_DISTANCE: usize = 128;

/// Directories visited in one step. A visit took 11 to 24 microseconds where the directory was in the system's memory, so one
/// to two milliseconds. The first step of a watch is made at once.
const VISITS_PER_STEP: usize = 64;

/// So few directories are listed by the loop: they have just been created, and a thread would take longer.
const LISTED_BY_LOOP: usize = 8;

/// Which half of a move may still arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    MayFollow,
    Missing,
}

/// What remains to be done after notices were handled.
#[derive(Default)]
pub(super) struct Remains {
    /// The first notice in the backlog is half of a move, and all notices were read.
    pub(super) half_a_move: bool,
    /// Directories wait to be visited.
    pub(super) visits: bool,
    /// Directories to list, on a thread. Until that is done, no notice is handled: the entries that are found come first.
    pub(super) requests: Vec<Request>,
}

pub(crate) struct PathWatches {
    pub(super) watches: Slots<Watched>,
    marks: Marks,
    backlog: VecDeque<Notice>,
    /// How often notices were read.
    reads: u64,
    /// Counts walks.
    walks: u64,
    /// Runs while the first notice in the backlog waits for its other half.
    pub(super) half_a_move: Option<TimerId>,
    /// A tick that visits more directories is queued.
    pub(super) visiting: bool,
    /// A thread lists directories. Notices are read, but not handled.
    pub(super) listing: bool,
}

impl PathWatches {
    pub(super) fn new() -> io::Result<PathWatches> {
        Ok(PathWatches {
            watches: Slots::new(),
            marks: Marks::new()?,
            backlog: VecDeque::new(),
            reads: 0,
            walks: 0,
            half_a_move: None,
            visiting: false,
            listing: false,
        })
    }

    pub(super) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.marks.as_fd()
    }

    /// Adds a watch and marks everything that it needs.
    pub(super) fn add(&mut self, watched: Watched) -> io::Result<Key> {
        let key = self.watches.insert(watched);
        let outcome = self.walk(key, true).and_then(|()| self.visit_first(key));
        if let Err(error) = outcome {
            self.remove(key);
            return Err(error);
        }
        Ok(key)
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Watched> {
        let watched = self.watches.remove(key)?;
        for mark in watched.way.iter().chain(watched.directories.keys()).chain(&watched.released) {
            self.marks.release(*mark, |found| found.watch == key);
        }
        Some(watched)
    }

    /// Reads notices and handles them.
    pub(super) fn read(&mut self) -> io::Result<Remains> {
        let mut notices = Vec::new();
        let outcome = self.marks.read(&mut notices);
        self.backlog.extend(notices);
        self.reads += 1;
        let is_empty = outcome?;
        if self.listing {
            return Ok(Remains::default());
        }
        Ok(self.handle_backlog(is_empty, Rest::MayFollow))
    }

    /// Handles the notices that were read. `is_empty`: the system has no more notices.
    pub(super) fn handle_backlog(&mut self, is_empty: bool, rest: Rest) -> Remains {
        let mut rest = rest;
        while let Some(notice) = self.backlog.pop_front() {
            match notice.what {
                What::MovedFrom(number) => {
                    let window = self.backlog.iter().take(PAIR_DISTANCE);
                    match window.enumerate().find(|(_, other)| other.what == What::MovedTo(number)) {
                        Some((place, _)) => {
                            let to = self.backlog.remove(place);
                            self.moved(Some(&notice), to.as_ref());
                        }
                        None if rest == Rest::MayFollow && self.backlog.len() < PAIR_DISTANCE => {
                            self.backlog.push_front(notice);
                            break;
                        }
                        None => {
                            self.moved(Some(&notice), None);
                            rest = Rest::MayFollow;
                        }
                    }
                }
                What::MovedTo(_) => self.moved(None, Some(&notice)),
                What::Overflow => self.for_each(Watched::overflowed),
                _ => self.handle(&notice),
            }
        }
        self.walk_again();
        let caught_up = is_empty && self.backlog.is_empty();
        if caught_up {
            let reads = self.reads;
            self.for_each(|watched| watched.caught_up(reads));
        }
        let requests = self.visit_some();
        Remains {
            half_a_move: is_empty && !self.backlog.is_empty(),
            visits: requests.is_empty() && self.has_visits(),
            requests,
        }
    }

    /// Returns whether directories wait to be visited.
    pub(super) fn has_visits(&self) -> bool {
        self.watches.iter().any(|(_, watched)| !watched.visits.is_empty())
    }

    fn for_each(&mut self, mut act: impl FnMut(&mut Watched)) {
        for key in self.keys() {
            if let Some(watched) = self.watches.get_mut(key) {
                act(watched);
            }
        }
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.watches.iter().map(|(key, _)| key).collect()
    }

    fn handle(&mut self, notice: &Notice) {
        for found in self.marks.uses(notice.mark) {
            let Some(watched) = self.watches.get_mut(found.watch) else { continue };
            match (&found.role, &notice.name) {
                (Role::Directory, None) => watched.directory_itself(notice.mark, notice.what),
                (Role::Directory, Some(name)) => watched.entry(notice, name),
                (Role::Parent { name: wanted }, Some(name)) if wanted == name => watched.entry_of_parent(notice, None),
                (Role::Ancestor { next }, Some(name)) if next == name => watched.walk_again = true,
                (Role::Ancestor { .. } | Role::Parent { .. } | Role::Link, None) => {
                    watched.walk_again |= matches!(notice.what, What::Gone | What::Ended);
                }
                _ => {}
            }
        }
        if notice.what == What::Ended {
            self.marks.ended(notice.mark);
        }
    }

    /// Handles a move, of which one end or both are known.
    fn moved(&mut self, from: Option<&Notice>, to: Option<&Notice>) {
        for (notice, other) in [(from, to), (to, from)] {
            let Some(notice) = notice else { continue };
            for found in self.marks.uses(notice.mark) {
                let Some(watched) = self.watches.get_mut(found.watch) else { continue };
                match &found.role {
                    Role::Directory => {
                        // A move inside the watched directory is handled once.
                        let is_inside = other.is_some_and(|other| watched.directories.contains_key(&other.mark));
                        let is_second = matches!(notice.what, What::MovedTo(_));
                        match (is_inside, is_second) {
                            (true, true) => {}
                            (true, false) => watched.moved(from, to),
                            (false, false) => watched.moved(from, None),
                            (false, true) => watched.moved(None, to),
                        }
                    }
                    Role::Parent { name } if notice.name.as_ref() == Some(name) => {
                        watched.entry_of_parent(notice, other);
                    }
                    Role::Ancestor { next } if notice.name.as_ref() == Some(next) => watched.walk_again = true,
                    _ => {}
                }
            }
        }
    }

    /// Walks again to the paths whose way has changed.
    fn walk_again(&mut self) {
        for key in self.keys() {
            if self.watches.get(key).is_some_and(|watched| watched.walk_again)
                && let Err(error) = self.walk(key, false)
                && let Some(watched) = self.watches.get_mut(key)
            {
                watched.failed(Path::new(""), error);
            }
            self.release(key);
        }
    }

    fn walk(&mut self, key: Key, first: bool) -> io::Result<()> {
        self.walks += 1;
        let number = self.walks;
        let Some(watched) = self.watches.get_mut(key) else { return Ok(()) };
        watched.walk_again = false;
        let mut way = Vec::new();
        let outcome = walk(&mut self.marks, &watched.absolute, key, number, &mut way);
        if outcome.is_ok() {
            watched.walk = number;
        }
        // Adding comes before releasing: the notices of a mark that is used again must not be lost. After a failure, both the
        // old way and the part of the new one that was found are kept, so that a change of either leads to another walk.
        let old = std::mem::replace(&mut watched.way, way);
        match &outcome {
            Ok(_) => {
                let is_over = |found: &Use| found.watch == key && found.role != Role::Directory && found.walk < number;
                for mark in old {
                    self.marks.release(mark, is_over);
                }
            }
            Err(_) => watched.way.extend(old),
        }
        watched.arrived(outcome?, first);
        Ok(())
    }

    /// Releases the marks of directories that a watch has left.
    fn release(&mut self, key: Key) {
        let Some(watched) = self.watches.get_mut(key) else { return };
        for mark in std::mem::take(&mut watched.released) {
            if !watched.directories.contains_key(&mark) {
                self.marks.release(mark, |found| found.watch == key && found.role == Role::Directory);
            }
        }
    }

    /// Visits the first directories of a new watch. Those of a large tree are visited in later steps.
    fn visit_first(&mut self, key: Key) -> io::Result<()> {
        for _ in 0..VISITS_PER_STEP {
            let Some(visit) = self.next_visit(key) else { return Ok(()) };
            let below = visit.below.clone();
            let visited = self.visit(key, visit).and_then(|request| match request {
                Some(request) => self.listed(request.list()),
                None => Ok(()),
            });
            if let Err(error) = visited {
                // Directories without permission are common in large trees. An exhausted limit affects everything.
                if below.as_os_str().is_empty() || error.kind() == io::ErrorKind::QuotaExceeded {
                    return Err(error);
                }
                self.visit_failed(key, &below, error);
            }
        }
        if let Some(watched) = self.watches.get_mut(key) {
            watched.visits_take_time(SystemTime::now());
        }
        Ok(())
    }

    /// Visits directories that wait, up to a limit: marks them, and lists them if they are few. Returns those to list.
    fn visit_some(&mut self) -> Vec<Request> {
        let mut requests = Vec::new();
        let mut left = VISITS_PER_STEP;
        for key in self.keys() {
            while left > 0
                && let Some(visit) = self.next_visit(key)
            {
                left -= 1;
                let below = visit.below.clone();
                match self.visit(key, visit) {
                    Ok(request) => requests.extend(request),
                    Err(error) => self.visit_failed(key, &below, error),
                }
            }
        }
        if requests.len() <= LISTED_BY_LOOP {
            for request in std::mem::take(&mut requests) {
                self.take_listed(request.list());
            }
        }
        for key in self.keys() {
            if let Some(watched) = self.watches.get_mut(key)
                && watched.visits.is_empty()
                && !requests.iter().any(|request| request.watch == key)
            {
                watched.visited_all();
            }
            self.release(key);
        }
        requests
    }

    fn next_visit(&mut self, key: Key) -> Option<Visit> {
        self.watches.get_mut(key)?.visits.pop_front()
    }

    fn visit_failed(&mut self, key: Key, below: &Path, error: io::Error) {
        let Some(watched) = self.watches.get_mut(key) else { return };
        if error.kind() == io::ErrorKind::QuotaExceeded {
            // The others would fail as well. One report is enough.
            watched.visits.clear();
        }
        watched.failed(below, error);
    }

    /// Marks a directory. Returns how to list it, if that is necessary.
    fn visit(&mut self, key: Key, visit: Visit) -> io::Result<Option<Request>> {
        let Visit { below, entries } = visit;
        let Some(watched) = self.watches.get_mut(key) else { return Ok(None) };
        let path = watched.real_path(&below);
        let new = Use { watch: key, role: Role::Directory, walk: 0, level: Level::Contents, path: path.clone() };
        let mark = match self.marks.add(new) {
            Ok(mark) => mark,
            // It has been deleted or moved since. That is reported separately.
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(entries) = watched.found_at(mark, &below, entries) else { return Ok(None) };
        let recursive = watched.options.recursive;
        if entries == Entries::Known && !recursive {
            return Ok(None);
        }
        Ok(Some(Request { watch: key, mark, below, path, entries, recursive }))
    }

    /// Takes over what was found in a directory.
    fn listed(&mut self, listed: Listed) -> io::Result<()> {
        let Listed { request: Request { watch, mark, below, entries, .. }, found } = listed;
        let Some(watched) = self.watches.get_mut(watch) else { return Ok(()) };
        if watched.directories.get(&mark) != Some(&below) {
            return Ok(());
        }
        let found = match found {
            Ok(found) => found,
            Err(error) if is_absent(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        found.modified.into_iter().for_each(|name| watched.has_changed(&below, name));
        for name in found.created {
            watched.discovered(mark, self.reads, &below, name);
        }
        let visits = found.directories.into_iter().map(|name| Visit { below: below.join(name), entries });
        watched.visits.extend(visits);
        Ok(())
    }

    /// Takes over what was found in a directory, and reports a failure.
    pub(super) fn take_listed(&mut self, listed: Listed) {
        let (key, below) = (listed.request.watch, listed.request.below.clone());
        if let Err(error) = self.listed(listed) {
            self.visit_failed(key, &below, error);
        }
    }

    pub(super) fn mark_count(&self) -> usize {
        self.marks.len()
    }

    /// Begins again with a new notifier, in a forked child.
    pub(super) fn renew(&mut self) -> io::Result<()> {
        self.marks = Marks::new()?;
        self.backlog.clear();
        self.listing = false;
        for key in self.keys() {
            if let Some(watched) = self.watches.get_mut(key) {
                watched.begin_again();
            }
        }
        self.walk_again();
        Ok(())
    }
}
