//! A reactor on a custom engine whose clock moves only when the loop sleeps, and that releases sources late. It shows what the
//! reactor assumes about an engine.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use pelton::{Address, Engine, EventLoop, Interest, Mode, PanicPolicy, Park, Reactor, Time};
use pelton_os::engine::WatchEngine;
use pelton_os::{Event, Forgotten, Readiness, Token};
use pelton_testing::unsupported;

/// State shared by the test and the engine.
#[derive(Default)]
struct Script {
    events: RefCell<VecDeque<Event>>,
    watched: RefCell<Vec<Token>>,
    forgotten: RefCell<Vec<Token>>,
    hold_on: Cell<bool>,
    clock_readings: Cell<u32>,
}

struct Scripted {
    script: Rc<Script>,
    clock: Arc<Mutex<Time>>,
    sleep: Sleep,
}

/// Sleeping advances the clock immediately.
struct Sleep {
    clock: Arc<Mutex<Time>>,
    until: Option<Time>,
    fail: bool,
}

impl Park for Sleep {
    fn block(&mut self) -> io::Result<()> {
        if self.fail {
            return Err(io::Error::other("the power is out"));
        }
        let mut now = self.clock.lock().unwrap();
        match self.until {
            Some(until) => *now = (*now).max(until),
            None => panic!("nothing would end this sleep"),
        }
        Ok(())
    }
}

impl WatchEngine for Scripted {
    fn watch(&mut self, token: Token, _: BorrowedFd<'_>, _: Interest, _: Mode) -> io::Result<()> {
        self.script.watched.borrow_mut().push(token);
        Ok(())
    }

    fn rewatch(&mut self, _: Token, _: Interest, _: Mode) -> io::Result<()> {
        Ok(())
    }
}

unsupported!(listening for Scripted);
unsupported!(streams for Scripted);
unsupported!(datagrams for Scripted);

impl Engine for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn now(&self) -> Time {
        self.script.clock_readings.set(self.script.clock_readings.get() + 1);
        *self.clock.lock().unwrap()
    }

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn forget(&mut self, token: Token) -> Forgotten {
        self.script.forgotten.borrow_mut().push(token);
        if self.script.hold_on.get() { Forgotten::Held } else { Forgotten::Now }
    }

    fn park(&mut self, until: Option<Time>) -> &mut (dyn Park + Send) {
        self.sleep.until = until;
        &mut self.sleep
    }

    fn next(&mut self) -> Option<Event> {
        self.script.events.borrow_mut().pop_front()
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

fn scripted(fail: bool) -> (EventLoop, Rc<Script>) {
    scripted_with_clock(fail, Arc::new(Mutex::new(Time::from_nanos(1))))
}

fn scripted_with_clock(fail: bool, clock: Arc<Mutex<Time>>) -> (EventLoop, Rc<Script>) {
    let script = Rc::new(Script::default());
    let sleep = Sleep { clock: clock.clone(), until: None, fail };
    let engine = Scripted { script: script.clone(), clock, sleep };
    (Reactor::builder().custom_engine(Box::new(engine)).panic_policy(PanicPolicy::Propagate).build().unwrap(), script)
}

fn poll(reactor: &mut EventLoop) {
    reactor.turn(Some(Duration::ZERO)).unwrap();
}

#[test]
fn time_is_what_the_engine_says() {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    let (mut reactor, _) = scripted(false);
    let beats = Rc::new(Cell::new(0));
    let count = beats.clone();
    reactor.every(Duration::from_secs(24 * 3600), move |_, beat| {
        assert_eq!(beat.missed, 0);
        count.set(count.get() + 1);
    });
    reactor.after(YEAR, |reactor| reactor.stop());
    let start = Instant::now();
    reactor.run().unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "a simulated year took too long");
    assert_eq!(beats.get(), 365);
    assert_eq!(reactor.now() - Time::from_nanos(1), YEAR);
}

#[test]
fn a_turn_reads_the_clock_once_unless_it_has_timers_or_ticks() {
    let (mut reactor, script) = scripted(false);
    let readings = |reactor: &mut EventLoop| {
        script.clock_readings.set(0);
        poll(reactor);
        script.clock_readings.get()
    };
    assert_eq!(readings(&mut reactor), 1, "after the wait");
    let timer = reactor.after(Duration::from_secs(1), |_| {});
    assert_eq!(readings(&mut reactor), 2, "and before, to see whether the timer is due");
    reactor.end(timer);
    assert_eq!(readings(&mut reactor), 1);
}

#[test]
fn a_timeout_begins_when_the_turn_does() {
    let clock = Arc::new(Mutex::new(Time::from_nanos(1)));
    let (mut reactor, _) = scripted_with_clock(false, clock.clone());
    poll(&mut reactor);
    // Between the turns, the caller does something else.
    let later = Time::from_nanos(1) + Duration::from_secs(60);
    *clock.lock().unwrap() = later;
    reactor.turn(Some(Duration::from_secs(1))).unwrap();
    assert_eq!(*clock.lock().unwrap(), later + Duration::from_secs(1), "it has slept for the whole timeout");
}

#[test]
fn slot_of_a_source_is_not_reused_before_the_engine_releases_it() {
    let (mut reactor, script) = scripted(false);
    let (a, b) = UnixStream::pair().unwrap();
    script.hold_on.set(true);
    let calls = Rc::new(Cell::new(0));
    let count = calls.clone();
    let watch = reactor.watch(&a, Interest::READABLE, move |_, _| count.set(count.get() + 1)).unwrap();
    let old = script.watched.borrow()[0];
    script.events.borrow_mut().push_back(Event::Ready(old, Readiness::READABLE));
    poll(&mut reactor);
    assert_eq!(calls.get(), 1);

    assert!(reactor.end(watch) && !reactor.end(watch));
    assert_eq!(*script.forgotten.borrow(), [old]);
    assert_eq!(reactor.watch_count(), 0);
    // The event is pending and must reach nobody.
    script.events.borrow_mut().push_back(Event::Ready(old, Readiness::READABLE));
    poll(&mut reactor);
    assert_eq!(calls.get(), 1);

    for _ in 0..3 {
        reactor.watch(&b, Interest::READABLE, |_, _| {}).unwrap();
        poll(&mut reactor);
        assert_ne!(script.watched.borrow().last().unwrap().index(), old.index(), "the engine has not released it");
    }
    script.events.borrow_mut().push_back(Event::Gone(old));
    poll(&mut reactor);
    reactor.watch(&b, Interest::READABLE, |_, _| {}).unwrap();
    let new = *script.watched.borrow().last().unwrap();
    assert_eq!(new.index(), old.index(), "now it may be reused");
    assert_ne!(new.generation(), old.generation());
}

#[test]
fn events_for_unknown_sources_are_ignored() {
    let (mut reactor, script) = scripted(false);
    for token in [Token::new(0, 0), Token::new(7, 3), Token::new(u32::MAX, 1)] {
        script.events.borrow_mut().push_back(Event::Ready(token, Readiness::READABLE));
        script.events.borrow_mut().push_back(Event::Gone(token));
    }
    poll(&mut reactor);
    assert!(script.events.borrow().is_empty());
}

#[test]
fn failed_wait_ends_run_with_an_error() {
    let (mut reactor, _) = scripted(true);
    let error = reactor.run().unwrap_err();
    assert_eq!(error.to_string(), "wait for events with scripted: the power is out");
}
