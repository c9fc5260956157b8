//! Watching descriptors that stay their owner's.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::panic::Location;

use pelton_os::{Event, Readiness, Token};

use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::source::{Counted, Kind, Source};
use crate::{Error, Interest, Mode, Reactor};

/// Names a watch, to change or end it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WatchId(pub(crate) Token);

/// What a watched descriptor is ready for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The watch, to change or end it from inside.
    pub watch: WatchId,
    readiness: Readiness,
}

impl Ready {
    /// A read will not block. After a hang-up or an error, it is what tells.
    pub fn readable(&self) -> bool {
        self.readiness.contains(Readiness::READABLE)
    }

    /// A write will not block. After a hang-up or an error, it is what tells.
    pub fn writable(&self) -> bool {
        self.readiness.contains(Readiness::WRITABLE)
    }

    /// The other side is gone for good.
    pub fn hangup(&self) -> bool {
        self.readiness.contains(Readiness::HANGUP)
    }

    /// The descriptor has an error pending.
    pub fn error(&self) -> bool {
        self.readiness.contains(Readiness::ERROR)
    }

    /// The descriptor was closed while it was watched. The watch has ended.
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
    place: &'static Location<'static>,
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
    /// Calls `callback` each turn in which `fd` is ready for what `interest` says, until [`unwatch`](Reactor::unwatch).
    ///
    /// The descriptor stays yours: the reactor neither reads, writes nor closes it. Unwatch it before you close it. If
    /// you don't, nothing bad happens, but whether you are told depends on the engine: `poll` and `select` call back once
    /// with [`Ready::closed`] and end the watch, `epoll` and `kqueue` fall silent.
    ///
    /// With [`Interest::NONE`] it is silent, also about hang-ups, until [`set_interest`](Reactor::set_interest).
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
    ///     reactor.unwatch(ready.watch);
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

    /// Like [`watch`](Reactor::watch), but after each call it is silent until [`set_interest`](Reactor::set_interest) arms
    /// it again.
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
        place: &'static Location<'static>,
        fd: &impl AsFd,
        interest: Interest,
        mode: Mode,
        callback: Callback,
    ) -> Result<WatchId, Error> {
        self.check_takes_on()?;
        let fd = fd.as_fd();
        let watch = Watch { place, fd: fd.as_raw_fd(), mode, callback: Some(callback) };
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
            Source::Watch(watch) if watch.fd == fd => Some(watch.place),
            _ => None,
        });
        match (error.kind(), other) {
            (io::ErrorKind::AlreadyExists, Some(place)) => Error::AlreadyWatched { fd, place },
            _ => Error::system(format!("watch descriptor {fd}"), error),
        }
    }

    /// Changes what is reported of a watched descriptor, and arms a one-shot watch again.
    pub fn set_interest(&mut self, watch: WatchId, interest: Interest) -> Result<(), Error> {
        self.check_not_forked()?;
        let Some(Source::Watch(found)) = self.sources.get(watch.0) else { return Err(Error::NotWatched) };
        let (fd, mode) = (found.fd, found.mode);
        self.engine
            .rewatch(watch.0, interest, mode)
            .map_err(|error| Error::system(format!("change what is watched of descriptor {fd}"), error))
    }

    /// Ends a watch, also from inside its own callback, and whatever has become of the descriptor. `false` if it has
    /// ended already.
    pub fn unwatch(&mut self, watch: WatchId) -> bool {
        if !matches!(self.sources.get(watch.0), Some(Source::Watch(_))) {
            return false;
        }
        self.callbacks.ended(watch);
        self.end_source(watch.0);
        true
    }

    /// How many descriptors are being watched.
    pub fn watch_count(&self) -> usize {
        self.sources.count(Counted::Watch)
    }

    /// Calls back a watch whose descriptor is ready.
    fn watched_is_ready(&mut self, token: Token, readiness: Readiness) {
        let id = WatchId(token);
        let Some(Source::Watch(watch)) = self.sources.get_mut(token) else { return };
        let Some(callback) = watch.callback.take() else { return };
        let site = Site { kind: CallbackKind::Watch, place: watch.place, source: Some(id.into()) };
        let ready = Ready { watch: id, readiness };
        self.call_source(
            site,
            callback,
            |callback, reactor| callback(reactor, ready),
            |reactor, callback, outcome| {
                if outcome == Outcome::Panicked || ready.closed() {
                    reactor.unwatch(id);
                } else if let Some(Source::Watch(watch)) = reactor.sources.get_mut(token) {
                    // It has not ended its own watch.
                    watch.callback = Some(callback);
                }
            },
        );
    }
}
