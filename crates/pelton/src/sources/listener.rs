//! Listeners accept incoming connections.

use std::io;
use std::panic::Location;
use std::time::Duration;

use pelton_os::{Address, Event, Intake, ListenOptions, Socket, SocketFile, Token};

use crate::reactor::callback::{CallbackKind, Site};
use crate::reactor::source::{Kind, Source};
use crate::sources::connection::Connection;
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

/// A listener, as the reactor stores it.
pub(crate) struct Listener {
    location: &'static Location<'static>,
    /// `None` while it runs.
    accept: Option<Accept>,
    address: Address,
    /// The file of a Unix socket, if the listener created it and so removes it.
    file: Option<SocketFile>,
    /// Accepting has failed and will be retried later.
    backing_off: bool,
    /// Accepting is paused until earlier connections have been taken.
    paused: bool,
}

impl Kind for Box<Listener> {
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        match event {
            Event::Accepted(_, socket) => reactor.connection_came_in(token, socket),
            Event::AcceptFailed(_, error) => reactor.accepting_failed(token, &error),
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
        self.add_listener(location, accept, Some(address), |reactor, token| {
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
        self.add_listener(location, serving(location, serve), None, |reactor, token| {
            reactor.engine.adopt_listener(token, socket)
        })
    }

    fn add_listener(
        &mut self,
        location: &'static Location<'static>,
        accept: Accept,
        address: Option<&Address>,
        start: impl FnOnce(&mut Reactor, Token) -> io::Result<()>,
    ) -> Result<ListenerId, Error> {
        self.check_takes_on()?;
        let listener = Listener {
            location,
            accept: Some(accept),
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
        let Some(Source::Listener(listener)) = self.sources.get_mut(token) else { return };
        let Some(accept) = listener.accept.take() else { return };
        let site =
            Site { kind: CallbackKind::Connection, place: listener.location, source: Some(ListenerId(token).into()) };
        self.call_source(
            site,
            accept,
            |accept, reactor| accept(reactor, socket),
            // Also after a panic: this connection is not served, but the next one is.
            |reactor, accept, _| {
                if let Some(Source::Listener(listener)) = reactor.sources.get_mut(token) {
                    listener.accept = Some(accept);
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
        if std::mem::replace(&mut listener.backing_off, true) {
            return;
        }
        let message = format!("could not accept a connection on {}: {error}", listener.address);
        let fault = Fault {
            label: self.callbacks.label(Some(ListenerId(token).into())),
            ..Fault::at(listener.location, "listener", message)
        };
        self.report(fault);
        self.set_accepting(token);
        self.after(ACCEPT_RETRY_DELAY, move |reactor| {
            if let Some(Source::Listener(listener)) = reactor.sources.get_mut(token) {
                listener.backing_off = false;
                reactor.set_accepting(token);
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
        let on = !listener.backing_off && !listener.paused && !self.budget_pauses_accepting();
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
