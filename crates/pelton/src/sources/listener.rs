//! Listeners accept incoming connections. `listener/manual.rs` has those that leave accepting to the caller.

mod manual;

use std::io;
use std::panic::Location;
use std::time::Duration;

use pelton_os::{Address, Event, Intake, ListenOptions, Socket, SocketFile, Token};

use self::manual::Manual;
use crate::reactor::callback::{CallbackKind, Site};
use crate::reactor::source::{Kind, Source};
use crate::sources::connection::Connection;
use crate::sources::transport::Control;
use crate::{Error, Fault, Reactor};

/// The delay before accepting is retried after a failure such as a lack of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Identifies a listener, to end it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(pub(crate) Token);

/// The tokens of a reactor's listeners, to find them among all its sources.
#[derive(Default)]
pub(crate) struct Listeners {
    tokens: Vec<Token>,
}

/// Handles each accepted connection.
pub(crate) type Accept = Box<dyn FnMut(&mut Reactor, Socket)>;

/// Is told that there is a connection to accept.
type Acceptable = Box<dyn FnMut(&mut Reactor, ListenerId)>;

/// The user's code of a listener.
enum Callback {
    Accept(Accept),
    Manual(Acceptable),
}

/// A listener, as the reactor stores it.
pub(crate) struct Listener {
    location: &'static Location<'static>,
    /// `None` while it runs.
    callback: Option<Callback>,
    manual: Manual,
    address: Address,
    /// The file of a Unix socket, if the listener created it and so removes it.
    file: Option<SocketFile>,
    /// Accepting has failed and will be retried later.
    backing_off: bool,
    /// Accepting is paused by its user, or until earlier connections have been taken.
    paused: bool,
}

impl Listener {
    /// Returns whether neither its user nor a failure keeps it from accepting.
    fn accepts(&self) -> bool {
        !self.backing_off && !self.paused
    }
}

impl Kind for Box<Listener> {
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        match event {
            Event::Accepted(_, socket) => reactor.connection_came_in(token, socket),
            Event::AcceptFailed(_, error) => reactor.accepting_failed(token, &error),
            Event::Receivable(_) => reactor.connection_is_acceptable(token),
            Event::Ended(_, outcome) => reactor.listener_ended(token, outcome),
            other => reactor.unexpected_event(&other),
        }
    }

    fn shut_down(reactor: &mut Reactor, token: Token) {
        reactor.end(ListenerId(token));
    }
}

impl Reactor {
    /// Listens on `address` and calls `serve` for each accepted connection to make its handler. The address is an
    /// [`Address`], a [`SocketAddr`](std::net::SocketAddr) or a string: `127.0.0.1:80`, `[::1]:80`, `unix:/path`.
    ///
    /// A stale Unix socket file is replaced if nobody listens on it. If descriptors run out, the reactor closes a
    /// waiting connection and retries 100 milliseconds later.
    ///
    /// Fails with [`Error::Stopped`], before anything is bound, if the loop was [stopped](Reactor::stop).
    ///
    /// ```
    /// use pelton::{Chunk, Connection, Io, Reactor};
    ///
    /// struct Echo;
    ///
    /// impl Connection for Echo {
    ///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
    ///         io.send_chunk(chunk).ok();
    ///     }
    /// }
    ///
    /// let mut reactor = Reactor::new()?;
    /// let listener = reactor.listen("127.0.0.1:0", |_| Echo)?;
    /// println!("echoing on {}", reactor.listening_on(listener).unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn listen<C: Connection>(
        &mut self,
        address: impl TryInto<Address, Error: Into<Error>>,
        serve: impl FnMut(&mut Reactor) -> C + 'static,
    ) -> Result<ListenerId, Error> {
        let address = address.try_into().map_err(Into::into)?;
        self.listen_with(&address, &ListenOptions::default(), serve)
    }

    /// Listens like [`listen`](Reactor::listen), with [options](ListenOptions) such as the permissions of a Unix
    /// socket.
    #[track_caller]
    pub fn listen_with<C: Connection>(
        &mut self,
        address: &Address,
        options: &ListenOptions,
        serve: impl FnMut(&mut Reactor) -> C + 'static,
    ) -> Result<ListenerId, Error> {
        let location = Location::caller();
        self.listen_from(location, address, options, serving(location, serve))
    }

    /// Listens on `address` and passes the socket of each accepted connection to `accept`, which can
    /// [adopt](Reactor::adopt) it or send it to another reactor.
    #[track_caller]
    pub fn listen_for_sockets(
        &mut self,
        address: &Address,
        options: &ListenOptions,
        accept: impl FnMut(&mut Reactor, Socket) + 'static,
    ) -> Result<ListenerId, Error> {
        self.listen_from(Location::caller(), address, options, Box::new(accept))
    }

    pub(crate) fn listen_from(
        &mut self,
        location: &'static Location<'static>,
        address: &Address,
        options: &ListenOptions,
        accept: Accept,
    ) -> Result<ListenerId, Error> {
        self.add_listener(location, Callback::Accept(accept), Some(address), |reactor, token| {
            reactor.engine.listen(token, address, options)
        })
    }

    /// Adopts a listening socket, such as one that a service manager has [passed](crate::inherited_listeners). A Unix
    /// socket's file is not removed when the listener ends.
    #[track_caller]
    pub fn adopt_listener<C: Connection>(
        &mut self,
        socket: impl Into<Socket>,
        serve: impl FnMut(&mut Reactor) -> C + 'static,
    ) -> Result<ListenerId, Error> {
        let location = Location::caller();
        let socket = socket.into();
        let callback = Callback::Accept(serving(location, serve));
        self.add_listener(location, callback, None, |reactor, token| reactor.engine.adopt_listener(token, socket))
    }

    fn add_listener(
        &mut self,
        location: &'static Location<'static>,
        callback: Callback,
        address: Option<&Address>,
        start: impl FnOnce(&mut Reactor, Token) -> io::Result<()>,
    ) -> Result<ListenerId, Error> {
        self.check_takes_on()?;
        let listener = Listener {
            location,
            callback: Some(callback),
            manual: Manual::default(),
            address: Address::Unnamed,
            file: None,
            backing_off: false,
            paused: false,
        };
        let token = self.sources.insert(Source::Listener(Box::new(listener)));
        let bound = start(self, token).and_then(|()| self.engine.local_address(token));
        match bound {
            Ok(bound) => {
                // A file that no longer exists need not be removed.
                let file = match (address, &bound) {
                    (Some(_), Address::Unix(path)) => SocketFile::at(path).ok(),
                    _ => None,
                };
                if let Some(Source::Listener(listener)) = self.sources.get_mut(token) {
                    (listener.address, listener.file) = (bound, file);
                }
                self.listeners.tokens.push(token);
                Ok(ListenerId(token))
            }
            Err(error) => {
                self.end_source(token);
                let doing = match address {
                    Some(address) => format!("listen on {address}"),
                    None => "adopt a listening socket".to_owned(),
                };
                Err(Error::system(doing, error))
            }
        }
    }

    /// Returns the address that a listener is bound to. If the requested port was 0, it has the assigned port.
    pub fn listening_on(&self, listener: ListenerId) -> Option<&Address> {
        match self.sources.get(listener.0) {
            Some(Source::Listener(listener)) => Some(&listener.address),
            _ => None,
        }
    }

    /// Stops listening. Accepted connections stay open.
    pub(crate) fn unlisten(&mut self, listener: ListenerId) -> bool {
        let Some(Source::Listener(found)) = self.sources.get(listener.0) else { return false };
        // In a forked child, the file belongs to the parent.
        if let Some(file) = found.file.clone().filter(|_| self.check_not_forked().is_ok()) {
            let location = found.location;
            self.remove_socket_file(&file, location, "listener");
        }
        self.callbacks.ended(listener);
        self.listeners.tokens.retain(|token| *token != listener.0);
        self.end_source(listener.0);
        true
    }

    /// Ends all listeners.
    pub(crate) fn unlisten_all(&mut self) {
        for token in self.listeners.tokens.clone() {
            self.end(ListenerId(token));
        }
    }

    fn connection_came_in(&mut self, token: Token, socket: Socket) {
        // The loop accepts no new work: close the socket.
        if self.check_takes_on().is_err() {
            return;
        }
        if self.listener_mut(token).is_some_and(|listener| listener.manual.control == Control::HandlerFromHeld) {
            return self.hold_connection(token, socket);
        }
        self.call_listener(token, |callback, reactor| {
            if let Callback::Accept(accept) = callback {
                accept(reactor, socket);
            }
        });
    }

    /// Tells the callback of a manual listener that there is a connection.
    fn connection_is_acceptable(&mut self, token: Token) {
        if self.check_takes_on().is_err() || !self.listener_mut(token).is_some_and(|listener| listener.accepts()) {
            return;
        }
        self.call_listener(token, |callback, reactor| {
            if let Callback::Manual(acceptable) = callback {
                acceptable(reactor, ListenerId(token));
            }
        });
    }

    /// Ends a listener that the engine can no longer use. A manual one finds the error by accepting.
    fn listener_ended(&mut self, token: Token, outcome: io::Result<()>) {
        self.connection_is_acceptable(token);
        let Some(listener) = self.listener_mut(token) else { return };
        let (location, address) = (listener.location, listener.address.clone());
        let label = self.callbacks.label(Some(ListenerId(token).into()));
        if let Err(error) = outcome {
            let message = format!("stopped listening on {address}: {error}");
            self.report(Fault { label, ..Fault::at(location, "listener", message) });
        }
        self.end(ListenerId(token));
    }

    fn call_listener(&mut self, token: Token, call: impl FnOnce(&mut Callback, &mut Reactor)) {
        let Some(Source::Listener(listener)) = self.sources.get_mut(token) else { return };
        let Some(callback) = listener.callback.take() else { return };
        let site =
            Site { kind: CallbackKind::Connection, place: listener.location, source: Some(ListenerId(token).into()) };
        self.call_source(
            site,
            callback,
            |callback, reactor| call(callback, reactor),
            // Also after a panic: this connection is not served, but the next one is.
            |reactor, callback, _| {
                if let Some(Source::Listener(listener)) = reactor.sources.get_mut(token) {
                    listener.callback = Some(callback);
                }
                while let Some(token) = reactor.connections.take_accepted() {
                    reactor.connection_is_open(token);
                }
            },
        );
    }

    /// Handles a failure to accept, most likely a lack of descriptors or memory. An immediate retry would fail again,
    /// so the listener pauses.
    fn accepting_failed(&mut self, token: Token, error: &io::Error) {
        if is_out_of_descriptors(error) {
            if self.sources.any_over() {
                // Connections that are over release their descriptors at the end of this turn. Accepting is tried again
                // then.
                return;
            }
            self.engine.turn_away(token);
        }
        let Some(Source::Listener(listener)) = self.sources.get_mut(token) else { return };
        // Several accepts may fail in one turn. They share one pause.
        if listener.backing_off {
            return;
        }
        let message = format!("could not accept a connection on {}: {error}", listener.address);
        let fault = Fault {
            label: self.callbacks.label(Some(ListenerId(token).into())),
            ..Fault::at(listener.location, "listener", message)
        };
        self.report(fault);
        self.back_off(token, ACCEPT_RETRY_DELAY);
    }

    /// Accepts nothing for a while, unless such a pause is under way.
    fn back_off(&mut self, token: Token, pause: Duration) {
        let Some(listener) = self.listener_mut(token).filter(|listener| !listener.backing_off) else { return };
        listener.backing_off = true;
        self.set_accepting(token);
        self.after(pause, move |reactor| {
            if let Some(Source::Listener(listener)) = reactor.sources.get_mut(token) {
                listener.backing_off = false;
                reactor.resume_after_pause(token);
            }
        });
    }

    /// Makes all listeners accept or pause, depending on the current state.
    pub(crate) fn update_accepting(&mut self) {
        for token in self.listeners.tokens.clone() {
            self.set_accepting(token);
        }
    }

    /// Pauses or resumes accepting on a listener.
    pub(crate) fn accept_if(&mut self, listener: ListenerId, intake: Intake) {
        if let Some(Source::Listener(found)) = self.sources.get_mut(listener.0) {
            found.paused = intake == Intake::Off;
            self.set_accepting(listener.0);
        }
    }

    fn set_accepting(&mut self, token: Token) {
        let Some(Source::Listener(listener)) = self.sources.get(token) else { return };
        let on = listener.accepts() && listener.manual.held.is_empty() && !self.budget_pauses_accepting();
        if let Err(error) = self.engine.accept(token, Intake::on_if(on)) {
            self.report(Fault::new("listener", format_args!("could not pause or resume accepting: {error}")));
        }
    }

    /// Removes the file of a Unix socket, unless another file has replaced it. The socket must still be open.
    pub(crate) fn remove_socket_file(
        &mut self,
        file: &SocketFile,
        location: &'static Location<'static>,
        what: &'static str,
    ) {
        if let Err(error) = file.remove() {
            let path = file.path().display();
            self.report(Fault::at(
                location,
                what,
                format_args!("could not remove the Unix socket file {path}: {error}"),
            ));
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Adopts each socket and calls `serve` to make its handler.
pub(crate) fn serving<C: Connection>(
    location: &'static Location<'static>,
    mut serve: impl FnMut(&mut Reactor) -> C + 'static,
) -> Accept {
    Box::new(move |reactor, socket| {
        let handler = Box::new(serve(reactor));
        match reactor.take_on(location, socket, handler) {
            // `opened` is called when this closure returns.
            Ok(id) => reactor.connections.add_accepted(id),
            Err(error) => {
                reactor.report(Fault::at(location, "listener", format_args!("closed an accepted connection: {error}")));
            }
        }
    })
}
