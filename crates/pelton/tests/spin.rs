//! Spinning before blocking: when it happens, and that no event is missed.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use pelton::{Address, Engine, EventLoop, Handle, Interest, Mode, Park, Reactor, Time};
use pelton_os::engine::WatchEngine;
use pelton_os::{Event, Forgotten, Readiness, Token};
use pelton_testing::{Echo, On, on_every_engine, run, run_until, unsupported};

on_every_engine![
    an_idle_loop_does_not_spin,
    all_events_are_served_while_spinning,
    spinning_makes_timers_neither_early_nor_late,
];

const SPIN: Duration = Duration::from_micros(50);

/// An engine whose clock advances by a microsecond per poll, and as far as needed when it blocks.
#[derive(Clone, Default)]
struct World(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    now: Time,
    until: Option<Time>,
    /// The times at which the watched descriptor becomes ready, in order.
    ready_at: VecDeque<Time>,
    token: Option<Token>,
    polls: u32,
    blocks: u32,
    /// At this poll, a post is made.
    post_at_poll: Option<(u32, Handle)>,
}

impl World {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// The number of polls and blocking waits since the last call.
    fn take_counts(&self) -> (u32, u32) {
        let mut state = self.lock();
        (std::mem::take(&mut state.polls), std::mem::take(&mut state.blocks))
    }

    fn ready_after(&self, time: Duration) {
        let mut state = self.lock();
        let at = state.now + time;
        state.ready_at.push_back(at);
    }
}

impl Park for World {
    fn block(&mut self) -> io::Result<()> {
        let mut state = self.lock();
        if state.until == Some(Time::ZERO) {
            state.now += Duration::from_micros(1);
            state.polls += 1;
            if let Some((poll, handle)) = &state.post_at_poll
                && *poll == state.polls
            {
                handle.post(|reactor| *reactor.state::<u32>() += 1).unwrap();
            }
        } else {
            state.blocks += 1;
            let ends = [state.until, state.ready_at.front().copied()].into_iter().flatten().min();
            state.now = state.now.max(ends.expect("nothing would end this sleep"));
        }
        Ok(())
    }
}

impl WatchEngine for World {
    fn watch(&mut self, token: Token, _: BorrowedFd<'_>, _: Interest, _: Mode) -> io::Result<()> {
        self.lock().token = Some(token);
        Ok(())
    }

    fn rewatch(&mut self, _: Token, _: Interest, _: Mode) -> io::Result<()> {
        Ok(())
    }
}

unsupported!(listening for World);
unsupported!(streams for World);
unsupported!(datagrams for World);

impl Engine for World {
    fn name(&self) -> &'static str {
        "world"
    }

    fn now(&self) -> Time {
        self.lock().now
    }

    fn waker(&self) -> Waker {
        Waker::noop().clone()
    }

    fn forget(&mut self, _: Token) -> Forgotten {
        Forgotten::Now
    }

    fn park(&mut self, until: Option<Time>) -> &mut (dyn Park + Send) {
        self.lock().until = until;
        self
    }

    fn next(&mut self) -> Option<Event> {
        let mut state = self.lock();
        let now = state.now;
        state.ready_at.pop_front_if(|at| *at <= now)?;
        state.token.map(|token| Event::Ready(token, Readiness::READABLE))
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

/// A loop on this engine, and a count of the descriptor's events.
fn world(spin: Duration) -> (EventLoop, World, Rc<Cell<u32>>) {
    let world = World::default();
    world.lock().now = Time::from_nanos(1);
    let mut reactor = Reactor::builder().custom_engine(Box::new(world.clone())).spin(spin).build().unwrap();
    let calls = Rc::new(Cell::new(0));
    let count = calls.clone();
    let (any, _) = UnixStream::pair().unwrap();
    reactor.watch(&any, Interest::READABLE, move |_, _| count.set(count.get() + 1)).unwrap();
    (reactor, world, calls)
}

/// Runs one turn, with an event after this time.
fn turn(reactor: &mut EventLoop, world: &World, event_after: Duration) -> (u32, u32) {
    world.ready_after(event_after);
    reactor.turn(None).unwrap();
    world.take_counts()
}

#[test]
fn it_spins_after_a_short_wait_and_stops_after_a_useless_spin() {
    let (mut reactor, world, calls) = world(SPIN);
    let (near, far) = (Duration::from_micros(10), Duration::from_micros(400));
    assert_eq!(turn(&mut reactor, &world, far), (0, 1), "no history yet");
    assert_eq!(turn(&mut reactor, &world, near), (0, 1), "the last wait was long");
    assert_eq!(turn(&mut reactor, &world, near), (10, 0), "the last wait was short");
    assert_eq!(turn(&mut reactor, &world, near), (10, 0));
    assert_eq!(turn(&mut reactor, &world, far), (50, 1), "the spin finds nothing");
    assert_eq!(turn(&mut reactor, &world, far), (0, 1));
    assert_eq!(turn(&mut reactor, &world, near), (0, 1));
    assert_eq!(turn(&mut reactor, &world, near), (10, 0), "again");
    // An event just after the end of the spin would cost both the spin and the sleep every time.
    let behind = SPIN + Duration::from_micros(5);
    assert_eq!(turn(&mut reactor, &world, behind), (50, 1));
    assert_eq!(turn(&mut reactor, &world, behind), (0, 1));
    assert_eq!(calls.get(), 10, "every event was reported once");
    assert_eq!(reactor.stats().sleeps, 7, "only blocking waits count as sleeps");
}

#[test]
fn it_never_spins_unless_asked_to() {
    let (mut reactor, world, calls) = world(Duration::ZERO);
    for _ in 0..10 {
        assert_eq!(turn(&mut reactor, &world, Duration::from_nanos(1)), (0, 1));
    }
    assert_eq!(calls.get(), 10);
}

#[test]
fn all_events_of_one_poll_are_reported() {
    let (mut reactor, world, calls) = world(SPIN);
    turn(&mut reactor, &world, Duration::ZERO);
    for _ in 0..4 {
        world.ready_after(Duration::from_micros(3));
    }
    assert_eq!(turn(&mut reactor, &world, Duration::from_micros(3)), (3, 0));
    assert_eq!(calls.get(), 6);
}

#[test]
fn a_timer_a_timeout_and_a_post_end_the_spin() {
    let (mut reactor, world, calls) = world(SPIN);
    turn(&mut reactor, &world, Duration::ZERO);

    let fired = Rc::new(RefCell::new(None));
    let seen = fired.clone();
    let due = reactor.now() + Duration::from_micros(20);
    reactor.at(due, move |reactor| *seen.borrow_mut() = Some(reactor.now()));
    reactor.turn(None).unwrap();
    assert_eq!(world.take_counts(), (20, 0));
    // Timers are the first phase of the turn after the wait.
    reactor.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(*fired.borrow(), Some(due));
    assert_eq!(world.take_counts(), (1, 0), "nothing to wait for, so no spin");

    reactor.turn(Some(Duration::from_micros(7))).unwrap();
    assert_eq!(world.take_counts(), (7, 0));

    world.lock().post_at_poll = Some((5, reactor.handle()));
    reactor.turn(None).unwrap();
    // One more poll for events that arrived meanwhile, as always when there is work to do.
    assert_eq!(world.take_counts(), (6, 0));
    reactor.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(*reactor.state::<u32>(), 1);
    assert_eq!(calls.get(), 1);
}

#[test]
fn run_until_checks_its_condition_before_spinning() {
    let (mut reactor, world, _) = world(SPIN);
    turn(&mut reactor, &world, Duration::ZERO);
    let met = Rc::new(Cell::new(false));
    let flag = met.clone();
    reactor.next_tick(move |_| flag.set(true));
    reactor.run_until(|_| met.get()).unwrap();
    // The single poll of a turn that does not wait.
    assert_eq!(world.take_counts(), (1, 0));
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn an_idle_loop_does_not_spin(on: On) {
    let mut reactor = on.build(on.builder().spin(Duration::from_millis(8)));
    // A short wait, so that spinning seems worthwhile.
    reactor.turn(Some(Duration::from_micros(1))).unwrap();
    let (turns, used) = (reactor.stats().turns, processor_time());
    // Events occur at intervals that are longer than the spin.
    reactor.every(Duration::from_millis(10), |_, _| {});
    reactor.after(Duration::from_millis(405), |reactor| reactor.stop());
    run(&mut reactor);
    let (turns, used) = (reactor.stats().turns - turns, processor_time() - used);
    assert!(turns <= 100, "{turns} turns");
    // One useless spin, perhaps another after a late timer, and the cost of turns on a busy machine.
    assert!(used < Duration::from_millis(100), "{used:?} of processor time in 405 ms");
}

fn all_events_are_served_while_spinning(on: On) {
    const ROUNDS: u32 = 2_000;
    let mut reactor = on.build(on.builder().spin(Duration::from_millis(1)));
    let listener = reactor.listen("127.0.0.1:0", |_| Echo).unwrap();
    let Some(Address::Tcp(address)) = reactor.listening_on(listener).cloned() else { panic!("no address") };
    let handle = reactor.handle();
    let peer = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut answer = [0; 64];
        for round in 0..ROUNDS {
            stream.write_all(&[round as u8; 64]).unwrap();
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [round as u8; 64]);
            handle.post(|reactor| *reactor.state::<u32>() += 1).unwrap();
        }
    });
    let beats = Rc::new(Cell::new(0));
    let count = beats.clone();
    reactor.every(Duration::from_millis(1), move |_, _| count.set(count.get() + 1));
    run_until(&mut reactor, |reactor| *reactor.state::<u32>() == ROUNDS && beats.get() > 0);
    peer.join().unwrap();
}

fn spinning_makes_timers_neither_early_nor_late(on: On) {
    // Longer than the test may take, so that spinning past the timer is detected.
    let mut reactor = on.build(on.builder().spin(Duration::from_secs(60)));
    reactor.turn(Some(Duration::from_micros(1))).unwrap();
    for _ in 0..20 {
        let begun = Instant::now();
        let fired = Rc::new(Cell::new(false));
        let flag = fired.clone();
        reactor.after(Duration::from_millis(1), move |_| flag.set(true));
        run_until(&mut reactor, |_| fired.get());
        assert!(begun.elapsed() >= Duration::from_millis(1));
    }
}
