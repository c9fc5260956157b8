//! Delivers signals on the loop.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pelton_os::{Event, Interest, Mode, Token, signal};
use signal_hook::SigId;
use signal_hook::consts::FORBIDDEN;
use signal_hook::low_level::{pipe, unregister};

use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::slots::{Key, Slots};
use crate::reactor::source::{Kind, Source};
use crate::{Error, Reactor};

/// Identifies a signal's callback, to [remove](Reactor::end) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SignalId(Key);

type Callback = Box<dyn FnMut(&mut Reactor, i32)>;

struct Handler {
    signal: i32,
    location: &'static Location<'static>,
    /// `None` while it runs.
    callback: Option<Callback>,
}

/// The signals that a reactor catches.
///
/// The actual signal handler, which may interrupt any code, sets the signal's flag and writes a byte to a socket. The
/// loop watches the other end of the socket.
#[derive(Default)]
pub(crate) struct Signals {
    wire: Option<Wire>,
    handlers: Slots<Handler>,
    caught: BTreeMap<i32, Caught>,
}

struct Wire {
    token: Token,
    read: UnixStream,
    write: UnixStream,
}

impl Wire {
    fn new(token: Token) -> io::Result<Wire> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Wire { token, read, write })
    }
}

/// A signal that has at least one callback.
struct Caught {
    /// Set by the handler.
    arrived: Arc<AtomicBool>,
    registrations: [SigId; 2],
    /// Turns the default action back on when dropped.
    _default_is_off: DefaultOff,
}

impl Caught {
    fn new(signal: i32, wire: &Wire) -> io::Result<Caught> {
        let default_is_off = DefaultOff::new(signal)?;
        let arrived = Arc::new(AtomicBool::new(false));
        // In this order: the flag must be set before the byte arrives.
        let flag = signal_hook::flag::register(signal, arrived.clone())?;
        let wake = match wire.write.try_clone().and_then(|write| pipe::register(signal, write)) {
            Ok(wake) => wake,
            Err(error) => {
                unregister(flag);
                return Err(error);
            }
        };
        Ok(Caught { arrived, registrations: [flag, wake], _default_is_off: default_is_off })
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        for registration in self.registrations {
            unregister(registration);
        }
    }
}

/// Suppresses a signal's default action.
///
/// Once a signal has been caught, signal-hook keeps its handler installed. Without callbacks, that handler would ignore
/// the signal: ctrl-c could no longer end a program that has removed its callback. So if a signal's action was the
/// default when it was first caught, an emulated default action is registered. It is enabled while no reactor of the
/// process catches the signal.
struct DefaultOff(i32);

/// For each signal ever caught: whether the emulated default action is enabled, and how many reactors suppress it.
static DEFAULTS: Mutex<BTreeMap<i32, (Arc<AtomicBool>, usize)>> = Mutex::new(BTreeMap::new());

impl DefaultOff {
    fn new(signal: i32) -> io::Result<DefaultOff> {
        let mut defaults = DEFAULTS.lock().unwrap_or_else(PoisonError::into_inner);
        let (on, users) = match defaults.entry(signal) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                let on = Arc::new(AtomicBool::new(false));
                if signal::is_default(signal)? {
                    signal_hook::flag::register_conditional_default(signal, on.clone())?;
                }
                entry.insert((on, 0))
            }
        };
        *users += 1;
        on.store(false, Ordering::SeqCst);
        Ok(DefaultOff(signal))
    }
}

impl Drop for DefaultOff {
    fn drop(&mut self) {
        let mut defaults = DEFAULTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((on, users)) = defaults.get_mut(&self.0) {
            *users -= 1;
            if *users == 0 {
                on.store(true, Ordering::SeqCst);
            }
        }
    }
}

/// The source of signals. Its state is in [`Signals`].
pub(crate) struct SignalSocket;

impl Kind for SignalSocket {
    fn event(reactor: &mut Reactor, _: Token, event: Event) {
        match event {
            Event::Ready(..) => reactor.deliver_signals(),
            other => reactor.unexpected_event(&other),
        }
    }
}

impl Reactor {
    /// Calls `callback` on the loop whenever the process receives `signal` (a number such as `libc::SIGTERM`). Several
    /// callbacks for one signal are called in the order in which they were added.
    ///
    /// As with all signals, several that arrive before the loop handles them may be reported as one. When the last
    /// callback for a signal is removed or its reactor is dropped, the signal has its default effect again.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// use signal_hook::consts::SIGUSR1;
    ///
    /// let mut reactor = Reactor::new()?;
    /// reactor.on_signal(SIGUSR1, |reactor, _| reactor.stop())?;
    /// # reactor.next_tick(|_| signal_hook::low_level::raise(SIGUSR1).unwrap());
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    #[track_caller]
    pub fn on_signal(
        &mut self,
        signal: i32,
        callback: impl FnMut(&mut Reactor, i32) + 'static,
    ) -> Result<SignalId, Error> {
        self.check_takes_on()?;
        if FORBIDDEN.contains(&signal) {
            return Err(Error::Signal { signal, reason: "programs cannot catch this signal, or must not".into() });
        }
        let failed = |error: io::Error| Error::Signal { signal, reason: error.to_string() };
        if self.signals.wire.is_none() {
            let wire = self.add_signal_wire().map_err(failed)?;
            self.signals.wire = Some(wire);
        }
        if let (false, Some(wire)) = (self.signals.caught.contains_key(&signal), &self.signals.wire) {
            let caught = Caught::new(signal, wire).map_err(failed)?;
            self.signals.caught.insert(signal, caught);
        }
        let location = Location::caller();
        let handler = Handler { signal, location, callback: Some(Box::new(callback)) };
        Ok(SignalId(self.signals.handlers.insert(handler)))
    }

    /// Opens the socket on which signals arrive.
    fn add_signal_wire(&mut self) -> io::Result<Wire> {
        let token = self.sources.insert(Source::Signals(SignalSocket));
        let wire = Wire::new(token).and_then(|wire| {
            self.engine.watch(token, wire.read.as_fd(), Interest::READABLE, Mode::Level)?;
            Ok(wire)
        });
        if wire.is_err() {
            self.sources.remove(token);
        }
        wire
    }

    pub(crate) fn remove_signal(&mut self, id: SignalId) -> bool {
        self.callbacks.ended(id);
        let Some(handler) = self.signals.handlers.remove(id.0) else { return false };
        if !self.signals.handlers.iter().any(|(_, other)| other.signal == handler.signal) {
            self.signals.caught.remove(&handler.signal);
        }
        if self.signals.caught.is_empty()
            && let Some(wire) = self.signals.wire.take()
        {
            self.end_source(wire.token);
        }
        true
    }

    /// Calls the callbacks of the signals that have arrived.
    fn deliver_signals(&mut self) {
        if let Some(wire) = &self.signals.wire {
            let mut bytes = [0; 256];
            // A short read has emptied the socket, and an error means that it was empty.
            while matches!((&wire.read).read(&mut bytes), Ok(count) if count == bytes.len()) {}
        }
        let arrived = |caught: &Caught| caught.arrived.swap(false, Ordering::SeqCst);
        let signals: Vec<i32> =
            self.signals.caught.iter().filter(|(_, caught)| arrived(caught)).map(|(signal, _)| *signal).collect();
        for signal in signals {
            let mut keys: Vec<Key> = self
                .signals
                .handlers
                .iter()
                .filter(|(_, handler)| handler.signal == signal)
                .map(|(key, _)| key)
                .collect();
            keys.sort_by_key(|key| key.generation);
            for key in keys {
                self.deliver_signal(key, signal);
            }
        }
    }

    fn deliver_signal(&mut self, key: Key, signal: i32) {
        let id = SignalId(key);
        // An earlier callback may have removed it.
        let Some(handler) = self.signals.handlers.get_mut(key) else { return };
        let Some(callback) = handler.callback.take() else { return };
        let site = Site { kind: CallbackKind::Signal, place: handler.location, source: Some(id.into()) };
        self.call_source(
            site,
            callback,
            |callback, reactor| callback(reactor, signal),
            |reactor, callback, outcome| {
                if outcome == Outcome::Panicked {
                    reactor.end(id);
                } else if let Some(handler) = reactor.signals.handlers.get_mut(key) {
                    handler.callback = Some(callback);
                }
            },
        );
    }

    /// Opens a new signal socket in a forked child and registers the handlers again.
    pub(crate) fn renew_signals(&mut self) -> Result<(), Error> {
        let Some(old) = self.signals.wire.take() else { return Ok(()) };
        let failed = |error| Error::system("register signal handlers after a fork", error);
        self.end_source(old.token);
        let wire = self.add_signal_wire().map_err(failed)?;
        for (signal, caught) in &mut self.signals.caught {
            *caught = Caught::new(*signal, &wire).map_err(failed)?;
        }
        self.signals.wire = Some(wire);
        Ok(())
    }
}
