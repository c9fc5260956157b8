//! Random operations on every engine: whatever callbacks do to each other, the documented guarantees hold.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::time::Duration;

use pelton::{Interest, Reactor, Time, TimerId, WatchId};
use pelton_testing::{On, on_every_engine, poll, run_until};

on_every_engine![guarantees_hold_whatever_callbacks_do_to_each_other];

/// The number of runs, each with another seed, and of turns per run.
const RUNS: u64 = 20;
const TURNS: usize = 300;

/// The callbacks that are pending, and those that must not run any more.
#[derive(Default)]
struct World {
    random: u64,
    timers: HashMap<TimerId, Time>,
    /// The turn in which a timer last fired, and its deadline.
    last_timer: Option<(u64, Time)>,
    ticks_queued: u64,
    ticks_run: u64,
    posts_queued: u64,
    posts_run: u64,
    sockets: Vec<(UnixStream, UnixStream)>,
    watches: HashMap<WatchId, usize>,
    watched: HashSet<usize>,
    panics: u64,
    calls: u64,
}

impl World {
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.random(from.len() as u64) as usize])
    }
}

fn world(reactor: &mut Reactor) -> &mut World {
    reactor.state::<World>()
}

/// Performs one random operation, from outside or inside any callback.
fn disturb(reactor: &mut Reactor) {
    match world(reactor).random(12) {
        0..3 => set_timer(reactor),
        3 => {
            if let Some(timer) = pick_timer(reactor) {
                assert!(reactor.cancel(timer), "a timer that has not fired can be cancelled");
                world(reactor).timers.remove(&timer);
            }
        }
        4 => {
            if let Some(timer) = pick_timer(reactor) {
                let delay = Duration::from_micros(world(reactor).random(3_000));
                let before = reactor.clock();
                assert!(reactor.reset(timer, delay));
                world(reactor).timers.insert(timer, before + delay);
            }
        }
        5..7 => {
            let number = world(reactor).ticks_queued;
            world(reactor).ticks_queued += 1;
            reactor.next_tick(move |reactor| {
                assert_eq!(world(reactor).ticks_run, number, "ticks run in order");
                world(reactor).ticks_run += 1;
                react(reactor);
            });
        }
        7 => {
            let number = world(reactor).posts_queued;
            world(reactor).posts_queued += 1;
            let posted = reactor.handle().post(move |reactor| {
                assert_eq!(world(reactor).posts_run, number, "posts run in order");
                world(reactor).posts_run += 1;
                react(reactor);
            });
            assert!(posted.is_ok());
        }
        8 => watch(reactor),
        9 => {
            let watches: Vec<WatchId> = world(reactor).watches.keys().copied().collect();
            if let Some(watch) = world(reactor).pick(&watches) {
                assert!(reactor.end(watch));
                let socket = world(reactor).watches.remove(&watch).unwrap();
                world(reactor).watched.remove(&socket);
            }
        }
        10 => {
            let watches: Vec<WatchId> = world(reactor).watches.keys().copied().collect();
            if let Some(watch) = world(reactor).pick(&watches) {
                let interests = [Interest::NONE, Interest::READABLE, Interest::WRITABLE];
                let interest = world(reactor).pick(&interests).unwrap();
                reactor.set_interest(watch, interest).unwrap();
            }
        }
        _ => {
            reactor.when_idle(react);
        }
    }
}

/// Runs in every callback: performs some random operations, and sometimes panics.
fn react(reactor: &mut Reactor) {
    world(reactor).calls += 1;
    for _ in 0..world(reactor).random(2) {
        disturb(reactor);
    }
    if world(reactor).random(50) == 0 {
        world(reactor).panics += 1;
        panic!("occasional panic");
    }
}

fn pick_timer(reactor: &mut Reactor) -> Option<TimerId> {
    let timers: Vec<TimerId> = world(reactor).timers.keys().copied().collect();
    world(reactor).pick(&timers)
}

fn set_timer(reactor: &mut Reactor) {
    let delay = Duration::from_micros(world(reactor).random(3_000));
    let before = reactor.clock();
    // The id is known only after the timer is set, so the callback finds it in the shared state.
    let slot = Rc::new(Cell::new(None));
    let own = slot.clone();
    let timer = reactor.after(delay, move |reactor| {
        let turn = reactor.stats().turns;
        let timer: TimerId = own.get().unwrap();
        let deadline = world(reactor).timers.remove(&timer).expect("the timer was cancelled or has fired before");
        assert!(reactor.now() >= deadline, "fired early");
        if let Some((last_turn, last_deadline)) = world(reactor).last_timer.replace((turn, deadline))
            && last_turn == turn
        {
            // The deadline is known only to within the time that setting the timer took.
            assert!(
                deadline + Duration::from_millis(50) >= last_deadline,
                "timers fire in the order of their deadlines"
            );
        }
        react(reactor);
    });
    slot.set(Some(timer));
    world(reactor).timers.insert(timer, before + delay);
}

fn watch(reactor: &mut Reactor) {
    let count = world(reactor).sockets.len() as u64;
    let socket = world(reactor).random(count) as usize;
    // Taken out, so that the sockets and the reactor can be borrowed together.
    let sockets = std::mem::take(&mut world(reactor).sockets);
    if world(reactor).watched.contains(&socket) {
        assert!(
            reactor.watch(&sockets[socket].0, Interest::READABLE, |_, _| {}).is_err(),
            "the socket was watched twice"
        );
        world(reactor).sockets = sockets;
        return;
    }
    let watch = reactor.watch(&sockets[socket].0, Interest::READABLE | Interest::WRITABLE, |reactor, ready| {
        assert!(world(reactor).watches.contains_key(&ready.watch), "called after it was unwatched");
        let before = world(reactor).panics;
        // A panic ends the watch.
        let outcome = catch_unwind(AssertUnwindSafe(|| react(reactor)));
        if outcome.is_err() {
            assert_eq!(world(reactor).panics, before + 1);
            if let Some(socket) = world(reactor).watches.remove(&ready.watch) {
                world(reactor).watched.remove(&socket);
            }
            panic!("passed on");
        }
    });
    world(reactor).sockets = sockets;
    world(reactor).watches.insert(watch.unwrap(), socket);
    world(reactor).watched.insert(socket);
}

fn guarantees_hold_whatever_callbacks_do_to_each_other(on: On) {
    // The panics are expected; their messages would be thousands of lines.
    std::panic::set_hook(Box::new(|info| {
        let text = info.to_string();
        if !text.contains("occasional panic") && !text.contains("passed on") {
            eprintln!("{text}");
        }
    }));
    for run in 0..RUNS {
        let mut reactor = on.catching();
        reactor.on_fault(|reactor, fault| {
            let expected = ["occasional panic", "passed on"].contains(&fault.message.as_str());
            if !expected {
                reactor.put_state::<String>(fault.to_string());
            }
        });
        world(&mut reactor).random = run * 7_919 + 1;
        for _ in 0..20 {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(b"x").unwrap();
            world(&mut reactor).sockets.push((ours, theirs));
        }
        for _ in 0..TURNS {
            for _ in 0..3 {
                disturb(&mut reactor);
            }
            poll(&mut reactor);
            assert_eq!(reactor.try_state::<String>(), None, "in run {run}");
            let (timers, watches) = (world(&mut reactor).timers.len(), world(&mut reactor).watches.len());
            assert_eq!((reactor.timer_count(), reactor.watch_count()), (timers, watches), "in run {run}");
        }
        // Everything pending still runs, and nothing twice.
        for watch in std::mem::take(&mut world(&mut reactor).watches).into_keys() {
            assert!(reactor.end(watch));
        }
        world(&mut reactor).watched.clear();
        let (ticks, posts) = (world(&mut reactor).ticks_queued, world(&mut reactor).posts_queued);
        run_until(&mut reactor, |reactor| world(reactor).ticks_run >= ticks && world(reactor).posts_run >= posts);
        assert_eq!(reactor.try_state::<String>(), None, "in run {run}");
        assert!(world(&mut reactor).calls > 100);
        assert_eq!(reactor.stats().panics, world(&mut reactor).panics);
    }
}
