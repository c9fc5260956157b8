//! Enqueueing, running, retrying, leases.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use pelton::Reactor;
use pelton_jobs::{Cancelled, Failure, Job, State};
use pelton_testing::run_until;

use crate::{Place, enqueue, finish_all, inspect, keep_runs, queue, quick, settled, stats, text, until_stats};

on_every_store![
    jobs_run_once_and_leave_nothing,
    results_and_progress_can_be_inspected_for_a_while,
    delayed_jobs_wait_for_their_time,
    repeated_jobs_come_again,
    failed_jobs_are_retried_with_growing_waits_and_then_die,
    rejected_jobs_die_at_once_and_can_be_brought_back,
    unique_jobs_are_enqueued_once,
    waiting_jobs_are_cancelled_and_running_ones_are_told,
    heartbeats_keep_a_long_job,
    draining_ends_running_jobs_and_takes_no_others,
    jobs_are_listed_and_purged,
];

/// On stores that several loops can open. A file belongs to one process and loop, so there is nobody else to take a job over.
mod taking_over {
    use super::{
        a_frozen_worker_loses_its_job_and_its_late_end_does_not_count, a_poisonous_job_dies_although_nobody_reports_it,
    };

    on_stores! {
        memory redis: [
            a_frozen_worker_loses_its_job_and_its_late_end_does_not_count,
            a_poisonous_job_dies_although_nobody_reports_it,
        ]
    }
}

fn jobs_run_once_and_leave_nothing(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let log = finish_all(&mut reactor, &jobs, queue());
    let mut ids = Vec::new();
    for number in 0..50 {
        let enqueued = enqueue(&mut reactor, &jobs, Job::new(number.to_string()));
        assert!(enqueued.new);
        ids.push(enqueued.id);
    }
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.done == 50);
    assert_eq!((stats.enqueued, stats.ready, stats.running, stats.failed, stats.stale), (50, 0, 0, 0, 0));
    let mut seen = log.borrow().clone();
    seen.sort_by_key(|number| number.parse::<u32>().unwrap());
    assert_eq!(seen, (0..50).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(inspect(&mut reactor, &jobs, &ids[0]), None);
    let queues = jobs.queues(&mut reactor);
    assert_eq!(settled(&mut reactor, queues).unwrap(), ["q"]);
}

fn results_and_progress_can_be_inspected_for_a_while(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let (worker, runs) = keep_runs(&mut reactor, &jobs, queue());
    let job = Job::new("work").keep_result(Duration::from_millis(400));
    let id = enqueue(&mut reactor, &jobs, job).id;
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    let run = runs.borrow_mut().pop().unwrap();
    run.report("half");
    let reported = |reactor: &mut _| inspect(reactor, &jobs, &id).is_some_and(|info| info.progress == b"half");
    while !reported(&mut reactor) {}
    let info = inspect(&mut reactor, &jobs, &id).unwrap();
    assert_eq!((info.state, info.attempt, info.fence), (State::Running, 1, run.fence()));
    assert_eq!(info.worker.as_deref(), Some(worker.name()));
    run.done("the result");
    run.fail(Failure::new("only the first end counts"));
    until_stats(&mut reactor, &jobs, |stats| stats.done == 1);
    if let Some(info) = inspect(&mut reactor, &jobs, &id) {
        assert_eq!((info.state, info.result.as_deref()), (State::Done, Some(&b"the result"[..])));
    }
    let end = Instant::now() + Duration::from_secs(10);
    while inspect(&mut reactor, &jobs, &id).is_some() {
        assert!(Instant::now() < end, "the result is kept for ever");
        reactor.turn(Some(Duration::from_millis(20))).unwrap();
    }
}

fn delayed_jobs_wait_for_their_time(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let log = finish_all(&mut reactor, &jobs, queue());
    let started = Instant::now();
    enqueue(&mut reactor, &jobs, Job::new("later").delay(Duration::from_millis(300)));
    enqueue(&mut reactor, &jobs, Job::new("at").at(SystemTime::now() + Duration::from_millis(150)));
    enqueue(&mut reactor, &jobs, Job::new("past").at(SystemTime::UNIX_EPOCH));
    enqueue(&mut reactor, &jobs, Job::new("now"));
    until_stats(&mut reactor, &jobs, |stats| stats.done == 4);
    assert_eq!(*log.borrow(), ["past", "now", "at", "later"]);
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(stats(&mut reactor, &jobs).delayed, 0);
}

fn repeated_jobs_come_again(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let log = finish_all(&mut reactor, &jobs, queue());
    let every = Duration::from_millis(60);
    for expected in [true, false] {
        let repeated = jobs.repeat(&mut reactor, "q", "clean", every, Job::new("clean"));
        assert_eq!(settled(&mut reactor, repeated).unwrap(), expected);
    }
    let started = Instant::now();
    run_until(&mut reactor, |_| log.borrow().len() >= 4);
    assert!(started.elapsed() >= every * 2, "{:?}", started.elapsed());
    let ended = jobs.end_repeat(&mut reactor, "q", "clean");
    assert!(settled(&mut reactor, ended).unwrap());
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.done == stats.enqueued);
    let end = Instant::now() + every * 3;
    while Instant::now() < end {
        reactor.turn(Some(Duration::from_millis(10))).unwrap();
    }
    assert_eq!(crate::stats(&mut reactor, &jobs).enqueued, stats.enqueued);
}

fn failed_jobs_are_retried_with_growing_waits_and_then_die(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let times = Rc::new(RefCell::new(Vec::new()));
    let filled = times.clone();
    jobs.work(&mut reactor, queue(), move |_, run| {
        filled.borrow_mut().push((Instant::now(), run.attempt(), run.fence()));
        run.fail(Failure::new("no"));
    })
    .unwrap();
    let id = enqueue(&mut reactor, &jobs, Job::new("x").retry(quick(4).first_wait(Duration::from_millis(40)))).id;
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.dead == 1);
    assert_eq!((stats.failed, stats.buried, stats.done), (4, 1, 0));
    let times = times.borrow();
    assert_eq!(times.iter().map(|(_, attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(times.is_sorted_by(|a, b| a.2 < b.2), "{times:?}");
    for (number, wait) in [36, 74, 150].into_iter().enumerate() {
        let waited = times[number + 1].0 - times[number].0;
        assert!(waited >= Duration::from_millis(wait), "attempt {number}: {waited:?}");
    }
    let info = inspect(&mut reactor, &jobs, &id).unwrap();
    assert_eq!((info.state, info.error.as_deref()), (State::Dead, Some("no")));
}

fn rejected_jobs_die_at_once_and_can_be_brought_back(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let rejecting = Rc::new(std::cell::Cell::new(true));
    let switch = rejecting.clone();
    jobs.work(
        &mut reactor,
        queue(),
        move |_, run| {
            if switch.get() { run.fail(Failure::reject("never")) } else { run.done("") }
        },
    )
    .unwrap();
    for number in 0..3 {
        enqueue(&mut reactor, &jobs, Job::new(number.to_string()).key("k"));
    }
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.dead == 3);
    assert_eq!(stats.failed, 3);
    rejecting.set(false);
    let dead = jobs.list(&mut reactor, "q", State::Dead, 0, 10);
    let dead = settled(&mut reactor, dead).unwrap();
    let back = jobs.requeue(&mut reactor, "q", Some(&dead[0].id));
    assert_eq!(settled(&mut reactor, back).unwrap(), 1);
    let back = jobs.requeue(&mut reactor, "q", None);
    assert_eq!(settled(&mut reactor, back).unwrap(), 2);
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.done == 3);
    assert_eq!(stats.dead, 0);
    let back = jobs.requeue(&mut reactor, "q", Some(&dead[0].id));
    assert_eq!(settled(&mut reactor, back).unwrap(), 0);
}

fn unique_jobs_are_enqueued_once(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let first = enqueue(&mut reactor, &jobs, Job::new("1").unique("u"));
    let second = enqueue(&mut reactor, &jobs, Job::new("2").unique("u"));
    assert!(first.new && !second.new);
    assert_eq!(first.id, second.id);
    let log = finish_all(&mut reactor, &jobs, queue());
    until_stats(&mut reactor, &jobs, |stats| stats.done == 1);
    assert!(enqueue(&mut reactor, &jobs, Job::new("3").unique("u")).new);
    until_stats(&mut reactor, &jobs, |stats| stats.done == 2);
    assert_eq!(*log.borrow(), ["1", "3"]);
}

fn waiting_jobs_are_cancelled_and_running_ones_are_told(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let waiting = enqueue(&mut reactor, &jobs, Job::new("delayed").delay(Duration::from_secs(60))).id;
    let cancelled = jobs.cancel(&mut reactor, "q", &waiting);
    assert_eq!(settled(&mut reactor, cancelled).unwrap(), Cancelled::Yes);
    let cancelled = jobs.cancel(&mut reactor, "q", &waiting);
    assert_eq!(settled(&mut reactor, cancelled).unwrap(), Cancelled::Unknown);
    let (_, runs) = keep_runs(&mut reactor, &jobs, queue().lease(Duration::from_millis(900)));
    let running = enqueue(&mut reactor, &jobs, Job::new("x")).id;
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    let cancelled = jobs.cancel(&mut reactor, "q", &running);
    assert_eq!(settled(&mut reactor, cancelled).unwrap(), Cancelled::Requested);
    run_until(&mut reactor, |_| runs.borrow()[0].is_cancelled());
    runs.borrow_mut().pop().unwrap().fail(Failure::new("interrupted"));
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.cancelled == 2);
    assert_eq!((stats.running, stats.delayed, stats.dead), (0, 0, 0));
}

fn a_frozen_worker_loses_its_job_and_its_late_end_does_not_count(place: &Place) {
    let lease = Duration::from_millis(200);
    let mut frozen = Reactor::new().unwrap();
    let frozen_jobs = place.open(&mut frozen);
    let (slow, runs) = keep_runs(&mut frozen, &frozen_jobs, queue().lease(lease));
    enqueue(&mut frozen, &frozen_jobs, Job::new("x").key("k").retry(quick(5)));
    run_until(&mut frozen, |_| runs.borrow().len() == 1);
    // From here on, the first loop does not turn.
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let (second, taken) = keep_runs(&mut reactor, &jobs, queue().lease(Duration::from_secs(9)));
    run_until(&mut reactor, |_| taken.borrow().len() == 1);
    let (old, new) = (runs.borrow_mut().pop().unwrap(), taken.borrow_mut().pop().unwrap());
    assert_eq!((new.attempt(), new.id()), (2, old.id()));
    assert!(new.fence() > old.fence());
    old.done("too late");
    run_until(&mut frozen, |_| slow.stats().stale == 1);
    assert_eq!(stats(&mut reactor, &jobs).running, 1);
    new.done("");
    run_until(&mut reactor, |_| second.stats().done == 1);
    let stats = stats(&mut reactor, &jobs);
    assert_eq!((stats.done, stats.taken_over, stats.stale, stats.running), (1, 1, 1, 0));
}

fn heartbeats_keep_a_long_job(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let lease = Duration::from_millis(900);
    let (worker, runs) = keep_runs(&mut reactor, &jobs, queue().lease(lease));
    let (_, others) = keep_runs(&mut reactor, &jobs, queue().lease(lease));
    enqueue(&mut reactor, &jobs, Job::new("long"));
    let end = Instant::now() + lease * 2;
    while Instant::now() < end {
        reactor.turn(Some(Duration::from_millis(20))).unwrap();
    }
    let run = runs.borrow_mut().pop().or(others.borrow_mut().pop()).unwrap();
    assert!(!run.is_lost());
    run.done("");
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.done == 1);
    assert_eq!((stats.taken_over, stats.stale), (0, 0), "{:?}", worker.stats());
}

fn a_poisonous_job_dies_although_nobody_reports_it(place: &Place) {
    let lease = Duration::from_millis(60);
    let mut victims = Vec::new();
    for attempt in 1..=2 {
        let mut reactor = Reactor::new().unwrap();
        let jobs = place.open(&mut reactor);
        if attempt == 1 {
            enqueue(&mut reactor, &jobs, Job::new("poison").key("k").retry(quick(2)));
        }
        let (_, runs) = keep_runs(&mut reactor, &jobs, queue().lease(lease));
        run_until(&mut reactor, |_| runs.borrow().len() == 1);
        assert_eq!(runs.borrow()[0].attempt(), attempt);
        victims.push((reactor, runs));
    }
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    // The next job of the key is not held up for ever.
    enqueue(&mut reactor, &jobs, Job::new("healthy").key("k"));
    let log = finish_all(&mut reactor, &jobs, queue().lease(Duration::from_secs(6)));
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.dead == 1 && stats.done == 1);
    assert_eq!(stats.taken_over, 2);
    assert_eq!(*log.borrow(), ["healthy"]);
}

fn draining_ends_running_jobs_and_takes_no_others(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let (worker, runs) = keep_runs(&mut reactor, &jobs, queue().concurrency(1));
    enqueue(&mut reactor, &jobs, Job::new("first"));
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    enqueue(&mut reactor, &jobs, Job::new("second"));
    let drained = worker.drain(&mut reactor);
    let run = runs.borrow_mut().pop().unwrap();
    reactor.after(Duration::from_millis(30), move |_| run.done(""));
    settled(&mut reactor, drained).unwrap();
    let found = stats(&mut reactor, &jobs);
    assert_eq!((found.done, found.ready, found.running), (1, 1, 0));
    assert!(runs.borrow().is_empty());
    let log = finish_all(&mut reactor, &jobs, queue());
    run_until(&mut reactor, |_| !log.borrow().is_empty());
    assert_eq!(*log.borrow(), ["second"]);
}

fn jobs_are_listed_and_purged(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    for number in 0..5 {
        enqueue(&mut reactor, &jobs, Job::new(format!("ready {number}")));
        enqueue(&mut reactor, &jobs, Job::new(format!("keyed {number}")).key("k"));
        enqueue(&mut reactor, &jobs, Job::new(format!("delayed {number}")).delay(Duration::from_secs(60)));
    }
    let found = stats(&mut reactor, &jobs);
    assert_eq!((found.ready, found.blocked, found.delayed), (6, 4, 5));
    let list = jobs.list(&mut reactor, "q", State::Delayed, 1, 2);
    let list = settled(&mut reactor, list).unwrap();
    assert_eq!(list.iter().map(|info| info.payload.clone()).collect::<Vec<_>>(), [b"delayed 1", b"delayed 2"]);
    for (state, expected) in [(State::Blocked, 4), (State::Ready, 6), (State::Delayed, 5), (State::Running, 0)] {
        let purged = jobs.purge(&mut reactor, "q", state);
        assert_eq!(settled(&mut reactor, purged).unwrap(), expected, "{state}");
    }
    let found = stats(&mut reactor, &jobs);
    assert_eq!((found.ready, found.blocked, found.delayed), (0, 0, 0));
    // Nothing of the keys is left in the way.
    let (_, runs) = keep_runs(&mut reactor, &jobs, queue());
    enqueue(&mut reactor, &jobs, Job::new("new").key("k"));
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    assert_eq!(text(&runs.borrow()[0]), "new");
}
