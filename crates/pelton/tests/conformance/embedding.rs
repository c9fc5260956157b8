//! Driving the loop from another one.

use std::time::{Duration, Instant};

use pelton::{Batch, EngineKind, Guest, Reactor, Sleep, Time};
use pelton_testing::{On, on_every_engine, poll, run};
use rustix::event::{PollFd, PollFlags, Timespec};

on_every_engine![
    another_loop_can_wait_for_the_reactor,
    next_deadline_tells_when_to_turn,
    the_blocking_part_of_a_turn_can_be_sent_elsewhere,
];

/// Acts as a foreign loop: waits for the reactor's descriptor until the reactor's deadline, then turns the reactor.
fn another_loop_can_wait_for_the_reactor(on: On) {
    let mut reactor = on.reactor();
    if matches!(on.0, EngineKind::Poll | EngineKind::Select) {
        assert!(reactor.as_fd().is_none());
        return;
    }
    let handle = reactor.handle();
    reactor.after(Duration::from_millis(5), move |_| {
        std::thread::spawn(move || handle.stop());
    });
    let start = Instant::now();
    let mut turns = 0;
    while !reactor.stopped() {
        let timeout = reactor.next_deadline().map(|deadline| deadline - reactor.clock());
        let timeout = timeout.map(|timeout| Timespec::try_from(timeout).unwrap());
        let descriptor = reactor.as_fd().unwrap();
        rustix::event::poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], timeout.as_ref()).unwrap();
        poll(&mut reactor);
        turns += 1;
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    reactor.shutdown().unwrap();
    assert!(start.elapsed() >= Duration::from_millis(5));
    assert!(turns < 20, "the other loop did not sleep: {turns} turns");
}

fn next_deadline_tells_when_to_turn(on: On) {
    let mut reactor = on.reactor();
    assert_eq!(reactor.next_deadline(), None);
    let timer = reactor.after(Duration::from_secs(5), |_| {});
    assert_eq!(reactor.next_deadline(), reactor.deadline(timer));
    reactor.next_tick(|_| {});
    assert_eq!(reactor.next_deadline(), Some(Time::ZERO));
    poll(&mut reactor);
    assert_eq!(reactor.next_deadline(), reactor.deadline(timer));
    reactor.handle().post(|_| {}).unwrap();
    assert_eq!(reactor.next_deadline(), Some(Time::ZERO));
}

fn the_blocking_part_of_a_turn_can_be_sent_elsewhere(on: On) {
    struct Elsewhere;
    impl Guest for Elsewhere {
        fn has_work(&mut self) -> bool {
            false
        }
        fn run(&mut self, _: &mut Reactor) -> Batch {
            unreachable!("it has no work")
        }
        fn park(&mut self, sleep: &mut Sleep<'_>) -> std::io::Result<()> {
            let park = sleep.park();
            std::thread::scope(|scope| scope.spawn(|| park.block()).join().unwrap())
        }
    }
    let mut reactor = on.reactor();
    reactor.host(Elsewhere).unwrap();
    reactor.after(Duration::from_millis(3), |reactor| reactor.stop());
    run(&mut reactor);
    assert_eq!(reactor.stats().sleeps, 1);
}
