//! Watches files and directories.
//!
//! ```text
//! mod.rs      what callers use, and the calls to their callbacks
//! change.rs   changes, and how they are collected
//! table.rs    all watches: reads notices, matches the halves of moves, passes them on
//! watched.rs  one watch: what a notice means for it
//! listing.rs  the entries of a directory, found by a thread
//! walk.rs     the way to a path: which directories and links decide where it leads
//! marks.rs    the marks that the watches share
//! stream.rs   for `async` code
//! ```
//!
//! A path is watched by its name, not by the file that has it now: editors and deployment tools replace files. So the parent
//! directory is marked, not the file, and everything on the way to it is marked too, which reports if it is moved or deleted.

mod change;
mod listing;
mod marks;
mod stream;
mod table;
mod walk;
mod watched;

use std::io;
use std::panic::Location;
use std::path::Path;
use std::time::Duration;

use pelton_os::{Event, Interest, Mode, Token};

pub use change::{Change, Changes, PathWatchOptions};
pub use stream::PathChanges;
pub(crate) use table::PathWatches;

use self::listing::{Listed, Request};
use self::table::{Remains, Rest};
use self::watched::{Callback, Collecting, Watched};
use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::slots::Key;
use crate::reactor::source::{Kind, Source};
use crate::{Deferred, Error, Fault, Lane, Promise, Reactor};

/// How long the second half of a move may take to arrive. The kernel queues both halves within one system call, so this only
/// matters if the moving thread is interrupted in between.
const HALF_A_MOVE: Duration = Duration::from_millis(10);

/// Identifies a watch of a path, to end it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PathWatchId(Key);

impl Kind for Box<PathWatches> {
    fn event(reactor: &mut Reactor, _: Token, event: Event) {
        match event {
            Event::Ready(..) => reactor.paths_changed(),
            other => reactor.unexpected_event(&other),
        }
    }
}

impl Reactor {
    /// Calls `callback` when something changes at `path`: a file, a directory with its entries, or something that does not
    /// exist yet.
    ///
    /// The watch is about the path, not about the file that is there now. It continues if the file is replaced, as editors
    /// do, if it is deleted and created again, and if directories or symbolic links on the way to it are exchanged. Changes
    /// that were noticed together are passed to one call; repeated modifications of a file appear once. See [`Change`] for
    /// what is reported.
    ///
    /// All watches of a reactor share one descriptor. The system reports nothing about files that other machines change on a
    /// network file system, nor about `/proc` and `/sys`.
    ///
    /// ```
    /// # use pelton::{Change, Reactor};
    /// # let directory = std::env::temp_dir().join(format!("pelton-watch-{}", std::process::id()));
    /// # std::fs::create_dir_all(&directory)?;
    /// let path = directory.join("settings");
    /// let mut reactor = Reactor::new()?;
    /// reactor.watch_path(&path, |reactor, changes| {
    ///     for change in &*changes {
    ///         println!("{change}");
    ///     }
    ///     reactor.end(changes.watch);
    ///     reactor.stop();
    /// })?;
    /// std::fs::write(&path, "colour = green")?;
    /// reactor.run()?;
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn watch_path(
        &mut self,
        path: impl AsRef<Path>,
        callback: impl FnMut(&mut Reactor, Changes) + 'static,
    ) -> Result<PathWatchId, Error> {
        self.add_path_watch(Location::caller(), path.as_ref(), &PathWatchOptions::default(), Box::new(callback))
    }

    /// Watches a path like [`watch_path`](Reactor::watch_path), with [options](PathWatchOptions): also the directories below
    /// it, or only when nothing has changed for a while.
    #[track_caller]
    pub fn watch_path_with(
        &mut self,
        path: impl AsRef<Path>,
        options: &PathWatchOptions,
        callback: impl FnMut(&mut Reactor, Changes) + 'static,
    ) -> Result<PathWatchId, Error> {
        self.add_path_watch(Location::caller(), path.as_ref(), options, Box::new(callback))
    }

    /// Returns a promise for the next changes at `path`. The watch ends with them.
    #[track_caller]
    pub fn next_change(&mut self, path: impl AsRef<Path>) -> Result<Promise<Changes, Error>, Error> {
        let (deferred, promise): (Deferred<Changes, Error>, _) = self.promise();
        self.watch_path(path, move |reactor, changes| {
            reactor.end(changes.watch);
            // Called once, and nothing else settles it.
            let _ = deferred.resolve(changes);
        })?;
        Ok(promise)
    }

    /// Ends a watch. A watch can be ended in its own callback. Returns `false` if it has ended already.
    pub(crate) fn unwatch_path(&mut self, watch: PathWatchId) -> bool {
        let forked = self.check_not_forked().is_err();
        let Some(table) = self.path_table() else { return false };
        // In a forked child, the notifier is still the parent's: only forget the watch.
        let removed = if forked { table.watches.remove(watch.0) } else { table.remove(watch.0) };
        let is_last = table.watches.is_empty();
        let waiting = table.half_a_move.filter(|_| is_last);
        let Some(watched) = removed else { return false };
        self.callbacks.ended(watch);
        if let Some(collecting) = &watched.collecting {
            self.cancel(collecting.timer);
        }
        if is_last && let Some(token) = self.path_watches.take() {
            if let Some(timer) = waiting {
                self.cancel(timer);
            }
            self.end_source(token);
        }
        true
    }

    /// Returns the number of watched paths.
    pub fn path_watch_count(&self) -> usize {
        self.path_watches.map_or(0, |token| match self.sources.get(token) {
            Some(Source::Paths(table)) => table.watches.len(),
            _ => 0,
        })
    }

    /// Returns how many of the system's watches the watched paths take: one for each directory and symbolic link that
    /// matters, however many paths need it.
    pub fn path_mark_count(&self) -> usize {
        self.path_watches.map_or(0, |token| match self.sources.get(token) {
            Some(Source::Paths(table)) => table.mark_count(),
            _ => 0,
        })
    }

    fn path_table(&mut self) -> Option<&mut PathWatches> {
        match self.sources.get_mut(self.path_watches?) {
            Some(Source::Paths(table)) => Some(table),
            _ => None,
        }
    }

    pub(super) fn add_path_watch(
        &mut self,
        location: &'static Location<'static>,
        path: &Path,
        options: &PathWatchOptions,
        callback: Callback,
    ) -> Result<PathWatchId, Error> {
        self.check_takes_on()?;
        let failed = |error| Error::system(format!("watch {}", path.display()), error);
        let absolute = std::path::absolute(path).map_err(failed)?;
        self.open_path_table().map_err(failed)?;
        let Some(table) = self.path_table() else { return Err(Error::NotWatched) };
        let added = table.add(Watched::new(location, path.to_owned(), absolute, options.clone(), callback));
        let is_unused = table.watches.is_empty();
        if is_unused && let Some(token) = self.path_watches.take() {
            self.end_source(token);
        }
        let key = added.map_err(failed)?;
        let visits = self.path_table().is_some_and(|table| table.has_visits());
        self.visit_later(visits);
        // Directories that could not be watched are reported, but not before this has returned.
        self.deliver_changes_later(key);
        Ok(PathWatchId(key))
    }

    /// Opens the notifier, unless a watch has opened it already.
    fn open_path_table(&mut self) -> io::Result<()> {
        if self.path_watches.is_some() {
            return Ok(());
        }
        let token = self.sources.insert(Source::Paths(Box::new(PathWatches::new()?)));
        match self.watch_path_table(token) {
            Ok(()) => {
                self.path_watches = Some(token);
                Ok(())
            }
            Err(error) => {
                self.sources.remove(token);
                Err(error)
            }
        }
    }

    fn watch_path_table(&mut self, token: Token) -> io::Result<()> {
        match self.sources.get(token) {
            Some(Source::Paths(table)) => self.engine.watch(token, table.as_fd(), Interest::READABLE, Mode::Level),
            _ => Ok(()),
        }
    }

    /// Reads and reports changes.
    fn paths_changed(&mut self) {
        let Some(table) = self.path_table() else { return };
        let outcome = table.read();
        // Whatever was awaited has arrived, or is awaited anew.
        if let Some(timer) = table.half_a_move.take() {
            self.cancel(timer);
        }
        match outcome {
            Ok(remains) => self.continue_with_paths(remains),
            Err(error) => self.report(Fault::new("path watch", format_args!("read changes: {error}"))),
        }
    }

    fn continue_with_paths(&mut self, remains: Remains) {
        if remains.half_a_move {
            let timer = self.after(HALF_A_MOVE, |reactor| {
                let Some(table) = reactor.path_table() else { return };
                table.half_a_move = None;
                if table.listing {
                    // It waits again when that is done.
                    return;
                }
                let remains = table.handle_backlog(true, Rest::Missing);
                reactor.continue_with_paths(remains);
            });
            if let Some(table) = self.path_table() {
                table.half_a_move = Some(timer);
            }
        }
        self.visit_later(remains.visits);
        if !remains.requests.is_empty() {
            self.list_directories(remains.requests);
        }
        let keys = self.path_table().map(|table| table.keys()).unwrap_or_default();
        for key in keys {
            self.deliver_changes_when_due(key);
        }
    }

    /// Visits more directories in the next turn, if any wait.
    fn visit_later(&mut self, visits: bool) {
        if visits && self.path_table().is_some_and(|table| !std::mem::replace(&mut table.visiting, true)) {
            self.next_tick(|reactor| {
                let Some(table) = reactor.path_table() else { return };
                table.visiting = false;
                // Reading again is the simplest way to know whether the system has more.
                reactor.paths_changed();
            });
        }
    }

    /// Lists directories on a thread.
    fn list_directories(&mut self, requests: Vec<Request>) {
        let token = self.path_watches;
        let Some(table) = self.path_table() else { return };
        table.listing = true;
        let list = move || requests.into_iter().map(Request::list).collect::<Vec<_>>();
        let listing = self.defer(Lane::Files, list, move |reactor, outcome| {
            // All watches may have ended meanwhile, and others begun.
            if reactor.path_watches != token {
                return;
            }
            match outcome {
                Ok(listed) => reactor.directories_listed(listed),
                Err(error) => {
                    reactor.report(Fault::new("path watch", format_args!("list directories: {error}")));
                    reactor.directories_listed(Vec::new());
                }
            }
        });
        if let Err(refused) = listing {
            // The lane is full. Waiting for it would not be fair to the other watches.
            let listed = (refused.op)();
            self.directories_listed(listed);
        }
    }

    fn directories_listed(&mut self, listed: Vec<Listed>) {
        let Some(table) = self.path_table() else { return };
        table.listing = false;
        listed.into_iter().for_each(|listed| table.take_listed(listed));
        // What was read meanwhile waits to be handled.
        self.visit_later(true);
    }

    /// Returns whether directories below [recursively](PathWatchOptions::recursive) watched paths remain to be visited.
    pub fn is_visiting_paths(&self) -> bool {
        self.path_watches.is_some_and(|token| match self.sources.get(token) {
            Some(Source::Paths(table)) => table.listing || table.has_visits(),
            _ => false,
        })
    }

    fn deliver_changes_later(&mut self, key: Key) {
        let has_changes =
            |table: &mut PathWatches| table.watches.get(key).is_some_and(|found| !found.collected.is_empty());
        if self.path_table().is_some_and(has_changes) {
            self.next_tick(move |reactor| reactor.deliver_changes_when_due(key));
        }
    }

    /// Reports the collected changes of a watch, immediately or when it becomes quiet.
    fn deliver_changes_when_due(&mut self, key: Key) {
        let now = self.now;
        let Some(watched) = self.path_table().and_then(|table| table.watches.get_mut(key)) else { return };
        if watched.collected.is_empty() {
            return;
        }
        let quiet = watched.options.quiet;
        if quiet.is_zero() || watched.collected.is_full() {
            return self.deliver_changes(key);
        }
        if watched.collected.has_grown()
            && let Some(collecting) = &mut watched.collecting
        {
            collecting.latest = now;
        }
        if watched.collecting.is_none() {
            let timer = self.after(quiet, move |reactor| reactor.deliver_changes_if_quiet(key));
            if let Some(watched) = self.path_table().and_then(|table| table.watches.get_mut(key)) {
                watched.collected.has_grown();
                watched.collecting = Some(Collecting { timer, since: now, latest: now });
            }
        }
    }

    fn deliver_changes_if_quiet(&mut self, key: Key) {
        let now = self.now;
        let Some(watched) = self.path_table().and_then(|table| table.watches.get_mut(key)) else { return };
        let Some(collecting) = &watched.collecting else { return };
        let due = (collecting.latest + watched.options.quiet).min(collecting.since + watched.options.longest());
        if due <= now {
            return self.deliver_changes(key);
        }
        let timer = self.at(due, move |reactor| reactor.deliver_changes_if_quiet(key));
        if let Some(watched) = self.path_table().and_then(|table| table.watches.get_mut(key))
            && let Some(collecting) = &mut watched.collecting
        {
            collecting.timer = timer;
        }
    }

    fn deliver_changes(&mut self, key: Key) {
        let watch = PathWatchId(key);
        let Some(watched) = self.path_table().and_then(|table| table.watches.get_mut(key)) else { return };
        let Some(callback) = watched.callback.take() else { return };
        let list = watched.collected.take();
        let site = Site { kind: CallbackKind::Watch, place: watched.location, source: Some(watch.into()) };
        if let Some(collecting) = watched.collecting.take() {
            self.cancel(collecting.timer);
        }
        self.call_source(
            site,
            callback,
            |callback, reactor| callback(reactor, Changes { watch, list }),
            |reactor, callback, outcome| {
                if outcome == Outcome::Panicked {
                    reactor.end(watch);
                } else if let Some(watched) = reactor.path_table().and_then(|table| table.watches.get_mut(key)) {
                    watched.callback = Some(callback);
                }
            },
        );
    }

    /// Opens a new notifier in a forked child.
    pub(crate) fn renew_path_watches(&mut self) -> Result<(), Error> {
        let Some(old) = self.path_watches.take() else { return Ok(()) };
        let failed = |error| Error::system("watch paths after a fork", error);
        let Some(Source::Paths(table)) = self.sources.get_mut(old) else { return Ok(()) };
        let mut fresh = PathWatches::new().map_err(failed)?;
        std::mem::swap(&mut **table, &mut fresh);
        self.end_source(old);
        let mut table = Box::new(fresh);
        table.renew().map_err(failed)?;
        let token = self.sources.insert(Source::Paths(table));
        self.path_watches = Some(token);
        self.watch_path_table(token).map_err(failed)?;
        self.next_tick(Reactor::paths_changed);
        Ok(())
    }
}
