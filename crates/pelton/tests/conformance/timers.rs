//! Timers.

use std::cell::Cell;
use std::rc::Rc;
use std::thread::sleep;
use std::time::Duration;

use pelton::Time;
use pelton_testing::{Log, On, on_every_engine, poll, run, run_until};

const MILLISECOND: Duration = Duration::from_millis(1);

on_every_engine![
    timers_fire_by_deadline_and_then_in_the_order_set,
    a_timer_is_never_early,
    a_timer_set_by_a_slow_callback_counts_from_when_it_was_set,
    a_timer_set_by_a_timer_waits_for_the_next_turn,
    zero_huge_and_past_times_work,
    a_cancelled_timer_does_not_fire_and_drops_what_it_holds_at_once,
    due_timer_can_still_be_cancelled_by_an_earlier_one,
    a_reset_timer_fires_at_its_new_time_only,
    a_periodic_timer_does_not_drift,
    late_periodic_timer_fires_once_and_reports_missed_beats,
    a_periodic_timer_can_cancel_and_reset_itself,
    periodic_timer_with_zero_period_does_not_starve_events,
    a_sleep_ends_when_the_earliest_timer_is_due,
    outside_a_turn_the_time_is_never_old,
];

fn timers_fire_by_deadline_and_then_in_the_order_set(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let base = reactor.clock();
    for (name, offset) in [("c", 30), ("a", 10), ("b1", 20), ("b2", 20), ("b3", 20), ("d", 4_000_000)] {
        let entry = log.clone();
        reactor.at(base + Duration::from_nanos(offset), move |_| entry.add(name));
    }
    run_until(&mut reactor, |_| log.len() == 6);
    assert_eq!(log.take(), ["a", "b1", "b2", "b3", "c", "d"]);
}

fn outside_a_turn_the_time_is_never_old(on: On) {
    let mut event_loop = on.reactor();
    poll(&mut event_loop);
    sleep(20 * MILLISECOND);
    let now = event_loop.clock();
    assert!(event_loop.now() >= now);
    // Code that does not know whether a turn is running gets the same.
    let reactor: &mut pelton::Reactor = &mut event_loop;
    assert!(reactor.now() >= now);
}

fn a_timer_is_never_early(on: On) {
    let mut reactor = on.reactor();
    let fired = Rc::new(Cell::new(0));
    for micros in [0, 1, 50, 100, 333, 999, 1_000, 1_001, 2_500, 10_000] {
        let deadline = reactor.clock() + Duration::from_micros(micros);
        let fired = fired.clone();
        reactor.after(Duration::from_micros(micros), move |reactor| {
            assert!(reactor.now() >= deadline && reactor.clock() >= deadline);
            fired.set(fired.get() + 1);
        });
    }
    run_until(&mut reactor, |_| fired.get() == 10);
}

fn a_timer_set_by_a_slow_callback_counts_from_when_it_was_set(on: On) {
    let mut reactor = on.reactor();
    reactor.next_tick(|reactor| {
        sleep(20 * MILLISECOND);
        let set = reactor.clock();
        reactor.after(10 * MILLISECOND, move |reactor| {
            assert!(reactor.clock() - set >= 10 * MILLISECOND);
            reactor.stop();
        });
    });
    run(&mut reactor);
    assert_eq!(reactor.stats().panics, 0);
}

fn a_timer_set_by_a_timer_waits_for_the_next_turn(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    reactor.after(Duration::ZERO, move |reactor| {
        entry.add("first");
        let entry = entry.clone();
        // In the past, so it is due immediately, and before any other.
        reactor.at(Time::ZERO, move |_| entry.add("second"));
    });
    poll(&mut reactor);
    assert_eq!(log.take(), ["first"]);
    poll(&mut reactor);
    assert_eq!(log.take(), ["second"]);
}

fn zero_huge_and_past_times_work(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let never = reactor.after(Duration::MAX, |_| panic!("584 years are not over"));
    reactor.after(Duration::from_secs(1 << 40), |_| panic!("nor are these"));
    let entry = log.clone();
    reactor.after(Duration::ZERO, move |_| entry.add("zero"));
    let entry = log.clone();
    reactor.at(Time::ZERO, move |_| entry.add("past"));
    poll(&mut reactor);
    assert_eq!(log.take(), ["past", "zero"]);
    assert_eq!(reactor.deadline(never), Some(Time::MAX));
    reactor.turn(Some(MILLISECOND)).unwrap();
    assert_eq!(reactor.timer_count(), 2);
}

fn a_cancelled_timer_does_not_fire_and_drops_what_it_holds_at_once(on: On) {
    let mut reactor = on.reactor();
    let held = Rc::new(());
    let captured = held.clone();
    let timer = reactor.after(MILLISECOND, move |_| {
        drop(captured);
        panic!("called after it was cancelled");
    });
    assert!(reactor.cancel(timer));
    assert_eq!(Rc::strong_count(&held), 1);
    assert!(!reactor.cancel(timer) && !reactor.reset(timer, MILLISECOND));
    assert_eq!(reactor.deadline(timer), None);
    reactor.turn(Some(3 * MILLISECOND)).unwrap();
    poll(&mut reactor);
    assert_eq!(reactor.stats().panics, 0);
}

fn due_timer_can_still_be_cancelled_by_an_earlier_one(on: On) {
    let mut reactor = on.reactor();
    let victim = Rc::new(Cell::new(None));
    let known = victim.clone();
    reactor.at(Time::from_nanos(1), move |reactor| assert!(reactor.cancel(known.get().unwrap())));
    victim.set(Some(reactor.at(Time::from_nanos(2), |_| panic!("called after it was cancelled"))));
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!((reactor.stats().panics, reactor.timer_count()), (0, 0));
}

fn a_reset_timer_fires_at_its_new_time_only(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    let later = reactor.after(MILLISECOND, move |_| entry.add("later"));
    let entry = log.clone();
    let sooner = reactor.after(Duration::from_secs(3600), move |_| entry.add("sooner"));
    let start = reactor.clock();
    assert!(reactor.reset(later, 20 * MILLISECOND));
    assert!(reactor.reset(sooner, 5 * MILLISECOND));
    run_until(&mut reactor, |_| log.len() == 2);
    assert!(reactor.clock() - start >= 20 * MILLISECOND);
    assert_eq!(log.take(), ["sooner", "later"]);
    assert!(!reactor.reset(later, MILLISECOND), "it has already fired");
}

fn a_periodic_timer_does_not_drift(on: On) {
    let mut reactor = on.reactor();
    let deadlines = Rc::new(Cell::new(Vec::new()));
    let seen = deadlines.clone();
    let before = reactor.clock();
    reactor.every(2 * MILLISECOND, move |reactor, beat| {
        let mut all = seen.take();
        all.push(beat.deadline);
        // Each callback takes half a period; the delays must not add up.
        sleep(MILLISECOND);
        if all.len() == 10 {
            reactor.stop();
        }
        seen.set(all);
    });
    let after = reactor.clock();
    run(&mut reactor);
    let deadlines = deadlines.take();
    let first = deadlines[0];
    assert!(first >= before + 2 * MILLISECOND && first <= after + 2 * MILLISECOND);
    for deadline in deadlines {
        assert_eq!((deadline - first).as_nanos() % 2_000_000, 0);
    }
}

fn late_periodic_timer_fires_once_and_reports_missed_beats(on: On) {
    let mut reactor = on.reactor();
    let beats = Rc::new(Cell::new(Vec::new()));
    let seen = beats.clone();
    reactor.every(10 * MILLISECOND, move |_, beat| {
        let mut all = seen.take();
        all.push(beat);
        seen.set(all);
    });
    sleep(55 * MILLISECOND);
    poll(&mut reactor);
    poll(&mut reactor);
    let seen = beats.take();
    assert_eq!(seen.len(), 1, "no burst");
    assert!(seen[0].missed >= 4, "{:?}", seen[0]);
    let next = reactor.deadline(seen[0].timer).unwrap();
    assert_eq!(next - seen[0].deadline, 10 * MILLISECOND * (seen[0].missed as u32 + 1));
}

fn a_periodic_timer_can_cancel_and_reset_itself(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    reactor.every(MILLISECOND, move |reactor, beat| {
        entry.add("once");
        assert!(reactor.cancel(beat.timer));
        assert!(!reactor.cancel(beat.timer));
    });
    let entry = log.clone();
    let patient = reactor.every(MILLISECOND, move |reactor, beat| {
        entry.add("patient");
        reactor.reset(beat.timer, Duration::from_secs(3600));
    });
    run_until(&mut reactor, |_| log.len() == 2);
    reactor.turn(Some(5 * MILLISECOND)).unwrap();
    poll(&mut reactor);
    assert_eq!(log.len(), 2);
    assert!(reactor.deadline(patient).unwrap() - reactor.clock() > Duration::from_secs(3000));
    assert_eq!(reactor.timer_count(), 1);
}

fn periodic_timer_with_zero_period_does_not_starve_events(on: On) {
    let mut reactor = on.reactor();
    let beats = Rc::new(Cell::new(0));
    let seen = beats.clone();
    reactor.every(Duration::ZERO, move |_, _| seen.set(seen.get() + 1));
    let handle = reactor.handle();
    let other = std::thread::spawn(move || handle.post_with_reply(|_| ()).wait());
    run_until(&mut reactor, |_| other.is_finished());
    other.join().unwrap().unwrap();
    let turns = reactor.stats().turns;
    assert!(beats.get() as u64 <= turns, "at most once per turn");
}

fn a_sleep_ends_when_the_earliest_timer_is_due(on: On) {
    let mut reactor = on.reactor();
    reactor.after(5 * MILLISECOND, |reactor| reactor.stop());
    reactor.after(Duration::from_secs(3600), |_| {});
    let start = reactor.clock();
    run(&mut reactor);
    assert!((5 * MILLISECOND..Duration::from_secs(10)).contains(&(reactor.clock() - start)));
    let sleeps = reactor.stats().sleeps;
    assert!(sleeps <= 2, "one sleep would do, it took {sleeps}");
}
