//! Limits of queues and of what is enqueued.

use std::time::{Duration, Instant};

use pelton::Reactor;
use pelton_jobs::{Error, Job, Jobs, Limits, NAME_LIMIT, PAYLOAD_LIMIT};

use crate::{Place, enqueue, finish_all, keep_runs, queue, settled, stats, until_stats};

on_every_store![
    a_queue_runs_only_so_many_at_once,
    a_queue_starts_only_so_many_per_time,
    a_paused_queue_starts_nothing,
    a_full_queue_refuses,
    absurd_jobs_are_refused,
];

fn configure(reactor: &mut pelton::EventLoop, jobs: &Jobs, limits: Limits) {
    let configured = jobs.configure(reactor, "q", limits);
    settled(reactor, configured).unwrap();
    assert_eq!(stats(reactor, jobs).limits, limits);
}

fn a_queue_runs_only_so_many_at_once(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    configure(&mut reactor, &jobs, Limits { concurrency: Some(3), ..Limits::default() });
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let other = place.open(&mut reactor);
            keep_runs(&mut reactor, &other, queue())
        })
        .collect();
    for number in 0..9 {
        enqueue(&mut reactor, &jobs, Job::new(number.to_string()));
    }
    for done in 0..9 {
        let found = until_stats(&mut reactor, &jobs, |stats| stats.running == 3.min(9 - done));
        assert!(found.running <= 3);
        pelton_testing::run_until(&mut reactor, |_| workers.iter().any(|(_, runs)| !runs.borrow().is_empty()));
        let run = workers.iter().find_map(|(_, runs)| runs.borrow_mut().pop()).unwrap();
        run.done("");
        until_stats(&mut reactor, &jobs, |stats| stats.done == done + 1);
    }
}

fn a_queue_starts_only_so_many_per_time(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    configure(&mut reactor, &jobs, Limits { rate: Some((5, 200)), ..Limits::default() });
    for number in 0..12 {
        enqueue(&mut reactor, &jobs, Job::new(number.to_string()));
    }
    let started = Instant::now();
    let log = finish_all(&mut reactor, &jobs, queue());
    until_stats(&mut reactor, &jobs, |stats| stats.done == 12);
    // Five at once, and then one every 40 milliseconds.
    assert!(started.elapsed() >= Duration::from_millis(7 * 40 - 20), "{:?}", started.elapsed());
    assert_eq!(log.borrow().len(), 12);
}

fn a_paused_queue_starts_nothing(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    configure(&mut reactor, &jobs, Limits { paused: true, ..Limits::default() });
    let log = finish_all(&mut reactor, &jobs, queue().lease(Duration::from_millis(60)));
    enqueue(&mut reactor, &jobs, Job::new("x"));
    let end = Instant::now() + Duration::from_millis(150);
    while Instant::now() < end {
        reactor.turn(Some(Duration::from_millis(10))).unwrap();
    }
    assert!(log.borrow().is_empty());
    configure(&mut reactor, &jobs, Limits::default());
    until_stats(&mut reactor, &jobs, |stats| stats.done == 1);
}

fn a_full_queue_refuses(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    configure(&mut reactor, &jobs, Limits { most: Some(2), ..Limits::default() });
    enqueue(&mut reactor, &jobs, Job::new("1"));
    enqueue(&mut reactor, &jobs, Job::new("2").delay(Duration::from_millis(50)));
    let refused = jobs.enqueue(&mut reactor, "q", Job::new("3"));
    let refused = settled(&mut reactor, refused).unwrap_err();
    assert!(matches!(&refused, Error::Full { queue, most: 2 } if queue == "q"), "{refused:?}");
    finish_all(&mut reactor, &jobs, queue());
    until_stats(&mut reactor, &jobs, |stats| stats.done == 2);
    enqueue(&mut reactor, &jobs, Job::new("4"));
}

fn absurd_jobs_are_refused(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let long = "x".repeat(NAME_LIMIT + 1);
    let bad = [
        ("q", Job::new(vec![0; PAYLOAD_LIMIT + 1])),
        ("q", Job::new("").key("")),
        ("q", Job::new("").key("a\nb")),
        ("q", Job::new("").unique(long.clone())),
        ("", Job::new("")),
        ("a{b}", Job::new("")),
        (long.as_str(), Job::new("")),
    ];
    for (name, job) in bad {
        let refused = jobs.enqueue(&mut reactor, name, job);
        let refused = settled(&mut reactor, refused);
        assert!(matches!(refused, Err(Error::BadJob(_))), "{refused:?}");
    }
    // Any bytes are a payload, and times may be far away.
    let payload: Vec<u8> = (0..=255).collect();
    let (_, runs) = keep_runs(&mut reactor, &jobs, queue());
    enqueue(&mut reactor, &jobs, Job::new(payload.clone()).key("ключ 'quoted' \"twice\" *"));
    enqueue(&mut reactor, &jobs, Job::new("").delay(Duration::MAX));
    pelton_testing::run_until(&mut reactor, |_| runs.borrow().len() == 1);
    assert_eq!(runs.borrow()[0].payload(), payload);
    runs.borrow_mut().clear();
    let found = until_stats(&mut reactor, &jobs, |stats| stats.failed == 1);
    assert_eq!(found.delayed, 2);
}
