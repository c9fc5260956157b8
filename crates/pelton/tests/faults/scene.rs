//! The harness for all tests of faults.

use std::cell::{Cell, Ref, RefCell};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pelton::{Address, Chunk, Connection, ConnectionId, EventLoop, Io, ListenerId, Reactor, Reason};
use pelton_testing::{DEADLINE, On, descriptors, poll, run_until};

pub(crate) const RESET: &str = "closed: reset by the other side";
pub(crate) const FINISHED: &str = "closed: finished by the other side";
pub(crate) const LOCAL: &str = "closed: closed by this side";
pub(crate) const PANICKED: &str = "closed: its handler panicked";

/// The message of panics that are part of a test.
pub(crate) const ON_PURPOSE: &str = "on purpose";

/// A callback of a handler.
pub(crate) enum Moment<'a> {
    Opened,
    Received(&'a [u8]),
    Drained,
    PeerFinished,
}

/// The callbacks of a handler, and the received data.
#[derive(Default)]
pub(crate) struct Story {
    /// In order; consecutive chunks are one entry, however the network split them.
    pub(crate) told: Vec<String>,
    /// The number of bytes received, and the first of them.
    pub(crate) bytes: usize,
    pub(crate) received: Vec<u8>,
    pub(crate) id: Option<ConnectionId>,
}

impl Story {
    pub(crate) fn is_over(&self) -> bool {
        self.told.last().is_some_and(|last| last.starts_with("closed"))
    }

    fn add(&mut self, what: &str) {
        if what != "received" || self.told.last().is_none_or(|last| last != "received") {
            self.told.push(what.to_owned());
        }
    }
}

/// How many bytes of each story are kept. More would hide the memory that connections use.
const KEPT: usize = 10_000;

type AtTheEnd = Box<dyn FnMut(&mut Reactor, usize)>;

/// All stories, in the order of creation.
#[derive(Default)]
pub(crate) struct Cast {
    stories: RefCell<Vec<Story>>,
    /// Violated guarantees. A failed assertion in a callback would only close its connection.
    wrong: RefCell<Vec<String>>,
    at_the_end: RefCell<Option<AtTheEnd>>,
    /// The number of handlers that have not been dropped.
    alive: Cell<usize>,
}

impl Cast {
    pub(crate) fn story(&self, number: usize) -> Ref<'_, Story> {
        Ref::map(self.stories.borrow(), |stories| &stories[number])
    }

    pub(crate) fn len(&self) -> usize {
        self.stories.borrow().len()
    }

    /// The number of ended connections.
    pub(crate) fn over(&self) -> usize {
        self.stories.borrow().iter().filter(|story| story.is_over()).count()
    }

    /// The number of bytes that all connections have received.
    pub(crate) fn received(&self) -> usize {
        self.stories.borrow().iter().map(|story| story.bytes).sum()
    }

    pub(crate) fn ids(&self) -> Vec<ConnectionId> {
        self.stories.borrow().iter().filter_map(|story| story.id).collect()
    }

    /// Sets what every handler does in `closed`. The argument is its number.
    pub(crate) fn at_the_end(&self, act: impl FnMut(&mut Reactor, usize) + 'static) {
        *self.at_the_end.borrow_mut() = Some(Box::new(act));
    }

    fn tell(&self, number: usize, what: &str) {
        let mut stories = self.stories.borrow_mut();
        if stories[number].is_over() {
            self.wrong.borrow_mut().push(format!("{number} was told {what:?} after {:?}", stories[number].told));
        }
        stories[number].add(what);
    }
}

/// A handler that records its callbacks and runs the test's closure.
pub(crate) struct Actor<A> {
    cast: Rc<Cast>,
    number: usize,
    act: A,
}

impl<A> Actor<A> {
    pub(crate) fn new(cast: &Rc<Cast>, act: A) -> Actor<A> {
        cast.stories.borrow_mut().push(Story::default());
        cast.alive.set(cast.alive.get() + 1);
        Actor { cast: cast.clone(), number: cast.len() - 1, act }
    }
}

impl<A: FnMut(&mut Io<'_>, Moment<'_>) + 'static> Connection for Actor<A> {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.cast.tell(self.number, "opened");
        self.cast.stories.borrow_mut()[self.number].id = Some(io.id());
        (self.act)(io, Moment::Opened);
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.cast.tell(self.number, "received");
        if let Some(story) = self.cast.stories.borrow_mut().get_mut(self.number) {
            story.bytes += chunk.len();
            let room = KEPT - story.received.len();
            story.received.extend(chunk.iter().take(room));
        }
        (self.act)(io, Moment::Received(&chunk));
    }

    fn writable(&mut self, io: &mut Io<'_>) {
        self.cast.tell(self.number, "writable");
        (self.act)(io, Moment::Drained);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        self.cast.tell(self.number, "peer finished");
        (self.act)(io, Moment::PeerFinished);
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        self.cast.tell(self.number, &format!("closed: {reason}"));
        if let Some(act) = &mut *self.cast.at_the_end.borrow_mut() {
            act(reactor, self.number);
        }
    }
}

impl<A> Drop for Actor<A> {
    fn drop(&mut self) {
        self.cast.alive.set(self.cast.alive.get() - 1);
        if !self.cast.story(self.number).is_over() {
            let told = format!("{} was dropped without a call of `closed`", self.number);
            self.cast.wrong.borrow_mut().push(told);
        }
    }
}

/// Only closes when the other side has finished, as connections do by default.
pub(crate) fn plain(io: &mut Io<'_>, moment: Moment<'_>) {
    if let Moment::PeerFinished = moment {
        io.close_after_writing();
    }
}

/// Echoes.
pub(crate) fn echo(io: &mut Io<'_>, moment: Moment<'_>) {
    match moment {
        Moment::Received(bytes) => io.send(bytes).unwrap(),
        other => plain(io, other),
    }
}

/// Descriptors are counted for the whole process, so only one test may run at a time.
static ALONE: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reactor, and the record of its handlers.
pub(crate) struct Scene {
    pub(crate) reactor: EventLoop,
    pub(crate) cast: Rc<Cast>,
    begun: Instant,
    /// The number of open descriptors before there was a reactor, and before there was a connection.
    descriptors_before: usize,
    descriptors_set_up: usize,
    /// The last field, so that it is dropped last.
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    pub(crate) fn new(on: On) -> Scene {
        Scene::with(On::reactor, on)
    }

    /// One that catches panics, as reactors do by default.
    pub(crate) fn catching(on: On) -> Scene {
        silence_panics_on_purpose();
        Scene::with(On::catching, on)
    }

    fn with(reactor: fn(On) -> EventLoop, on: On) -> Scene {
        let alone = alone();
        let descriptors_before = descriptors();
        let reactor = reactor(on);
        let descriptors_set_up = descriptors();
        Scene {
            reactor,
            cast: Rc::default(),
            begun: Instant::now(),
            descriptors_before,
            descriptors_set_up,
            _alone: alone,
        }
    }

    /// Listens on a TCP port; each connection uses a copy of `act`.
    pub(crate) fn listen<A>(&mut self, act: A) -> SocketAddr
    where
        A: FnMut(&mut Io<'_>, Moment<'_>) + Clone + 'static,
    {
        let listener = self.listen_on(&"127.0.0.1:0".parse().unwrap(), act);
        match self.reactor.listening_on(listener) {
            Some(Address::Tcp(address)) => *address,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn listen_on<A>(&mut self, address: &Address, act: A) -> ListenerId
    where
        A: FnMut(&mut Io<'_>, Moment<'_>) + Clone + 'static,
    {
        let cast = self.cast.clone();
        let listener = self.reactor.listen(address, move |_| Actor::new(&cast, act.clone())).unwrap();
        self.is_set_up();
        listener
    }

    /// Call this after opening descriptors that stay open.
    pub(crate) fn is_set_up(&mut self) {
        self.descriptors_set_up = descriptors();
    }

    pub(crate) fn connect<A>(&mut self, address: impl Into<Address>, act: A) -> ConnectionId
    where
        A: FnMut(&mut Io<'_>, Moment<'_>) + 'static,
    {
        let actor = Actor::new(&self.cast, act);
        self.reactor.connect(&address.into(), actor).unwrap()
    }

    /// Runs the loop until the condition on the stories holds.
    pub(crate) fn until(&mut self, condition: impl Fn(&Cast) -> bool) {
        let cast = self.cast.clone();
        run_until(&mut self.reactor, |_| condition(&cast));
    }

    /// Runs some turns that wait for nothing.
    pub(crate) fn turn(&mut self) {
        assert!(self.begun.elapsed() < 3 * DEADLINE, "timed out");
        for _ in 0..3 {
            poll(&mut self.reactor);
        }
    }

    /// How many turns the loop makes within 30 milliseconds, when there should be next to none.
    pub(crate) fn turns_at_rest(&mut self) -> u64 {
        self.turn();
        let before = self.reactor.stats().turns;
        let end = self.reactor.clock() + Duration::from_millis(30);
        while self.reactor.clock() < end {
            self.reactor.turn(Some(end - self.reactor.clock())).unwrap();
        }
        self.reactor.stats().turns - before
    }

    pub(crate) fn told(&self, number: usize) -> Vec<String> {
        self.cast.story(number).told.clone()
    }

    /// Waits for all connections to end, and checks that each was told once and nothing is left.
    pub(crate) fn finish(mut self) {
        run_until(&mut self.reactor, |reactor| reactor.connection_count() == 0);
        self.turn();
        assert_eq!(descriptors(), self.descriptors_set_up, "connections leaked descriptors");
        self.has_stopped();
    }

    /// The same, after the reactor has been stopped.
    pub(crate) fn has_stopped(self) {
        assert_eq!(self.reactor.connection_count(), 0);
        assert_eq!(*self.cast.wrong.borrow(), [""; 0]);
        for number in 0..self.cast.len() {
            assert!(self.cast.story(number).is_over(), "{number} only got {:?}", self.told(number));
        }
        assert_eq!(self.cast.alive.get(), 0, "connections leaked handlers");
        let Scene { reactor, descriptors_before, _alone, .. } = self;
        drop(reactor);
        assert_eq!(descriptors(), descriptors_before, "the reactor leaked descriptors");
    }
}

/// Closes a socket so that the other side sees a reset: a linger time of zero discards queued data.
pub(crate) fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
}

fn silence_panics_on_purpose() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload_as_str() != Some(ON_PURPOSE) {
                usual(info);
            }
        }));
    });
}
