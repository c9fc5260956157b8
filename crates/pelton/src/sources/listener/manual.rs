//! Manual listeners: the caller decides when to accept, and gets the system's errors.

use std::collections::VecDeque;
use std::io;
use std::panic::Location;
use std::time::Duration;

use pelton_os::{Accepted, Address, Intake, ListenOptions, Socket, Token};

use super::{Callback, Listener, ListenerId};
use crate::reactor::source::Source;
use crate::sources::transport::Control;
use crate::{Error, Reactor};

/// The part of a listener that decides who accepts.
pub(super) struct Manual {
    pub(super) control: Control,
    /// Connections that the engine has accepted on its own and that were not fetched yet.
    pub(super) held: VecDeque<Socket>,
    /// The callback will be called in the next turn because of these.
    recalled: bool,
}

impl Default for Manual {
    fn default() -> Manual {
        Manual { control: Control::Reactor, held: VecDeque::new(), recalled: false }
    }
}

impl Reactor {
    /// Adopts a listening socket as a manual listener. It is paused until [`resume_accepting`](Reactor::resume_accepting).
    ///
    /// A manual listener leaves decisions to the caller, as the event loops of other languages need it. `acceptable` is
    /// called in each turn in which there is a connection to [accept](Reactor::accept). The caller may do that later, outside
    /// of the callback, and gets the system's errors. After an error such as a lack of descriptors the connection is
    /// still waiting: [`pause_accepting_for`](Reactor::pause_accepting_for) keeps the loop from spinning.
    ///
    /// The socket can be [borrowed](Socket::borrowed): then its owner closes it, after the listener was
    /// [ended](Reactor::end), which has happened when `end` returns. If the owner closes it earlier, and the engine can tell,
    /// `acceptable` is called a last time, accepting fails, and the listener ends.
    ///
    /// ```
    /// use pelton::{Reactor, Socket};
    /// use std::net::{TcpListener, TcpStream};
    /// use std::sync::Arc;
    ///
    /// let ours = Arc::new(TcpListener::bind("127.0.0.1:0")?);
    /// let mut reactor = Reactor::new()?;
    /// let id = reactor.adopt_manual_listener(Socket::borrowed(ours.clone()), |reactor, id| {
    ///     let accepted = reactor.accept(id).unwrap();
    ///     println!("a connection from {:?}", accepted.from);
    ///     reactor.stop();
    /// })?;
    /// reactor.resume_accepting(id);
    /// let _peer = TcpStream::connect(ours.local_addr()?)?;
    /// reactor.run()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn adopt_manual_listener(
        &mut self,
        socket: impl Into<Socket>,
        acceptable: impl FnMut(&mut Reactor, ListenerId) + 'static,
    ) -> Result<ListenerId, Error> {
        let socket = socket.into();
        self.add_manual_listener(Location::caller(), Callback::Manual(Box::new(acceptable)), None, |reactor, token| {
            reactor.engine.adopt_listener(token, socket)
        })
    }

    /// Listens on `address` as a [manual listener](Reactor::adopt_manual_listener).
    #[track_caller]
    pub fn listen_manually(
        &mut self,
        address: &Address,
        options: &ListenOptions,
        acceptable: impl FnMut(&mut Reactor, ListenerId) + 'static,
    ) -> Result<ListenerId, Error> {
        let callback = Callback::Manual(Box::new(acceptable));
        self.add_manual_listener(Location::caller(), callback, Some(address), |reactor, token| {
            reactor.engine.listen(token, address, options)
        })
    }

    fn add_manual_listener(
        &mut self,
        location: &'static Location<'static>,
        callback: Callback,
        address: Option<&Address>,
        start: impl FnOnce(&mut Reactor, Token) -> io::Result<()>,
    ) -> Result<ListenerId, Error> {
        let id = self.add_listener(location, callback, address, start)?;
        let control = Control::manual(&self.engine.accept_manually(id.0));
        if let Some(listener) = self.listener_mut(id.0) {
            listener.manual.control = control;
        }
        self.accept_if(id, Intake::Off);
        Ok(id)
    }

    /// Accepts one connection on a [manual](Reactor::adopt_manual_listener) listener. Fails like the system call: with
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if none is waiting. Fails with
    /// [`NotConnected`](io::ErrorKind::NotConnected) if there is no such listener, or if the loop was stopped.
    pub fn accept(&mut self, listener: ListenerId) -> io::Result<Accepted> {
        if self.check_takes_on().is_err() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let Some(found) = self.listener_mut(listener.0) else { return Err(io::ErrorKind::NotConnected.into()) };
        match found.manual.control {
            Control::Handler => self.engine.accept_one(listener.0),
            Control::HandlerFromHeld => {
                let socket = found.manual.held.pop_front().ok_or(io::ErrorKind::WouldBlock)?;
                self.set_accepting(listener.0);
                Ok(Accepted { socket, from: None })
            }
            Control::Reactor => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Stops accepting until [`resume_accepting`](Reactor::resume_accepting). The system keeps new connections waiting, as
    /// many as the backlog allows.
    pub fn pause_accepting(&mut self, listener: ListenerId) {
        self.accept_if(listener, Intake::Off);
    }

    /// Resumes accepting.
    pub fn resume_accepting(&mut self, listener: ListenerId) {
        self.accept_if(listener, Intake::On);
        self.report_held_connections(listener.0);
    }

    /// Accepts nothing for a while. A pause of this kind that is under way is not prolonged.
    ///
    /// It is for errors after which a connection stays in the backlog, such as a lack of descriptors: an immediate retry would
    /// fail again.
    pub fn pause_accepting_for(&mut self, listener: ListenerId, pause: Duration) {
        self.back_off(listener.0, pause);
    }

    pub(super) fn listener_mut(&mut self, token: Token) -> Option<&mut Listener> {
        match self.sources.get_mut(token) {
            Some(Source::Listener(listener)) => Some(listener),
            _ => None,
        }
    }

    /// Holds a connection that the engine has accepted on its own.
    pub(super) fn hold_connection(&mut self, token: Token, socket: Socket) {
        let Some(listener) = self.listener_mut(token) else { return };
        listener.manual.held.push_back(socket);
        // Stops accepting until the caller has fetched it.
        self.set_accepting(token);
        self.report_held_connections(token);
    }

    /// Accepts again after a pause.
    pub(super) fn resume_after_pause(&mut self, token: Token) {
        self.set_accepting(token);
        self.report_held_connections(token);
    }

    /// Reports held connections, now and in each turn until they are fetched.
    fn report_held_connections(&mut self, token: Token) {
        let reports = |listener: &mut Listener| {
            listener.accepts() && !listener.manual.held.is_empty() && !listener.manual.recalled
        };
        if !self.listener_mut(token).is_some_and(reports) {
            return;
        }
        if let Some(listener) = self.listener_mut(token) {
            listener.manual.recalled = true;
        }
        self.next_tick(move |reactor| {
            let Some(listener) = reactor.listener_mut(token) else { return };
            listener.manual.recalled = false;
            if listener.accepts() && !listener.manual.held.is_empty() {
                reactor.connection_is_acceptable(token);
                reactor.report_held_connections(token);
            }
        });
    }
}
