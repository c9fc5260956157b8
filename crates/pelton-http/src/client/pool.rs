//! The connections of a client on one reactor, and the calls that wait for them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use pelton::{ConnectionId, Handle, Reactor, Reason};

use super::Settings;
use super::builder::Config;
use super::call::{Call, Place};
use super::connection::{Busy, ClientConnection};
use super::error::ErrorKind;
use super::route::Route;
use super::stats::ClientStats;

/// The maximum number of unused states that are kept for later requests.
const SPARE: usize = 64;

/// The maximum size of a kept buffer for decompressed data, in bytes.
const LARGEST_SCRATCH: usize = 256 * 1024;

/// While other origins wait for a connection, one serves this many requests of its own origin before it is closed for them.
const SHARE: u32 = 32;

/// How many connections to an origin are opened at a time. A burst of requests must not fill the lane on which names are looked up,
/// nor the backlog of the server.
const OPENING: usize = 64;

/// The clients of a reactor.
#[derive(Default)]
pub(super) struct Clients(Vec<Rc<Shared>>);

impl Clients {
    pub(super) fn find(&self, config: &Arc<Config>) -> Option<Rc<Shared>> {
        self.0.iter().find(|shared| Arc::ptr_eq(&shared.config, config)).cloned()
    }

    pub(super) fn add(&mut self, config: &Arc<Config>, handle: Handle) -> Rc<Shared> {
        // Clients that are gone, with all their connections.
        self.0.retain(|shared| Arc::strong_count(&shared.config) > 1 || shared.pool.borrow().open > 0);
        let shared = Rc::new(Shared::new(config.clone(), handle));
        self.0.push(shared.clone());
        shared
    }
}

/// The state of a client on one reactor.
pub(super) struct Shared {
    config: Arc<Config>,
    handle: Handle,
    pool: RefCell<Pool>,
    #[expect(clippy::vec_box, reason = "connections hold them boxed")]
    spare_busy: RefCell<Vec<Box<Busy>>>,
    spare_calls: RefCell<Vec<Rc<Call>>>,
    /// In place of the call of an unused state.
    nobody: Rc<Call>,
    pub(super) stats: Cell<ClientStats>,
    /// Memory for decompressed data.
    pub(super) scratch: Cell<Vec<u8>>,
}

#[derive(Default)]
struct Pool {
    by_name: HashMap<Box<str>, usize>,
    origins: Vec<Option<Origin>>,
    free: Vec<usize>,
    /// The origin of the latest request: most requests go to the same one.
    latest: usize,
    /// Connections, open or opening.
    open: usize,
    idle: usize,
    /// Calls that wait.
    waiting: usize,
    /// Origins whose calls wait because all connections are in use.
    starved: VecDeque<usize>,
}

struct Origin {
    name: Box<str>,
    route: Rc<Route>,
    /// The connections that are not in use, the latest last.
    idle: Vec<ConnectionId>,
    open: usize,
    /// Connections that will soon take a waiting call: they are opening, or finish a response.
    coming: usize,
    waiting: VecDeque<Rc<Call>>,
    is_starved: bool,
}

impl Pool {
    /// Finds or adds the origin of a URL.
    fn origin_of(&mut self, url: &super::Url, config: &Config) -> usize {
        let name = url.origin();
        if let Some(Some(origin)) = self.origins.get(self.latest)
            && *origin.name == *name
        {
            return self.latest;
        }
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None => self.add(name, Rc::new(Route::to(url, config))),
        };
        self.latest = index;
        index
    }

    fn add(&mut self, name: &str, route: Rc<Route>) -> usize {
        let origin = Origin {
            name: name.into(),
            route,
            idle: Vec::new(),
            open: 0,
            coming: 0,
            waiting: VecDeque::new(),
            is_starved: false,
        };
        let index = self.free.pop().unwrap_or(self.origins.len());
        if index == self.origins.len() {
            self.origins.push(Some(origin));
        } else {
            self.origins[index] = Some(origin);
        }
        self.by_name.insert(name.into(), index);
        index
    }

    fn origin(&mut self, index: usize) -> Option<&mut Origin> {
        self.origins.get_mut(index)?.as_mut()
    }

    /// Removes an origin that is not in use.
    fn remove_unused(&mut self, index: usize) {
        if let Some(Some(origin)) = self.origins.get(index)
            && origin.open == 0
            && origin.waiting.is_empty()
            && let Some(origin) = self.origins[index].take()
        {
            self.by_name.remove(&origin.name);
            self.free.push(index);
        }
    }

    fn pop_idle(&mut self, index: usize) -> Option<ConnectionId> {
        let id = self.origin(index)?.idle.pop()?;
        self.idle -= 1;
        Some(id)
    }

    /// Takes the call that has waited longest. Calls that were cancelled or have failed are skipped.
    fn pop_waiting(&mut self, index: usize) -> Option<Rc<Call>> {
        loop {
            let call = self.origin(index)?.waiting.pop_front()?;
            self.waiting -= 1;
            if call.place.get() == Place::Waiting {
                return Some(call);
            }
        }
    }

    /// Drops calls at the front that are over, and returns whether more connections are needed.
    fn needs_more(&mut self, index: usize) -> bool {
        let Some(origin) = self.origins.get_mut(index).and_then(Option::as_mut) else { return false };
        while origin.waiting.front().is_some_and(|call| call.is_over()) {
            origin.waiting.pop_front();
            self.waiting -= 1;
        }
        origin.waiting.len() > origin.coming
    }

    /// Takes the idle connection that was unused longest, of any origin but this one.
    fn pop_idle_elsewhere(&mut self, index: usize) -> Option<ConnectionId> {
        if self.idle == 0 {
            return None;
        }
        let others = self.origins.iter_mut().enumerate().filter(|(other, _)| *other != index);
        let id = others.flat_map(|(_, origin)| origin).find(|origin| !origin.idle.is_empty())?.idle.remove(0);
        self.idle -= 1;
        Some(id)
    }
}

impl Shared {
    fn new(config: Arc<Config>, handle: Handle) -> Shared {
        Shared {
            config,
            handle,
            pool: RefCell::default(),
            spare_busy: RefCell::default(),
            spare_calls: RefCell::default(),
            nobody: Rc::default(),
            stats: Cell::default(),
            scratch: Cell::default(),
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.config.settings
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn add(&self, change: impl FnOnce(&mut ClientStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    pub(super) fn count(&self) -> (usize, usize) {
        let pool = self.pool.borrow();
        (pool.open, pool.idle)
    }

    pub(super) fn route(&self, origin: usize) -> Option<Rc<Route>> {
        self.pool.borrow_mut().origin(origin).map(|origin| origin.route.clone())
    }

    /// Gives a call to an idle connection, or lets it wait for one.
    pub(super) fn submit(self: &Rc<Self>, reactor: &mut Reactor, call: Rc<Call>) {
        let index = {
            let state = call.state.borrow();
            let Some(url) = state.parts.as_ref().and_then(|parts| parts.url.as_ref()) else { return };
            self.pool.borrow_mut().origin_of(url, &self.config)
        };
        loop {
            let Some(id) = self.pool.borrow_mut().pop_idle(index) else { break };
            let start = |connection: &mut ClientConnection, io: &mut pelton::Io<'_>| connection.start(io, call.clone());
            // A connection that has just ended has not left the pool yet.
            if reactor.visit(id, start).is_some() {
                return;
            }
        }
        let most = self.settings().waiting;
        if self.pool.borrow().waiting >= most {
            self.pool.borrow_mut().remove_unused(index);
            return self.fail_later(reactor, call, ErrorKind::Busy(most));
        }
        call.wait(reactor);
        {
            let pool = &mut *self.pool.borrow_mut();
            pool.waiting += 1;
            if let Some(origin) = pool.origin(index) {
                origin.waiting.push_back(call);
            }
        }
        self.supply(reactor, index);
    }

    /// Opens as many connections as an origin's waiting calls need and the limits allow.
    pub(super) fn supply(self: &Rc<Self>, reactor: &mut Reactor, index: usize) {
        loop {
            let route = {
                let pool = &mut *self.pool.borrow_mut();
                if !pool.needs_more(index) {
                    return pool.remove_unused(index);
                }
                let (open, most) = (pool.open, self.settings().connections.max(1));
                let Some(origin) = pool.origin(index) else { return };
                // The next one is opened when one of these is established, or fails.
                if origin.open >= self.settings().per_origin.max(1) || origin.coming >= OPENING {
                    return;
                }
                if open >= most {
                    if !std::mem::replace(&mut origin.is_starved, true) {
                        pool.starved.push_back(index);
                    }
                    let unused = pool.pop_idle_elsewhere(index);
                    // When it has closed, the starved origins are supplied.
                    return self.close(reactor, unused);
                }
                origin.open += 1;
                origin.coming += 1;
                let route = origin.route.clone();
                pool.open += 1;
                route
            };
            let handler = ClientConnection::new(self.clone(), index);
            match reactor.connect_to(&route.endpoint, handler) {
                Ok(id) => {
                    reactor.visit(id, |connection: &mut ClientConnection, io| connection.connecting(io));
                }
                Err(error) => {
                    let call = self.connection_failed(index);
                    self.connection_closed(index);
                    if let Some(call) = call {
                        let kind = match error {
                            pelton::Error::Stopped => ErrorKind::Stopped,
                            error => ErrorKind::Connect(Reason::Failed(std::io::Error::other(error))),
                        };
                        self.fail_later(reactor, call, kind);
                    }
                }
            }
        }
    }

    fn close(&self, reactor: &mut Reactor, id: Option<ConnectionId>) {
        if let Some(mut io) = id.and_then(|id| reactor.connection(id)) {
            io.close();
        }
    }

    /// Fails a call, but not before the method returns that started it.
    pub(super) fn fail_later(&self, reactor: &mut Reactor, call: Rc<Call>, kind: ErrorKind) {
        reactor.next_tick(move |reactor| call.fail(reactor, kind));
    }

    /// Whether a connection that has finished a response should be closed, so that another origin gets its place.
    pub(super) fn must_yield(&self, index: usize, requests: u32) -> bool {
        let pool = &mut *self.pool.borrow_mut();
        while let Some(starved) = pool.starved.front().copied() {
            if pool.needs_more(starved) {
                let has_waiting = pool.origin(index).is_some_and(|origin| !origin.waiting.is_empty());
                return starved != index && (!has_waiting || requests.is_multiple_of(SHARE));
            }
            pool.starved.pop_front();
            if let Some(origin) = pool.origin(starved) {
                origin.is_starved = false;
            }
        }
        false
    }

    /// A connection can take the next call. Returns it.
    pub(super) fn came(&self, index: usize) -> Option<Rc<Call>> {
        let pool = &mut *self.pool.borrow_mut();
        if let Some(origin) = pool.origin(index) {
            origin.coming -= 1;
        }
        pool.pop_waiting(index)
    }

    /// A connection is about to finish a response, and will call [`came`](Shared::came).
    pub(super) fn comes(&self, index: usize) {
        if let Some(origin) = self.pool.borrow_mut().origin(index) {
            origin.coming += 1;
        }
    }

    /// A connection that was about to take a call is closed instead.
    pub(super) fn comes_not(&self, index: usize) {
        if let Some(origin) = self.pool.borrow_mut().origin(index) {
            origin.coming -= 1;
        }
    }

    /// A connection was not established. Returns the call that fails with it.
    pub(super) fn connection_failed(&self, index: usize) -> Option<Rc<Call>> {
        self.came(index)
    }

    pub(super) fn is_idle(&self, index: usize, id: ConnectionId) {
        let pool = &mut *self.pool.borrow_mut();
        if let Some(origin) = pool.origin(index) {
            origin.idle.push(id);
            pool.idle += 1;
        }
    }

    /// An idle connection is not available any more.
    pub(super) fn leaves(&self, index: usize, id: ConnectionId) {
        let pool = &mut *self.pool.borrow_mut();
        let Some(origin) = pool.origin(index) else { return };
        if let Some(position) = origin.idle.iter().rposition(|other| *other == id) {
            origin.idle.remove(position);
            pool.idle -= 1;
        }
    }

    fn connection_closed(&self, index: usize) {
        let pool = &mut *self.pool.borrow_mut();
        pool.open -= 1;
        if let Some(origin) = pool.origin(index) {
            origin.open -= 1;
        }
    }

    /// A connection has ended. Its place goes to calls that wait.
    pub(super) fn closed(self: &Rc<Self>, reactor: &mut Reactor, index: usize) {
        self.connection_closed(index);
        // Those that waited longest for a place come first.
        let starved = {
            let pool = &mut *self.pool.borrow_mut();
            let starved = pool.starved.pop_front();
            if let Some(origin) = starved.and_then(|starved| pool.origin(starved)) {
                origin.is_starved = false;
            }
            starved
        };
        if let Some(starved) = starved {
            self.supply(reactor, starved);
        }
        self.supply(reactor, index);
    }

    pub(super) fn close_idle(&self, reactor: &mut Reactor) {
        let idle: Vec<ConnectionId> = {
            let pool = &mut *self.pool.borrow_mut();
            pool.idle = 0;
            pool.origins.iter_mut().flatten().flat_map(|origin| origin.idle.drain(..)).collect()
        };
        for id in idle {
            self.close(reactor, Some(id));
        }
    }

    /// Makes a connection look at its call, from code without access to the reactor.
    pub(super) fn post_check(&self, id: ConnectionId) {
        // If the loop is gone, so are its connections.
        let _ = self.handle.post(move |reactor| {
            reactor.visit(id, |connection: &mut ClientConnection, io| connection.check(io));
        });
    }
}

/// Memory for later requests.
impl Shared {
    pub(super) fn keep_scratch(&self, scratch: Vec<u8>) {
        if scratch.capacity() <= LARGEST_SCRATCH {
            self.scratch.set(scratch);
        }
    }

    pub(super) fn take_busy(&self) -> Box<Busy> {
        self.spare_busy.borrow_mut().pop().unwrap_or_else(|| Box::new(Busy::new(self.settings().response)))
    }

    pub(super) fn keep_busy(&self, mut busy: Box<Busy>) {
        busy.clear();
        let spare = &mut *self.spare_busy.borrow_mut();
        if spare.len() < SPARE {
            spare.push(busy);
        }
    }

    pub(super) fn take_call(&self) -> Rc<Call> {
        self.spare_calls.borrow_mut().pop().unwrap_or_default()
    }

    /// Takes the call out of a state.
    pub(super) fn take_out(&self, call: &mut Rc<Call>) -> Rc<Call> {
        std::mem::replace(call, self.nobody.clone())
    }

    /// Keeps the memory of a finished call, if nobody else holds it.
    pub(super) fn keep_call(&self, call: Rc<Call>) {
        if Rc::strong_count(&call) == 1 && Rc::weak_count(&call) == 0 {
            call.clear();
            let spare = &mut *self.spare_calls.borrow_mut();
            if spare.len() < SPARE {
                spare.push(call);
            }
        }
    }
}
