//! Watches descriptors that the caller owns.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::Location;

use pelton_os::{Event, Readiness, Token};

use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::source::{Counted, Kind, Source};
use crate::{Error, Interest, Mode, Reactor};

/// Identifies a watch, to change or end it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WatchId(pub(crate) Token);

/// The readiness of a watched descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The watch, so that its callback can change or end it.
    pub watch: WatchId,
    readiness: Readiness,
}

impl Ready {
    /// Returns whether a read will not block. After a hang-up or an error, the read reports it.
    pub fn readable(&self) -> bool {
        self.readiness.contains(Readiness::READABLE)
    }

    /// Returns whether a write will not block. After a hang-up or an error, the write reports it.
    pub fn writable(&self) -> bool {
        self.readiness.contains(Readiness::WRITABLE)
    }

    /// Returns whether the other side has hung up.
    pub fn hangup(&self) -> bool {
        self.readiness.contains(Readiness::HANGUP)
    }

    /// Returns whether the descriptor has a pending error.
    pub fn error(&self) -> bool {
        self.readiness.contains(Readiness::ERROR)
    }

    /// Returns whether the descriptor was closed while it was watched. The watch has ended.
    pub fn closed(&self) -> bool {
        self.readiness.contains(Readiness::CLOSED)
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ready({:?}, {:?})", self.watch, self.readiness)
    }
}

type Callback = Box<dyn FnMut(&mut Reactor, Ready)>;

pub(crate) struct Watch {
    location: &'static Location<'static>,
    fd: RawFd,
    mode: Mode,
    /// `None` while it runs.
    callback: Option<Callback>,
}

impl Kind for Watch {
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        match event {
            Event::Ready(_, readiness) => reactor.watched_is_ready(token, readiness),
            other => reactor.unexpected_event(&other),
        }
    }
}

impl Reactor {
    /// Calls `callback` in each turn in which `fd` is ready for `interest`, until it is [ended](Reactor::end).
    ///
    /// The caller keeps the descriptor: the reactor neither reads, writes nor closes it. End the watch before closing
    /// it. Otherwise nothing breaks, but the report depends on the engine: `poll` and `select` call back once with
    /// [`Ready::closed`] and end the watch; `epoll` and `kqueue` report nothing more.
    ///
    /// With [`Interest::NONE`] nothing is reported, not even hang-ups, until [`set_interest`](Reactor::set_interest).
    ///
    /// ```
    /// # use pelton::{Interest, Reactor};
    /// use std::io::{Read, Write};
    /// use std::os::unix::net::UnixStream;
    ///
    /// let (ours, mut theirs) = UnixStream::pair()?;
    /// let mut reader = ours.try_clone()?;
    /// let mut reactor = Reactor::new()?;
    /// reactor.watch(&ours, Interest::READABLE, move |reactor, ready| {
    ///     let mut bytes = [0; 5];
    ///     reader.read_exact(&mut bytes).unwrap();
    ///     assert_eq!(&bytes, b"hello");
    ///     reactor.end(ready.watch);
    ///     reactor.stop();
    /// })?;
    /// theirs.write_all(b"hello")?;
    /// reactor.run()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn watch(
        &mut self,
        fd: &impl AsFd,
        interest: Interest,
        callback: impl FnMut(&mut Reactor, Ready) + 'static,
    ) -> Result<WatchId, Error> {
        self.add_watch(Location::caller(), fd, interest, Mode::Level, Box::new(callback))
    }

    /// Watches a descriptor like [`watch`](Reactor::watch), but disarms the watch after each call until
    /// [`set_interest`](Reactor::set_interest) arms it again.
    #[track_caller]
    pub fn watch_once(
        &mut self,
        fd: &impl AsFd,
        interest: Interest,
        callback: impl FnMut(&mut Reactor, Ready) + 'static,
    ) -> Result<WatchId, Error> {
        self.add_watch(Location::caller(), fd, interest, Mode::OneShot, Box::new(callback))
    }

    fn add_watch(
        &mut self,
        location: &'static Location<'static>,
        fd: &impl AsFd,
        interest: Interest,
        mode: Mode,
        callback: Callback,
    ) -> Result<WatchId, Error> {
        self.check_takes_on()?;
        let fd = fd.as_fd();
        let watch = Watch { location, fd: fd.as_raw_fd(), mode, callback: Some(callback) };
        let token = self.sources.insert(Source::Watch(watch));
        match self.engine.watch(token, fd, interest, mode) {
            Ok(()) => Ok(WatchId(token)),
            Err(error) => {
                self.sources.remove(token);
                Err(self.watch_error(fd.as_raw_fd(), error))
            }
        }
    }

    fn watch_error(&self, fd: RawFd, error: io::Error) -> Error {
        let other = self.sources.iter().find_map(|(_, source)| match source {
            Source::Watch(watch) if watch.fd == fd => Some(watch.location),
            _ => None,
        });
        match (error.kind(), other) {
            (io::ErrorKind::AlreadyExists, Some(location)) => Error::AlreadyWatched { fd, place: location },
            _ => Error::system(format!("watch descriptor {fd}"), error),
        }
    }

    /// Changes the interest of a watch, and arms a one-shot watch again.
    pub fn set_interest(&mut self, watch: WatchId, interest: Interest) -> Result<(), Error> {
        self.check_not_forked()?;
        let Some(Source::Watch(found)) = self.sources.get(watch.0) else { return Err(Error::NotWatched) };
        let (fd, mode) = (found.fd, found.mode);
        self.engine
            .rewatch(watch.0, interest, mode)
            .map_err(|error| Error::system(format!("change the interest of descriptor {fd}"), error))
    }

    /// Ends a watch, whatever state the descriptor is in.
    pub(crate) fn unwatch(&mut self, watch: WatchId) -> bool {
        if !matches!(self.sources.get(watch.0), Some(Source::Watch(_))) {
            return false;
        }
        self.callbacks.ended(watch);
        self.end_source(watch.0);
        true
    }

    /// Returns the number of watched descriptors.
    pub fn watch_count(&self) -> usize {
        self.sources.count(Counted::Watch)
    }

    /// Calls the callback of a watch whose descriptor is ready.
    fn watched_is_ready(&mut self, token: Token, readiness: Readiness) {
        let id = WatchId(token);
        let Some(Source::Watch(watch)) = self.sources.get_mut(token) else { return };
        let Some(callback) = watch.callback.take() else { return };
        let site = Site { kind: CallbackKind::Watch, place: watch.location, source: Some(id.into()) };
        let ready = Ready { watch: id, readiness };
        self.call_source(
            site,
            callback,
            |callback, reactor| callback(reactor, ready),
            |reactor, callback, outcome| {
                if outcome == Outcome::Panicked || ready.closed() {
                    reactor.end(id);
                } else if let Some(Source::Watch(watch)) = reactor.sources.get_mut(token) {
                    // The callback did not end its own watch.
                    watch.callback = Some(callback);
                }
            },
        );
    }
}
