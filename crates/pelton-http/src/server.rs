//! Servers, and the state that their connections share.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use pelton::{Address, ConnectionId, Error, Handle, ListenerId, Reactor};

use crate::census::Census;
use crate::connection::{Busy, HttpConnection};
use crate::inbox::Inbox;
use crate::stats::Counts;
use crate::wire::{Date, Notes};
use crate::{Handler, Settings};

/// How many `Busy` states are kept for reuse.
const SPARE_BOOKS: usize = 64;

/// Serves HTTP on connections of one reactor. Clones refer to the same server.
///
/// ```
/// use pelton::Reactor;
/// use pelton_http::{Server, plain};
///
/// let mut reactor = Reactor::new()?;
/// let server = Server::new(plain(|_| "hello\n"));
/// let listener = server.listen(&mut reactor, "127.0.0.1:0")?;
/// println!("http://{}/", reactor.listening_on(listener).unwrap());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Server {
    pub(crate) shared: Rc<Shared>,
}

impl Server {
    /// Creates a server that answers requests with `handler`, with the default [settings](Settings).
    pub fn new(handler: impl Handler) -> Server {
        Server::with_settings(handler, Settings::default())
    }

    /// Creates a server that answers requests with `handler`.
    pub fn with_settings(handler: impl Handler, settings: Settings) -> Server {
        Server::sharing(handler, settings, &Census::default())
    }

    /// Creates a server whose connections are counted together with those of all servers that share the `census`.
    pub fn sharing(handler: impl Handler, settings: Settings, census: &Census) -> Server {
        Server { shared: Rc::new(Shared::new(Box::new(handler), settings, census.clone())) }
    }

    /// Listens on `address`, which may be a string, as with [`Reactor::listen`].
    #[track_caller]
    pub fn listen(
        &self,
        reactor: &mut Reactor,
        address: impl TryInto<Address, Error: Into<Error>>,
    ) -> Result<ListenerId, Error> {
        let server = self.clone();
        reactor.listen(address, move |_| server.connection())
    }

    /// Creates the handler for one connection that was accepted or opened in another way. All connections of a server must be on
    /// the same reactor.
    pub fn connection(&self) -> HttpConnection {
        HttpConnection::new(self.shared.clone())
    }

    /// The number of connections.
    pub fn connections(&self) -> usize {
        self.shared.connections.get()
    }
}

/// The state that the connections of a server share. It includes the buffers that a connection needs only while it runs, so
/// idle ones are small.
pub(crate) struct Shared {
    pub(crate) handler: Box<dyn Handler>,
    pub(crate) settings: Settings,
    pub(crate) handle: OnceCell<Handle>,
    pub(crate) date: RefCell<Date>,
    /// The output buffer of the running connection.
    out: Cell<Vec<u8>>,
    /// The parsed fields of the current head.
    pub(crate) notes: Cell<Notes>,
    #[allow(clippy::vec_box, reason = "connections hold them in boxes")]
    books: RefCell<Vec<Box<Busy>>>,
    pub(crate) inbox: Inbox,
    connections: Cell<usize>,
    /// Refused connections that are not closed yet, oldest first.
    turned_away: RefCell<VecDeque<ConnectionId>>,
    census: Census,
    pub(crate) counts: Counts,
    /// Cached client addresses, to avoid a system call.
    peers: RefCell<HashMap<ConnectionId, Address>>,
    /// Connections that were handed over to another handler.
    pub(crate) handed_over: RefCell<HashSet<ConnectionId>>,
}

impl Shared {
    fn new(handler: Box<dyn Handler>, settings: Settings, census: Census) -> Shared {
        Shared {
            handler,
            settings,
            handle: OnceCell::new(),
            date: RefCell::default(),
            out: Cell::default(),
            notes: Cell::default(),
            books: RefCell::default(),
            inbox: Inbox::default(),
            connections: Cell::default(),
            turned_away: RefCell::default(),
            census,
            counts: Counts::default(),
            peers: RefCell::default(),
            handed_over: RefCell::default(),
        }
    }

    pub(crate) fn take_out(&self) -> Vec<u8> {
        self.out.take()
    }

    pub(crate) fn put_out(&self, mut out: Vec<u8>) {
        out.clear();
        self.out.set(out);
    }

    pub(crate) fn take_books(&self) -> Box<Busy> {
        self.books.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn put_books(&self, mut books: Box<Busy>) {
        books.clear();
        let mut spare = self.books.borrow_mut();
        if spare.len() < SPARE_BOOKS {
            spare.push(books);
        }
    }

    /// Counts a new connection. Returns whether it is within the limits.
    pub(crate) fn admit(&self, id: ConnectionId, peer: impl FnOnce() -> io::Result<Address>) -> bool {
        let from = self.settings.connections_per_address.and_then(|most| {
            let address = self.peer(id, peer).ok()?;
            Some((ip_of(&address)?, most))
        });
        let admitted = self.census.enter(self.settings.connections, from);
        if admitted {
            self.connections.set(self.connections.get() + 1);
            self.counts.count(|stats| stats.accepted += 1);
        } else {
            self.forget_peer(id);
        }
        admitted
    }

    /// Removes an admitted connection.
    pub(crate) fn dismiss(&self, id: ConnectionId) {
        self.connections.set(self.connections.get() - 1);
        let peer = self.forget_peer(id);
        let counted = peer.filter(|_| self.settings.connections_per_address.is_some());
        self.census.leave(counted.and_then(|peer| ip_of(&peer)));
    }

    /// Adds a refused connection that stays open until its client has read the refusal. Returns the one to close now if there are
    /// too many.
    pub(crate) fn linger(&self, id: ConnectionId) -> Option<ConnectionId> {
        let mut turned_away = self.turned_away.borrow_mut();
        turned_away.push_back(id);
        // The current one must at least get its refusal.
        if turned_away.len() > self.settings.turned_away.max(1) { turned_away.pop_front() } else { None }
    }

    /// Removes a refused connection.
    pub(crate) fn lingered(&self, id: ConnectionId) {
        self.turned_away.borrow_mut().retain(|other| *other != id);
    }

    /// The client's address. Calls `ask` at most once per connection.
    pub(crate) fn peer(&self, id: ConnectionId, ask: impl FnOnce() -> io::Result<Address>) -> io::Result<Address> {
        if let Some(peer) = self.peers.borrow().get(&id) {
            return Ok(peer.clone());
        }
        let peer = ask()?;
        self.peers.borrow_mut().insert(id, peer.clone());
        Ok(peer)
    }

    pub(crate) fn forget_peer(&self, id: ConnectionId) -> Option<Address> {
        let mut peers = self.peers.borrow_mut();
        if peers.is_empty() { None } else { peers.remove(&id) }
    }
}

fn ip_of(address: &Address) -> Option<IpAddr> {
    match address {
        Address::Tcp(address) => Some(address.ip()),
        _ => None,
    }
}
