//! An engine with a simulated clock. A sleep advances the clock at once, and the test decides per address whether and when a
//! connection is established. It has no descriptors.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use pelton::{Address, Builder, ConnectOptions, Engine, EventLoop, PanicPolicy, Park, Reactor, Socket, Time};
use pelton_os::engine::StreamEngine;
use pelton_os::{Event, Forgotten, Intake, Outbox, Sending, Splice, StreamKind, Token};

use crate::unsupported;

/// The outcome of connecting to an address.
#[derive(Clone, Copy)]
pub enum Fate {
    /// Established after this time.
    Connects(Duration),
    /// Established after the first time, and reset after the second.
    ConnectsAndEnds(Duration, Duration),
    /// Refused after this time.
    Refuses(Duration),
    /// Neither established nor refused.
    NeverAnswers,
    /// `Engine::connect` itself fails.
    Fails,
}

/// The state of the engine that the test sees and sets.
#[derive(Default)]
pub struct Seen {
    /// The outcome for each address.
    pub fates: RefCell<HashMap<String, Fate>>,
    /// The operations requested, each with its time in milliseconds.
    pub log: RefCell<Vec<String>>,
    /// The streams that the engine holds, with their peers.
    pub held: RefCell<HashMap<Token, Address>>,
    /// The bytes sent, on all streams together.
    pub sent: RefCell<Vec<u8>>,
}

impl Seen {
    /// Sets the outcome of connecting to an address.
    pub fn fate(&self, address: &str, fate: Fate) {
        self.fates.borrow_mut().insert(address.into(), fate);
    }

    /// Removes and returns the log.
    pub fn take_log(&self) -> Vec<String> {
        self.log.take()
    }
}

struct Clockwork {
    seen: Rc<Seen>,
    sleep: Sleep,
    due: VecDeque<(Time, Event)>,
}

struct Sleep {
    clock: Arc<Mutex<Time>>,
    until: Option<Time>,
}

/// The time at which the clock starts.
pub const START: Time = Time::from_nanos(1);

/// Builds a reactor on this engine.
pub fn clockwork(builder: Builder) -> (EventLoop, Rc<Seen>) {
    let seen = Rc::new(Seen::default());
    let sleep = Sleep { clock: Arc::new(Mutex::new(START)), until: None };
    let engine = Clockwork { seen: seen.clone(), sleep, due: VecDeque::new() };
    (builder.custom_engine(Box::new(engine)).panic_policy(PanicPolicy::Propagate).build().unwrap(), seen)
}

/// The time since the clock started.
pub fn elapsed(reactor: &Reactor) -> Duration {
    reactor.clock() - START
}

impl Park for Sleep {
    fn block(&mut self) -> io::Result<()> {
        let mut now = self.clock.lock().unwrap();
        *now = (*now).max(self.until.expect("something ends this sleep"));
        Ok(())
    }
}

impl Clockwork {
    fn later(&mut self, delay: Duration, event: Event) {
        let at = self.now() + delay;
        let place = self.due.partition_point(|(time, _)| *time <= at);
        self.due.insert(place, (at, event));
    }

    fn log(&self, what: String) {
        self.seen.log.borrow_mut().push(format!("{} {what}", (self.now() - START).as_millis()));
    }
}

unsupported!(watches for Clockwork);
unsupported!(listening for Clockwork);
unsupported!(datagrams for Clockwork);

impl StreamEngine for Clockwork {
    fn connect(&mut self, token: Token, address: &Address, options: &ConnectOptions) -> io::Result<()> {
        let from = options.bind_address().map_or_else(String::new, |from| format!(" from {from}"));
        self.log(format!("connect {address}{from}"));
        let fate = self.seen.fates.borrow()[&address.to_string()];
        match fate {
            Fate::Fails => return Err(io::Error::other("the engine is out of order")),
            Fate::NeverAnswers => {}
            Fate::Connects(delay) => self.later(delay, Event::Connected(token)),
            Fate::ConnectsAndEnds(delay, up) => {
                self.later(delay, Event::Connected(token));
                self.later(delay + up, Event::Ended(token, Err(io::ErrorKind::ConnectionReset.into())));
            }
            Fate::Refuses(delay) => {
                self.later(delay, Event::Ended(token, Err(io::ErrorKind::ConnectionRefused.into())));
            }
        }
        self.seen.held.borrow_mut().insert(token, address.clone());
        Ok(())
    }

    fn adopt(&mut self, token: Token, socket: Socket) -> io::Result<StreamKind> {
        let address = *socket.into_custom().unwrap().downcast::<Address>().unwrap();
        self.log(format!("adopt {address}"));
        self.seen.held.borrow_mut().insert(token, address);
        Ok(StreamKind::Socket)
    }

    fn receive(&mut self, _: Token, _: Intake) -> io::Result<()> {
        Ok(())
    }

    unsupported!(manual streams);

    fn send(&mut self, token: Token, outbox: &mut Outbox) -> io::Result<Sending> {
        assert!(self.seen.held.borrow().contains_key(&token));
        let mut slices = [io::IoSlice::new(&[]); 16];
        let count = outbox.gather(&mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
        outbox.advance(bytes.len());
        self.seen.sent.borrow_mut().extend(bytes);
        Ok(Sending::Idle)
    }

    fn detach(&mut self, token: Token) -> io::Result<()> {
        let address = self.seen.held.borrow_mut().remove(&token).unwrap();
        self.log(format!("detach {address}"));
        // An engine may take time for this.
        self.later(Duration::from_millis(1), Event::Detached(token, Socket::custom(Box::new(address))));
        Ok(())
    }

    fn finish(&mut self, _: Token) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn reset_when_forgotten(&mut self, _: Token) {}

    fn splice(&mut self, _: Token, _: Option<(Token, Rc<Splice>)>) -> bool {
        false
    }

    fn has_unread(&self, _: Token) -> bool {
        false
    }

    fn undelivered(&self, _: Token) -> Option<u64> {
        None
    }
}

impl Engine for Clockwork {
    fn name(&self) -> &'static str {
        "clockwork"
    }

    fn now(&self) -> Time {
        *self.sleep.clock.lock().unwrap()
    }

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn peer_address(&self, token: Token) -> io::Result<Address> {
        Ok(self.seen.held.borrow()[&token].clone())
    }

    fn local_address(&self, _: Token) -> io::Result<Address> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn descriptor(&self, _: Token) -> Option<BorrowedFd<'_>> {
        None
    }

    fn forget(&mut self, token: Token) -> Forgotten {
        let held = self.seen.held.borrow_mut().remove(&token);
        self.log(match held {
            Some(address) => format!("forget {address}"),
            None => "forget an unknown source".into(),
        });
        Forgotten::Now
    }

    fn park(&mut self, until: Option<Time>) -> &mut (dyn Park + Send) {
        let next = self.due.front().map(|(time, _)| *time);
        self.sleep.until = [until, next].into_iter().flatten().min();
        &mut self.sleep
    }

    fn next(&mut self) -> Option<Event> {
        let now = self.now();
        self.due.front().filter(|(time, _)| *time <= now)?;
        self.due.pop_front().map(|(_, event)| event)
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
