//! How long the loop sleeps, and who holds the lock meanwhile.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use pelton::{Batch, Guest, Handle, Interest, Reactor, Sleep, Time};
use pelton_testing::{Log, On, on_every_engine, poll, run, run_until, watch_and_log};

use crate::Runtime;

on_every_engine![
    the_sleep_ends_at_the_guests_deadline,
    the_sleep_ends_at_the_reactors_deadline_if_that_is_earlier,
    the_lock_is_released_only_to_sleep,
    a_post_wakes_a_guest_that_has_no_work,
    wake_ends_the_sleep_of_a_guest,
    work_that_comes_up_before_the_sleep_prevents_it,
    a_guest_woken_in_vain_can_sleep_again,
    a_guest_that_spins_sees_events_and_posts,
    a_loop_that_spins_does_so_without_the_lock,
    another_loop_that_waits_for_the_reactor_waits_for_the_guest,
];

fn the_sleep_ends_at_the_guests_deadline(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let start = reactor.clock();
    let deadline = start + Duration::from_millis(20);
    runtime.at(deadline, |reactor| reactor.stop());
    run(&mut reactor);
    assert!(reactor.now() >= deadline, "it is never early");
    assert_eq!((runtime.parks(), runtime.batches()), (1, 1), "it slept once and ran once");
}

fn the_sleep_ends_at_the_reactors_deadline_if_that_is_earlier(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    runtime.at(reactor.clock() + Duration::from_secs(3600), |_| panic!("it is not due"));
    reactor.after(Duration::from_millis(5), |reactor| reactor.stop());
    run(&mut reactor);
    assert_eq!((runtime.parks(), runtime.batches()), (1, 0));
}

fn the_lock_is_released_only_to_sleep(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    let watch = watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    for _ in 0..10 {
        // Something is ready whenever the loop looks.
        reactor.turn(None).unwrap();
    }
    reactor.end(watch);
    runtime.busy();
    for _ in 0..10 {
        reactor.turn(None).unwrap();
    }
    assert_eq!(runtime.parks(), 0);
    runtime.0.borrow_mut().ready.clear();
    reactor.turn(Some(Duration::from_millis(1))).unwrap();
    assert_eq!((runtime.parks(), reactor.stats().sleeps), (1, 1));
}

/// Says when it sleeps.
struct Sleepy(Sender<()>);

impl Guest for Sleepy {
    fn has_work(&mut self) -> bool {
        false
    }

    fn run(&mut self, _: &mut Reactor) -> Batch {
        unreachable!("it has no work")
    }

    fn park(&mut self, sleep: &mut Sleep<'_>) -> io::Result<()> {
        // The test may have ended.
        let _ = self.0.send(());
        sleep.block()
    }
}

/// Calls `act` on another thread each time the loop is about to sleep, so many times.
fn when_asleep(reactor: &mut Reactor, times: usize, act: fn(&Handle)) {
    let (asleep, is_asleep) = channel();
    reactor.host(Sleepy(asleep)).unwrap();
    let handle = reactor.handle();
    std::thread::spawn(move || {
        for _ in 0..times {
            is_asleep.recv().unwrap();
            act(&handle);
        }
        handle.stop();
    });
}

fn a_post_wakes_a_guest_that_has_no_work(on: On) {
    let mut reactor = on.reactor();
    when_asleep(&mut reactor, 50, |handle| handle.post(|_| {}).unwrap());
    run(&mut reactor);
    assert_eq!(reactor.stats().posts, 51);
}

fn wake_ends_the_sleep_of_a_guest(on: On) {
    let mut reactor = on.reactor();
    when_asleep(&mut reactor, 50, Handle::wake);
    let start = Instant::now();
    run(&mut reactor);
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(reactor.stats().posts, 1, "waking posts nothing");
}

fn work_that_comes_up_before_the_sleep_prevents_it(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let guest = runtime.clone();
    runtime.0.borrow_mut().before_sleep = Some(Box::new(move |_| guest.soon(|_| {})));
    reactor.turn(None).unwrap();
    assert_eq!((runtime.parks(), runtime.batches()), (0, 1), "the guest's own work");
    runtime.0.borrow_mut().before_sleep =
        Some(Box::new(|reactor| reactor.next_tick(|reactor| *reactor.state::<bool>() = true)));
    reactor.turn(None).unwrap();
    reactor.turn(Some(Duration::ZERO)).unwrap();
    assert!(*reactor.state::<bool>());
    let guest = runtime.clone();
    runtime.0.borrow_mut().before_sleep = Some(Box::new(move |reactor| guest.at(reactor.clock(), |_| {})));
    reactor.turn(None).unwrap();
    assert_eq!(runtime.batches(), 2, "a timer of the guest");
}

/// Sleeps until there is an event, or its time has come.
struct Stubborn {
    blocks: Rc<Cell<u32>>,
}

impl Guest for Stubborn {
    fn has_work(&mut self) -> bool {
        false
    }

    fn run(&mut self, _: &mut Reactor) -> Batch {
        unreachable!("it has no work")
    }

    fn park(&mut self, sleep: &mut Sleep<'_>) -> io::Result<()> {
        loop {
            self.blocks.set(self.blocks.get() + 1);
            sleep.block()?;
            if sleep.has_work() || sleep.until().is_some_and(|until| until <= sleep.clock()) {
                return Ok(());
            }
        }
    }
}

fn a_guest_woken_in_vain_can_sleep_again(on: On) {
    let mut reactor = on.reactor();
    let blocks = Rc::new(Cell::new(0));
    reactor.host(Stubborn { blocks: blocks.clone() }).unwrap();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    let handle = reactor.handle();
    // It has been woken before it sleeps, so the first sleep ends at once.
    handle.wake();
    poll(&mut reactor);
    handle.wake();
    reactor.turn(Some(Duration::from_millis(5))).unwrap();
    let waiting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        handle.wake();
        std::thread::sleep(Duration::from_millis(5));
        theirs.write_all(b"x").unwrap();
        theirs
    });
    let before = blocks.get();
    reactor.turn(None).unwrap();
    assert_eq!(log.take(), ["r"], "the event that ended the sleep is not lost");
    assert_eq!(blocks.get() - before, 2, "it slept again after the wake-up");
    waiting.join().unwrap();
}

/// Polls instead of sleeping.
struct Spinning;

impl Guest for Spinning {
    fn has_work(&mut self) -> bool {
        false
    }

    fn run(&mut self, _: &mut Reactor) -> Batch {
        unreachable!("it has no work")
    }

    fn park(&mut self, sleep: &mut Sleep<'_>) -> io::Result<()> {
        while !sleep.poll()? && sleep.until().is_none_or(|until| until > sleep.clock()) {}
        Ok(())
    }
}

fn a_guest_that_spins_sees_events_and_posts(on: On) {
    let mut reactor = on.reactor();
    reactor.host(Spinning).unwrap();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    let handle = reactor.handle();
    let other = std::thread::spawn(move || {
        assert_eq!(handle.post_with_reply(|_| 7).wait(), Ok(7));
        theirs.write_all(b"x").unwrap();
        theirs
    });
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), ["r"]);
    other.join().unwrap();
    assert_eq!(reactor.stats().sleeps, 0);
}

fn a_loop_that_spins_does_so_without_the_lock(on: On) {
    let mut reactor = on.build(on.builder().spin(Duration::from_millis(50)));
    let runtime = Runtime::on(&mut reactor);
    // The first sleep is short, so the second one begins by spinning.
    for sleeps in 1..=2 {
        let guest = runtime.clone();
        let done = Rc::new(Cell::new(false));
        let flag = done.clone();
        runtime.at(reactor.clock() + Duration::from_millis(5), move |_| {
            assert!(guest.0.borrow().locked);
            flag.set(true);
        });
        run_until(&mut reactor, |_| done.get());
        assert_eq!(runtime.parks(), sleeps);
    }
    assert_eq!(reactor.stats().sleeps, 1, "the second time it spun");
}

fn another_loop_that_waits_for_the_reactor_waits_for_the_guest(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    assert_eq!(reactor.next_deadline(), None);
    let deadline = reactor.clock() + Duration::from_secs(5);
    runtime.at(deadline, |_| {});
    assert_eq!(reactor.next_deadline(), Some(deadline));
    runtime.soon(|_| {});
    assert_eq!(reactor.next_deadline(), Some(Time::ZERO));
    poll(&mut reactor);
    assert_eq!(reactor.next_deadline(), Some(deadline));
}
