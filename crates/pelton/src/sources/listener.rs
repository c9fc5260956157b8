//! Listeners: where connections come in.

use std::io;
use std::panic::Location;
use std::time::Duration;

use pelton_os::{Address, Event, Intake, ListenOptions, Socket, SocketFile, Token};

use crate::reactor::callback::{CallbackKind, Site};
use crate::reactor::source::{Kind, Source};
use crate::sources::connection::Connection;
use crate::{Error, Fault, Reactor};

/// After accepting has failed, as for want of descriptors, it is tried again this much later.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Names a listener, to end it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(pub(crate) Token);

/// The listeners of a reactor, to find them among all its sources.
#[derive(Default)]
pub(crate) struct Listeners {
    tokens: Vec<Token>,
}

/// What is done with each connection that comes in.
pub(crate) type Accept = Box<dyn FnMut(&mut Reactor, Socket)>;

/// A listener, as the reactor keeps it.
pub(crate) struct Listener {
    place: &'static Location<'static>,
    /// `None` while it runs.
    accept: Option<Accept>,
    address: Address,
    /// The file of a Unix socket that is ours, and goes with the listener.
    file: Option<SocketFile>,
    /// Accepting has failed, and is tried again later.
    resting: bool,
    /// Those that came in have yet to be taken.
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
        reactor.unlisten(ListenerId(token));
    }
}

impl Reactor {
    /// Listens on `address`, and has each connection that comes in served by what `serve` makes for it. The address is an
    /// [`Address`], a [`SocketAddr`](std::net::SocketAddr), or a text: `127.0.0.1:80`, `[::1]:80`, `unix:/path`.
    ///
    /// A Unix socket's file that is left from earlier is replaced if nobody listens on it any more. If descriptors run out,
    /// connections are turned away, and accepting goes on a little later.
    ///
    /// A loop that was told to [stop](Reactor::stop) refuses with [`Error::Stopped`], before anything is bound.
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

    /// Listens as [`listen`](Reactor::listen) does, with [options](ListenOptions) such as the permissions of a Unix socket.
    #[track_caller]
    pub fn listen_with<C: Connection>(
        &mut self,
        address: &Address,
        options: &ListenOptions,
        serve: impl FnMut(&mut Reactor) -> C + 'static,
    ) -> Result<ListenerId, Error> {
        let place = Location::caller();
        self.listen_from(place, address, options, serving(place, serve))
    }

    /// Listens on `address`, and hands each connection that comes in to `accept`, as a bare socket: to
    /// [adopt](Reactor::adopt) it there, or to send it to another reactor.
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
        place: &'static Location<'static>,
        address: &Address,
        options: &ListenOptions,
        accept: Accept,
    ) -> Result<ListenerId, Error> {
        self.add_listener(place, accept, Some(address), |reactor, token| reactor.engine.listen(token, address, options))
    }

    /// Takes over a listening socket from elsewhere, such as one that a service manager has
    /// [passed on](crate::inherited_listeners). A Unix socket's file stays when it ends.
    #[track_caller]
    pub fn adopt_listener<C: Connection>(
        &mut self,
        socket: impl Into<Socket>,
        serve: impl FnMut(&mut Reactor) -> C + 'static,
    ) -> Result<ListenerId, Error> {
        let place = Location::caller();
        let socket = socket.into();
        self.add_listener(place, serving(place, serve), None, |reactor, token| {
            reactor.engine.adopt_listener(token, socket)
        })
    }

    fn add_listener(
        &mut self,
        place: &'static Location<'static>,
        accept: Accept,
        address: Option<&Address>,
        start: impl FnOnce(&mut Reactor, Token) -> io::Result<()>,
    ) -> Result<ListenerId, Error> {
        self.check_takes_on()?;
        let listener = Listener {
            place,
            accept: Some(accept),
            address: Address::Unnamed,
            file: None,
            resting: false,
            paused: false,
        };
        let token = self.sources.insert(Source::Listener(Box::new(listener)));
        let bound = start(self, token).and_then(|()| self.engine.local_address(token));
        match bound {
            Ok(bound) => {
                // One that is gone already is nobody's to remove.
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
                    None => "listen on a socket that was passed on".to_owned(),
                };
                Err(Error::system(doing, error))
            }
        }
    }

    /// The address that a listener is bound to, with the port that it was given if that was left open.
    pub fn listening_on(&self, listener: ListenerId) -> Option<&Address> {
        match self.sources.get(listener.0) {
            Some(Source::Listener(listener)) => Some(&listener.address),
            _ => None,
        }
    }

    /// Stops listening. Connections that came in stay. `false` if it has ended already.
    pub fn unlisten(&mut self, listener: ListenerId) -> bool {
        let Some(Source::Listener(found)) = self.sources.get(listener.0) else { return false };
        // The file is the parent's, if this is a forked child.
        if let Some(file) = found.file.clone().filter(|_| self.check_not_forked().is_ok()) {
            let place = found.place;
            self.remove_socket_file(&file, place, "listener");
        }
        self.callbacks.ended(listener);
        self.listeners.tokens.retain(|token| *token != listener.0);
        self.end_source(listener.0);
        true
    }

    /// Stops listening, everywhere.
    pub(crate) fn unlisten_all(&mut self) {
        for token in self.listeners.tokens.clone() {
            self.unlisten(ListenerId(token));
        }
    }

    fn connection_came_in(&mut self, token: Token, socket: Socket) {
        // It would be told of nothing any more: the socket is closed.
        if self.check_takes_on().is_err() {
            return;
        }
        let Some(Source::Listener(listener)) = self.sources.get_mut(token) else { return };
        let Some(accept) = listener.accept.take() else { return };
        let site =
            Site { kind: CallbackKind::Connection, place: listener.place, source: Some(ListenerId(token).into()) };
        self.call_source(
            site,
            accept,
            |accept, reactor| accept(reactor, socket),
            // Also after a panic: this connection is not served, and the next one is.
            |reactor, accept, _| {
                if let Some(Source::Listener(listener)) = reactor.sources.get_mut(token) {
                    listener.accept = Some(accept);
                }
                while let Some(token) = reactor.connections.take_newcomer() {
                    reactor.connection_is_open(token);
                }
            },
        );
    }

    /// Accepting has failed, most likely for want of descriptors or memory. It would fail again at once, so it rests.
    fn accepting_failed(&mut self, token: Token, error: &io::Error) {
        if is_out_of_descriptors(error) {
            if self.sources.any_over() {
                // Connections that are over give their descriptors back at the end of this turn. Then it is tried again.
                return;
            }
            self.engine.turn_away(token);
        }
        let Some(Source::Listener(listener)) = self.sources.get_mut(token) else { return };
        // Several may fail in one turn; they rest together.
        if std::mem::replace(&mut listener.resting, true) {
            return;
        }
        let message = format!("could not accept a connection on {}: {error}", listener.address);
        let fault = Fault {
            label: self.callbacks.label(Some(ListenerId(token).into())),
            ..Fault::at(listener.place, "listener", message)
        };
        self.report(fault);
        self.set_accepting(token);
        self.after(ACCEPT_AGAIN_AFTER, move |reactor| {
            if let Some(Source::Listener(listener)) = reactor.sources.get_mut(token) {
                listener.resting = false;
                reactor.set_accepting(token);
            }
        });
    }

    /// Has all listeners accept, or stop, according to what is wanted now.
    pub(crate) fn let_listeners_accept(&mut self) {
        for token in self.listeners.tokens.clone() {
            self.set_accepting(token);
        }
    }

    /// Has connections wait to be accepted, or no longer.
    pub(crate) fn pause_accepting(&mut self, listener: ListenerId, paused: bool) {
        if let Some(Source::Listener(found)) = self.sources.get_mut(listener.0) {
            found.paused = paused;
            self.set_accepting(listener.0);
        }
    }

    fn set_accepting(&mut self, token: Token) {
        let Some(Source::Listener(listener)) = self.sources.get(token) else { return };
        let on = !listener.resting && !listener.paused && !self.makes_newcomers_wait();
        if let Err(error) = self.engine.accept(token, Intake::on_if(on)) {
            self.report(Fault::new("listener", format_args!("could not pause or resume accepting: {error}")));
        }
    }

    /// Removes the file of a Unix socket, unless another has taken its place. The socket has to be open still.
    pub(crate) fn remove_socket_file(
        &mut self,
        file: &SocketFile,
        place: &'static Location<'static>,
        what: &'static str,
    ) {
        if let Err(error) = file.remove() {
            let path = file.path().display();
            self.report(Fault::at(
                place,
                what,
                format_args!("could not remove the file of a Unix socket, {path}: {error}"),
            ));
        }
    }
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Takes on each socket, to be served by what `serve` makes for it.
pub(crate) fn serving<C: Connection>(
    place: &'static Location<'static>,
    mut serve: impl FnMut(&mut Reactor) -> C + 'static,
) -> Accept {
    Box::new(move |reactor, socket| {
        let handler = Box::new(serve(reactor));
        match reactor.take_on(place, socket, handler) {
            // Its handler is told when this returns.
            Ok(id) => reactor.connections.add_newcomer(id),
            Err(error) => {
                reactor.report(Fault::at(
                    place,
                    "listener",
                    format_args!("a connection that came in is closed: {error}"),
                ));
            }
        }
    })
}
