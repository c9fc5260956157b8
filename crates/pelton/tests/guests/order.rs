//! When a batch runs, and what comes between two of them.

use std::cell::Cell;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use pelton::Interest;
use pelton_testing::{Log, On, on_every_engine, poll, run_until, watch_and_log};

use crate::Runtime;

on_every_engine![
    work_that_any_phase_queues_runs_in_the_same_turn,
    what_a_batch_queues_waits_for_the_next_batch,
    without_sources_batches_follow_each_other_in_one_turn,
    with_a_source_each_turn_polls_and_runs_one_batch,
    turns_with_work_and_without_sources_do_not_all_poll,
    a_timer_set_among_short_batches_is_not_late,
    quiet_sources_do_not_end_a_turn,
    ticks_timers_and_posts_come_between_batches,
    a_batch_can_end_the_turn,
    a_guest_that_always_has_work_starves_nothing,
    a_reactor_that_always_has_work_does_not_starve_the_guest,
];

fn work_that_any_phase_queues_runs_in_the_same_turn(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    let (guest, entry) = (runtime.clone(), log.clone());
    reactor.after(Duration::ZERO, move |_| guest.soon_log(&entry, "of a timer"));
    let (guest, entry) = (runtime.clone(), log.clone());
    reactor.next_tick(move |_| guest.soon_log(&entry, "of a tick"));
    let (guest, entry) = (runtime, log.clone());
    reactor
        .watch(&ours, Interest::READABLE, move |reactor, ready| {
            guest.soon_log(&entry, "of a watch");
            reactor.end(ready.watch);
        })
        .unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["of a timer", "of a tick", "of a watch"]);
}

fn what_a_batch_queues_waits_for_the_next_batch(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    let (_ours, _theirs) = UnixStream::pair().unwrap();
    let _watch = watch_and_log(&mut reactor, &_ours, Interest::READABLE, &log);
    let (guest, entry) = (runtime.clone(), log.clone());
    runtime.soon(move |_| {
        entry.add("first");
        guest.soon_log(&entry, "queued");
    });
    runtime.soon_log(&log, "second");
    poll(&mut reactor);
    assert_eq!(log.take(), ["first", "second"]);
    poll(&mut reactor);
    assert_eq!(log.take(), ["queued"]);
}

/// Queues a job that queues the next, so many times.
fn chain(runtime: &Runtime, links: u32) {
    let next = runtime.clone();
    if links > 0 {
        runtime.soon(move |_| chain(&next, links - 1));
    }
}

fn without_sources_batches_follow_each_other_in_one_turn(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    chain(&runtime, 1_000);
    run_until(&mut reactor, |_| runtime.batches() == 1_000);
    let turns = reactor.stats().turns;
    // How many fit into a turn depends on how busy the machine is.
    assert!(turns < 500, "{turns} turns");
}

fn with_a_source_each_turn_polls_and_runs_one_batch(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    chain(&runtime, 10);
    for batches in 1..=10 {
        poll(&mut reactor);
        assert_eq!((runtime.batches(), reactor.stats().turns), (batches, batches));
    }
}

fn turns_with_work_and_without_sources_do_not_all_poll(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let polls_per_turn = |reactor: &mut pelton::EventLoop| {
        let before = reactor.stats();
        for _ in 0..1_000 {
            let guest = runtime.clone();
            runtime.soon(move |_| guest.0.borrow_mut().ends_turn = true);
            reactor.turn(None).unwrap();
        }
        let after = reactor.stats();
        assert_eq!(after.turns - before.turns, 1_000);
        (after.polls - before.polls) as f64 / 1_000.0
    };
    assert!(polls_per_turn(&mut reactor) < 0.5);
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let log = Log::default();
    let watch = watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    assert_eq!(polls_per_turn(&mut reactor), 1.0);
    reactor.end(watch);
    assert!(polls_per_turn(&mut reactor) < 0.5);
}

fn a_timer_set_among_short_batches_is_not_late(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    // Many short batches, so that the clock is not read for each; then a timer that is due at once.
    chain(&runtime, 20);
    let (guest, entry) = (runtime.clone(), log.clone());
    fn after_many(runtime: Runtime, log: Log, left: u32) {
        let next = runtime.clone();
        runtime.clone().soon(move |reactor| {
            if left > 0 {
                return after_many(next, log, left - 1);
            }
            let entry = log.clone();
            next.at(reactor.clock(), move |_| entry.add("timer"));
            // The timer is due when this batch begins, so both run in it.
            let (entry, runtime) = (log.clone(), next.clone());
            next.soon(move |_| {
                entry.add("job");
                runtime.soon_log(&entry, "next batch");
            });
        });
    }
    after_many(guest, entry, 20);
    run_until(&mut reactor, |_| log.len() == 3);
    assert_eq!(log.take(), ["job", "timer", "next batch"]);
}

fn quiet_sources_do_not_end_a_turn(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    runtime.0.borrow_mut().quiet_sources = reactor.source_count();
    runtime.busy();
    let mut together = false;
    run_until(&mut reactor, |reactor| {
        together |= runtime.batches() > reactor.stats().turns + 10;
        together
    });
    // It is still looked at, though not between all batches.
    theirs.write_all(b"x").unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
}

fn ticks_timers_and_posts_come_between_batches(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    let (guest, entry) = (runtime.clone(), log.clone());
    runtime.soon(move |reactor| {
        entry.add("batch");
        let (guest, entry) = (guest.clone(), entry.clone());
        let log = entry.clone();
        reactor.next_tick(move |_| log.add("tick"));
        guest.clone().soon(move |reactor| {
            entry.add("batch");
            let log = entry.clone();
            reactor.after(Duration::ZERO, move |_| log.add("timer"));
            guest.clone().soon(move |reactor| {
                entry.add("batch");
                reactor.handle().post(|reactor| *reactor.state::<u32>() += 1).unwrap();
                guest.soon(move |reactor| {
                    assert_eq!(*reactor.state::<u32>(), 1, "the post has run");
                    entry.add("batch");
                });
            });
        });
    });
    for _ in 0..4 {
        poll(&mut reactor);
    }
    assert_eq!(log.take(), ["batch", "tick", "batch", "timer", "batch", "batch"]);
}

fn a_batch_can_end_the_turn(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    for turns in 1..=3 {
        let guest = runtime.clone();
        runtime.soon(move |_| guest.0.borrow_mut().ends_turn = true);
        poll(&mut reactor);
        assert_eq!((runtime.batches(), reactor.stats().turns), (turns, turns));
        assert!(!reactor.stopped(), "it can be turned again");
    }
    // The same with more work to do.
    let guest = runtime.clone();
    runtime.soon(move |_| {
        guest.0.borrow_mut().ends_turn = true;
        guest.busy();
    });
    poll(&mut reactor);
    assert_eq!(runtime.batches(), 4);
}

fn a_guest_that_always_has_work_starves_nothing(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    runtime.busy();
    let fired = Rc::new(Cell::new(0));
    let count = fired.clone();
    reactor.every(Duration::from_millis(1), move |_, _| count.set(count.get() + 1));
    run_until(&mut reactor, |_| fired.get() == 5);
    let handle = reactor.handle();
    let other = std::thread::spawn(move || handle.post_with_reply(|_| 7).wait());
    run_until(&mut reactor, |_| other.is_finished());
    assert_eq!(other.join().unwrap(), Ok(7));
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    poll(&mut reactor);
    assert!(log.is_empty());
    theirs.write_all(b"x").unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["r"], "every turn polls");
}

fn a_reactor_that_always_has_work_does_not_starve_the_guest(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"x").unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    reactor.every(Duration::from_nanos(1), |_, _| {});
    fn again(reactor: &mut pelton::Reactor) {
        reactor.next_tick(again);
    }
    reactor.next_tick(again);
    chain(&runtime, 50);
    for batches in 1..=50 {
        poll(&mut reactor);
        assert_eq!(runtime.batches(), batches);
    }
    let now = reactor.clock();
    let entry = log.clone();
    log.take();
    runtime.at(now, move |_| entry.add("guest's timer"));
    poll(&mut reactor);
    assert_eq!(log.take(), ["r", "guest's timer"]);
}
