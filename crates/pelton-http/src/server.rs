//! Servers: a handler, its settings, and what its connections share.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use pelton::{Address, ConnectionId, Error, Handle, ListenerId, Reactor};

use crate::census::Census;
use crate::connection::{Busy, HttpConnection};
use crate::exchange::{Command, ExchangeToken, Flow};
use crate::stats::Counts;
use crate::wire::{Date, Notes};
use crate::{Handler, Response, Settings};

/// While a callback of a connection runs, so much may be left for it before its stream counts as full.
const LEFT_BEFORE_FULL: usize = 64 * 1024;

/// How many connections' books are kept for those that need some next.
const SPARE_BOOKS: usize = 64;

/// Serves HTTP on connections of one reactor. Clones are the same server.
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
    /// Has requests answered by `handler`, with the default [settings](Settings).
    pub fn new(handler: impl Handler) -> Server {
        Server::with_settings(handler, Settings::default())
    }

    /// Has requests answered by `handler`.
    pub fn with_settings(handler: impl Handler, settings: Settings) -> Server {
        Server::sharing(handler, settings, &Census::default())
    }

    /// Has requests answered by `handler`; connections count together with those of all servers that share the `census`.
    pub fn sharing(handler: impl Handler, settings: Settings, census: &Census) -> Server {
        Server { shared: Rc::new(Shared::new(Box::new(handler), settings, census.clone())) }
    }

    /// Listens on `address`, which may be a text, as with [`Reactor::listen`].
    #[track_caller]
    pub fn listen(
        &self,
        reactor: &mut Reactor,
        address: impl TryInto<Address, Error: Into<Error>>,
    ) -> Result<ListenerId, Error> {
        let server = self.clone();
        reactor.listen(address, move |_| server.connection())
    }

    /// What serves one connection, for those who listen, or come by connections, in another way. All have to be on the same
    /// reactor.
    pub fn connection(&self) -> HttpConnection {
        HttpConnection::new(self.shared.clone())
    }

    /// How many connections it has.
    pub fn connections(&self) -> usize {
        self.shared.connections.get()
    }
}

/// What the connections of a server share. What each needs only while it runs is here, so that idle ones are small.
pub(crate) struct Shared {
    pub(crate) handler: Box<dyn Handler>,
    pub(crate) settings: Settings,
    pub(crate) handle: OnceCell<Handle>,
    pub(crate) date: RefCell<Date>,
    /// What is written is put together here.
    out: Cell<Vec<u8>>,
    /// What is noted of the head at hand.
    pub(crate) notes: Cell<Notes>,
    #[allow(clippy::vec_box, reason = "they go in and out as boxes")]
    books: RefCell<Vec<Box<Busy>>>,
    /// The request whose handler is running, if that was not called by another's.
    pub(crate) running: Cell<Option<(ConnectionId, u32)>>,
    /// The answer to it.
    pub(crate) answer: Cell<Option<Response>>,
    /// What connections were told while they ran.
    left: RefCell<VecDeque<(ConnectionId, u32, Command)>>,
    left_bytes: Cell<usize>,
    connections: Cell<usize>,
    /// Connections that were turned away and are not closed yet, the oldest first.
    turned_away: RefCell<VecDeque<ConnectionId>>,
    census: Census,
    pub(crate) counts: Counts,
    /// Where clients are, of those connections of which somebody has asked: to ask the system takes longer.
    peers: RefCell<HashMap<ConnectionId, Address>>,
    /// Connections that are another handler's now.
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
            running: Cell::default(),
            answer: Cell::default(),
            left: RefCell::default(),
            left_bytes: Cell::default(),
            connections: Cell::default(),
            turned_away: RefCell::default(),
            census,
            counts: Counts::default(),
            peers: RefCell::default(),
            handed_over: RefCell::default(),
        }
    }

    /// Leaves a command for a connection that is running.
    #[inline]
    pub(crate) fn leave(&self, connection: ConnectionId, sequence: u32, command: Command) -> Flow {
        if let Command::Data(data) = &command {
            let length = usize::try_from(data.len()).unwrap_or(usize::MAX);
            self.left_bytes.set(self.left_bytes.get().saturating_add(length));
        }
        self.left.borrow_mut().push_back((connection, sequence, command));
        if self.left_bytes.get() > LEFT_BEFORE_FULL { Flow::Full } else { Flow::Ready }
    }

    /// The first command that was left for a connection.
    pub(crate) fn take_left(&self, connection: ConnectionId) -> Option<(u32, Command)> {
        let mut left = self.left.borrow_mut();
        if left.is_empty() {
            return None;
        }
        let first = left.iter().position(|(to, ..)| *to == connection)?;
        let (_, sequence, command) = left.remove(first)?;
        if left.is_empty() {
            self.left_bytes.set(0);
        }
        Some((sequence, command))
    }

    /// The handler of a request is about to be called. Says whether its answer will be [here](Shared::end) when it returns: not
    /// if it is called from within another one, that had its connection go on.
    #[inline]
    pub(crate) fn begin(&self, token: &ExchangeToken) -> bool {
        let outermost = self.running.get().is_none();
        if outermost {
            self.running.set(Some((token.connection, token.sequence)));
        }
        outermost
    }

    /// The handler has returned. Gives its answer, if there is one already.
    #[inline]
    pub(crate) fn end(&self) -> Option<Response> {
        self.running.set(None);
        self.answer.take()
    }

    /// Whether nothing was left for any connection.
    #[inline]
    pub(crate) fn nothing_left(&self) -> bool {
        self.left.borrow().is_empty()
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

    /// Counts a connection that has come in. Says whether there is room for it.
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

    /// A connection that was admitted is over.
    pub(crate) fn dismiss(&self, id: ConnectionId) {
        self.connections.set(self.connections.get() - 1);
        let peer = self.forget_peer(id);
        let counted = peer.filter(|_| self.settings.connections_per_address.is_some());
        self.census.leave(counted.and_then(|peer| ip_of(&peer)));
    }

    /// A connection that was not admitted is open until its client has read why. Says which one has to be closed at once, because
    /// there are too many of these.
    pub(crate) fn linger(&self, id: ConnectionId) -> Option<ConnectionId> {
        let mut turned_away = self.turned_away.borrow_mut();
        turned_away.push_back(id);
        // At least the one at hand has to be told.
        if turned_away.len() > self.settings.turned_away.max(1) { turned_away.pop_front() } else { None }
    }

    /// A connection that was not admitted is over.
    pub(crate) fn lingered(&self, id: ConnectionId) {
        self.turned_away.borrow_mut().retain(|other| *other != id);
    }

    /// Where the client of a connection is: `ask` is asked once.
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
