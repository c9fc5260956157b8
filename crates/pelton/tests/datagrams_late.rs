//! Datagrams on a custom engine that has no sockets or descriptors, takes the whole outbox at once, and completes sends later.
//! It shows what the reactor assumes about an engine.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use pelton::{
    Address, Chunk, Datagram, DatagramIo, DatagramOptions, Datagrams, Engine, EventLoop, MulticastInterface, Park,
    Reactor, Reason, Socket, Space, Time,
};
use pelton_os::engine::DatagramEngine;
use pelton_os::{DatagramOutbox, DatagramSetting, Event, Forgotten, Intake, Sending, Token};
use pelton_testing::unsupported;

/// State shared by the test and the engine.
#[derive(Default)]
struct Script {
    token: Cell<Option<Token>>,
    events: RefCell<VecDeque<Event>>,
    taken: RefCell<Vec<(Option<Address>, Vec<u8>)>>,
    receiving: Cell<bool>,
}

impl Script {
    fn happens(&self, event: impl FnOnce(Token) -> Event) {
        self.events.borrow_mut().push_back(event(self.token.get().unwrap()));
    }

    fn arrives(&self, bytes: &[u8]) {
        let datagram = Datagram { bytes: Chunk::from(bytes.to_vec()), from: somewhere() };
        self.happens(|token| Event::Datagram(token, datagram));
    }
}

struct Late(Rc<Script>, Sleep);

struct Sleep;

impl Park for Sleep {
    fn block(&mut self) -> io::Result<()> {
        Ok(())
    }
}

unsupported!(watches for Late);
unsupported!(listening for Late);
unsupported!(streams for Late);

impl DatagramEngine for Late {
    fn bind_datagrams(&mut self, token: Token, _: &Address, _: &DatagramOptions) -> io::Result<()> {
        self.0.token.set(Some(token));
        self.0.receiving.set(true);
        Ok(())
    }

    fn receive_datagrams(&mut self, _: Token, intake: Intake) -> io::Result<()> {
        self.0.receiving.set(intake == Intake::On);
        Ok(())
    }

    fn send_datagrams(&mut self, _: Token, outbox: &mut DatagramOutbox) -> io::Result<Sending> {
        let outbox = std::mem::take(outbox);
        self.0.taken.borrow_mut().extend(outbox.iter().map(|(to, bytes)| (to.cloned(), bytes.to_vec())));
        Ok(Sending::Busy)
    }

    fn connect_datagrams(&mut self, _: Token, _: &Address, _: &DatagramOptions) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "this engine only binds"))
    }

    fn adopt_datagrams(&mut self, token: Token, socket: Socket) -> io::Result<()> {
        socket.into_custom().map_err(|_| io::ErrorKind::Unsupported)?;
        self.0.token.set(Some(token));
        self.0.receiving.set(true);
        Ok(())
    }

    unsupported!(manual datagrams);

    fn set_datagrams(&mut self, _: Token, _: DatagramSetting) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Engine for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn now(&self) -> Time {
        Time::from_nanos(1)
    }

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn forget(&mut self, _: Token) -> Forgotten {
        Forgotten::Held
    }

    fn park(&mut self, _: Option<Time>) -> &mut (dyn Park + Send) {
        &mut self.1
    }

    fn next(&mut self) -> Option<Event> {
        self.0.events.borrow_mut().pop_front()
    }

    fn local_address(&self, _: Token) -> io::Result<Address> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn peer_address(&self, _: Token) -> io::Result<Address> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn descriptor(&self, _: Token) -> Option<BorrowedFd<'_>> {
        None
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_events(&self) -> bool {
        false
    }

    fn after_fork(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn add(&self, entry: impl Into<String>) {
        self.0.borrow_mut().push(entry.into());
    }

    fn take(&self) -> Vec<String> {
        self.0.take()
    }
}

impl Datagrams for Log {
    fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
        self.add(format!("received {}", String::from_utf8_lossy(&datagram.bytes)));
        if &*datagram.bytes == b"stop" {
            io.pause();
        }
    }

    fn readable(&mut self, _: &mut DatagramIo<'_>) {
        self.add("readable");
    }

    fn writable(&mut self, io: &mut DatagramIo<'_>) {
        let error = io.take_send_error();
        self.add(error.map_or("writable".to_owned(), |error| format!("writable: {error}")));
    }

    fn send_failed(&mut self, _: &mut DatagramIo<'_>, _: Option<&Address>, error: io::Error) {
        self.add(format!("failed: {error}"));
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.add(format!("closed: {reason}"));
    }
}

fn somewhere() -> Address {
    "10.0.0.1:1".parse().unwrap()
}

fn late() -> (EventLoop, Rc<Script>) {
    let script = Rc::new(Script::default());
    let engine = Box::new(Late(script.clone(), Sleep));
    (Reactor::builder().custom_engine(engine).build().unwrap(), script)
}

fn poll(reactor: &mut EventLoop) {
    reactor.turn(Some(Duration::ZERO)).unwrap();
}

#[test]
fn close_after_sending_waits_for_the_engine() {
    let (mut reactor, script) = late();
    let log = Log::default();
    let id = reactor.bind_datagrams(&somewhere(), log.clone()).unwrap();
    reactor.datagrams(id).unwrap().send_to(&somewhere(), b"one").unwrap();
    poll(&mut reactor);
    let mut io = reactor.datagrams(id).unwrap();
    io.send(b"two").unwrap();
    io.close_after_sending();
    poll(&mut reactor);
    let taken = || script.taken.borrow().iter().map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>();
    assert_eq!(taken(), [b"one"], "a busy socket gets nothing more");
    script.happens(|token| Event::SendFailed(token, None, io::Error::other("no luck")));
    script.happens(Event::Sendable);
    poll(&mut reactor);
    assert_eq!(taken(), [b"one", b"two"]);
    assert_eq!((log.take(), reactor.datagram_socket_count()), (vec!["failed: no luck".to_owned()], 1));
    script.happens(Event::Sendable);
    poll(&mut reactor);
    assert_eq!((log.take(), reactor.datagram_socket_count()), (vec!["closed: closed by this side".to_owned()], 0));
    // Completions that the engine still had in flight reach nobody.
    script.arrives(b"late");
    script.happens(|token| Event::SendFailed(token, None, io::Error::other("later still")));
    script.happens(Event::Sendable);
    script.happens(Event::Gone);
    poll(&mut reactor);
    assert_eq!(log.take(), [""; 0]);
}

#[test]
fn input_after_a_pause_is_held_in_order() {
    let (mut reactor, script) = late();
    let log = Log::default();
    let id = reactor.bind_datagrams(&somewhere(), log.clone()).unwrap();
    for bytes in [&b"one"[..], b"stop", b"two", b"stop", b"three"] {
        script.arrives(bytes);
    }
    poll(&mut reactor);
    assert!(!script.receiving.get());
    assert_eq!(log.take(), ["received one", "received stop"]);
    reactor.datagrams(id).unwrap().resume();
    assert!(script.receiving.get());
    script.arrives(b"four");
    poll(&mut reactor);
    assert_eq!(log.take(), ["received two", "received stop"]);
    reactor.datagrams(id).unwrap().resume();
    poll(&mut reactor);
    assert_eq!(log.take(), ["received three", "received four"]);
}

#[test]
fn engine_without_sockets_is_an_error_and_a_failure_ends_the_socket() {
    let (mut reactor, script) = late();
    let log = Log::default();
    let error = reactor.connect_datagrams(&somewhere(), log.clone()).unwrap_err().to_string();
    assert_eq!(error, "connect datagrams to 10.0.0.1:1: this engine only binds");
    let id = reactor.bind_datagrams(&somewhere(), log.clone()).unwrap();
    let mut io = reactor.datagrams(id).unwrap();
    assert!(io.descriptor().is_none() && io.local_address().is_err());
    assert!(io.join_multicast([239, 0, 0, 1].into(), MulticastInterface::Any).is_err());
    script.happens(|token| Event::Ended(token, Err(io::Error::other("the cable is cut"))));
    poll(&mut reactor);
    assert_eq!(log.take(), ["closed: the cable is cut"]);
}

#[test]
fn the_handler_of_a_manual_socket_fetches_what_the_engine_has_received_on_its_own() {
    let (mut reactor, script) = late();
    let log = Log::default();
    let id = reactor.adopt_manual_datagrams(Socket::custom(Box::new(())), log.clone()).unwrap();
    assert!(!script.receiving.get(), "it is paused");
    // In flight when it was paused.
    script.arrives(b"one");
    script.arrives(b"two");
    poll(&mut reactor);
    assert!(log.take().is_empty());
    reactor.datagrams(id).unwrap().resume();
    assert!(!script.receiving.get(), "what is here comes first");
    poll(&mut reactor);
    poll(&mut reactor);
    assert!(log.take().len() >= 2, "it is reported until it is fetched");
    for expected in [b"one", b"two"] {
        let mut memory = [0; 10];
        let mut io = reactor.datagrams(id).unwrap();
        let (count, from) = io.receive_into(&mut Space::from(&mut memory[..])).unwrap();
        assert_eq!((&memory[..count], from), (&expected[..], Some(somewhere())));
    }
    assert!(script.receiving.get());
    let error = reactor.datagrams(id).unwrap().receive_into(&mut Space::from(&mut [0; 10][..])).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    poll(&mut reactor);
    log.take();
    poll(&mut reactor);
    assert!(log.take().is_empty());
}

#[test]
fn a_manual_socket_queues_what_the_engine_cannot_send_at_once() {
    let (mut reactor, script) = late();
    let log = Log::default();
    let id = reactor.adopt_manual_datagrams(Socket::custom(Box::new(())), log.clone()).unwrap();
    let mut io = reactor.datagrams(id).unwrap();
    let sent = io.send_or_keep(Some(&somewhere()), b"one", || pelton::Bytes::from_static(b"one")).unwrap();
    assert_eq!((sent, io.queued()), (Sending::Busy, 3));
    poll(&mut reactor);
    assert_eq!(script.taken.borrow().len(), 1);
    script.happens(|token| Event::SendFailed(token, None, io::Error::other("no luck")));
    script.happens(Event::Sendable);
    poll(&mut reactor);
    assert_eq!(log.take(), ["writable: no luck", "writable"]);
}
