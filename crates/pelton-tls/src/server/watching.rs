//! Reloads a server when its files change.
//!
//! Watches of paths notice changes at once, also where a tool replaces a file or points a symbolic link elsewhere. A timer
//! looks at what they miss: file systems that report nothing, and paths that cannot be watched. Either way, the files are
//! compared with what they were when they were read, on a thread for blocking work.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Lane, PathWatchId, PathWatchOptions, Reactor, TimerId};

use super::{Reload, Server};
use crate::ConfigError;

/// How long nothing may have changed before files are read. Certificate and key are written one after the other.
const QUIET: Duration = Duration::from_millis(200);

/// Watches the files of a server. The watch continues if this is dropped.
pub struct Watching(Rc<Watcher>);

type Report = Box<dyn FnMut(&mut Reactor, Result<(), ConfigError>)>;

struct Watcher {
    server: Server,
    report: RefCell<Report>,
    watches: RefCell<Vec<(PathBuf, PathWatchId)>>,
    timer: Cell<Option<TimerId>>,
    state: Cell<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    /// A thread looks at the files.
    Looks,
    /// As before, and something has changed since.
    LooksAgain,
    Ended,
}

impl Server {
    /// Reloads all files when one of them changes. Calls `report` after each attempt. If a file cannot be used, everything
    /// stays as it was.
    ///
    /// [Watches](Reactor::watch_path) of the paths notice changes. Besides, the files are looked at every `period`, because
    /// some file systems report nothing, and some paths cannot be watched: a minute is a good choice.
    pub fn watch(
        &self,
        reactor: &mut Reactor,
        period: Duration,
        report: impl FnMut(&mut Reactor, Result<(), ConfigError>) + 'static,
    ) -> Watching {
        let watcher = Rc::new(Watcher {
            server: self.clone(),
            report: RefCell::new(Box::new(report)),
            watches: RefCell::default(),
            timer: Cell::default(),
            state: Cell::new(State::Waits),
        });
        let periodic = Rc::clone(&watcher);
        watcher.timer.set(Some(reactor.every(period, move |reactor, _| look(reactor, &periodic))));
        look(reactor, &watcher);
        Watching(watcher)
    }
}

impl Watching {
    /// Ends the watch.
    pub fn end(self, reactor: &mut Reactor) {
        self.0.state.set(State::Ended);
        if let Some(timer) = self.0.timer.take() {
            reactor.cancel(timer);
        }
        for (_, watch) in self.0.watches.take() {
            reactor.end(watch);
        }
    }
}

/// Compares the files with what they were, and reloads them if they differ.
fn look(reactor: &mut Reactor, watcher: &Rc<Watcher>) {
    match watcher.state.get() {
        State::Waits => {}
        State::Looks | State::LooksAgain => return watcher.state.set(State::LooksAgain),
        State::Ended => return,
    }
    let (server, looking) = (watcher.server.clone(), Rc::clone(watcher));
    let looks = reactor.defer(
        Lane::Files,
        move || (server.reload_if_changed(), server.paths()),
        move |reactor, outcome| {
            let before = looking.state.replace(State::Waits);
            if before == State::Ended {
                return looking.state.set(before);
            }
            let Ok((reloaded, paths)) = outcome else { return };
            // Files may have changed before they were watched.
            let again = watch_paths(reactor, &looking, paths) || before == State::LooksAgain;
            match reloaded {
                Ok(Reload::Unchanged) => {}
                Ok(Reload::Done) => looking.report.borrow_mut()(reactor, Ok(())),
                Err(error) => looking.report.borrow_mut()(reactor, Err(error)),
            }
            if again {
                look(reactor, &looking);
            }
        },
    );
    // A full lane has more important work; the next period comes.
    if looks.is_ok() {
        watcher.state.set(State::Looks);
    }
}

/// Watches these paths and no others. Returns whether there are new ones.
fn watch_paths(reactor: &mut Reactor, watcher: &Rc<Watcher>, paths: BTreeSet<PathBuf>) -> bool {
    let mut watches = watcher.watches.borrow_mut();
    watches.retain(|(path, watch)| paths.contains(path) || !reactor.end(*watch));
    let before = watches.len();
    for path in paths {
        if watches.iter().any(|(known, _)| *known == path) {
            continue;
        }
        let looking = Rc::clone(watcher);
        // The pairs of a directory may be in directories of their own.
        let options = PathWatchOptions::default().quiet(QUIET).recursive();
        // What cannot be watched is looked at every period.
        if let Ok(watch) = reactor.watch_path_with(&path, &options, move |reactor, _| look(reactor, &looking)) {
            watches.push((path, watch));
        }
    }
    watches.len() > before
}
