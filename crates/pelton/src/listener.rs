//! Listeners: where connections come in.

use std::io;
use std::panic::Location;
use std::time::Duration;

use pelton_os::{Address, Socket, Token};

use crate::callback::{CallbackKind, Site};
use crate::connection::{Connection, Stream};
use crate::reactor::Source;
use crate::{Error, Reactor};

/// After accepting has failed, as for want of descriptors, it is tried again this much later.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Names a listener, to end it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListenerId(pub(crate) Token);

type Serve = Box<dyn FnMut(&mut Reactor) -> Box<dyn Connection>>;

/// A listener, as the reactor keeps it.
pub(crate) struct Listener {
    place: &'static Location<'static>,
    /// `None` while it runs.
    serve: Option<Serve>,
    address: Address,
    /// Accepting has failed, and is tried again later.
    pausing: bool,
}

impl Reactor {
    /// Listens on `address`, and has each connection that comes in served by what `serve` makes for it.
    ///
    /// A Unix socket's file that is left from earlier is replaced if nobody listens on it any more. If descriptors run out,
    /// connections are turned away, and accepting goes on a little later.
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
    /// let listener = reactor.listen(&"127.0.0.1:0".parse()?, |_| Echo)?;
    /// println!("echoing on {}", reactor.listening_on(listener).unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn listen<C: Connection>(
        &mut self,
        address: &Address,
        mut serve: impl FnMut(&mut Reactor) -> C + 'static,
    ) -> Result<ListenerId, Error> {
        self.check_not_forked()?;
        let place = Location::caller();
        let failed = |error| Error::system(format!("listen on {address}"), error);
        let socket = Socket::listen(address).map_err(failed)?;
        let address = socket.local_address().map_err(failed)?;
        let serve: Serve = Box::new(move |reactor| Box::new(serve(reactor)));
        let listener = Listener { place, serve: Some(serve), address: address.clone(), pausing: false };
        let token = self.sources.insert(Source::Listener(Box::new(listener))).token();
        match self.engine.listen(token, socket) {
            Ok(()) => Ok(ListenerId(token)),
            Err(error) => {
                self.sources.remove(token.into());
                Err(Error::system(format!("listen on {address}"), error))
            }
        }
    }

    /// The address that a listener is bound to, with the port that it was given if that was left open.
    pub fn listening_on(&self, listener: ListenerId) -> Option<&Address> {
        match self.sources.get(listener.0.into()) {
            Some(Source::Listener(listener)) => Some(&listener.address),
            _ => None,
        }
    }

    /// Stops listening. Connections that came in stay. `false` if it has ended already.
    pub fn unlisten(&mut self, listener: ListenerId) -> bool {
        let Some(Source::Listener(found)) = self.sources.get(listener.0.into()) else { return false };
        if let Address::Unix(path) = &found.address
            && let Err(error) = std::fs::remove_file(path)
        {
            tracing::warn!(%error, path = %path.display(), "could not remove the file of a Unix socket");
        }
        self.callbacks.ended(listener);
        self.end_source(listener.0);
        true
    }

    pub(crate) fn connection_came_in(&mut self, token: Token, socket: Socket) {
        let Some(Source::Listener(listener)) = self.sources.get_mut(token.into()) else { return };
        let Some(mut serve) = listener.serve.take() else { return };
        let place = listener.place;
        let id = ListenerId(token);
        let site = Site { kind: CallbackKind::Connection, place, source: Some(id.into()) };
        let mut handler = None;
        let outcome = self.call(site, |reactor| handler = Some(serve(reactor)));
        if let Some(Source::Listener(listener)) = self.sources.get_mut(token.into()) {
            listener.serve = Some(serve);
        }
        match (outcome, handler) {
            (Ok(()), Some(handler)) => {
                let stream = Stream::new(place, handler, false);
                let connection = self.sources.insert(Source::Connection(Box::new(stream))).token();
                match self.engine.adopt(connection, socket) {
                    Ok(()) => self.connection_is_open(connection),
                    Err(error) => {
                        self.sources.remove(connection.into());
                        tracing::warn!(%error, "could not take on a connection");
                    }
                }
            }
            // This connection is not served; the listener is not to blame for the next.
            (Err(panic), _) => {
                let label = self.callbacks.label(site.source);
                self.fault(site, label, panic);
            }
            (Ok(()), None) => {}
        }
    }

    /// Accepting has failed, most likely for want of descriptors or memory. It would fail again at once, so it rests.
    pub(crate) fn accepting_failed(&mut self, token: Token, error: &io::Error) {
        let Some(Source::Listener(listener)) = self.sources.get_mut(token.into()) else { return };
        // Several may fail in one turn; they rest together.
        if std::mem::replace(&mut listener.pausing, true) {
            return;
        }
        tracing::warn!(%error, address = %listener.address, "could not accept a connection");
        self.set_accepting(token, false);
        self.after(ACCEPT_AGAIN_AFTER, move |reactor| {
            if let Some(Source::Listener(listener)) = reactor.sources.get_mut(token.into()) {
                listener.pausing = false;
                reactor.set_accepting(token, true);
            }
        });
    }

    fn set_accepting(&mut self, token: Token, on: bool) {
        if let Err(error) = self.engine.accept(token, on) {
            tracing::error!(%error, "could not pause or resume accepting");
        }
    }
}
