//! Keys and priorities.

use std::time::Duration;

use pelton::Reactor;
use pelton_jobs::{Failure, Job, Priority};
use pelton_testing::run_until;

use crate::{Place, enqueue, finish_all, keep_runs, queue, quick, stats, text, until_stats};

on_every_store![
    jobs_of_a_key_run_one_at_a_time_in_order,
    a_retry_blocks_its_key_and_nothing_else,
    urgent_jobs_come_first,
];

fn jobs_of_a_key_run_one_at_a_time_in_order(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let mut workers = Vec::new();
    for _ in 0..2 {
        let other = place.open(&mut reactor);
        workers.push(keep_runs(&mut reactor, &other, queue().concurrency(10)));
    }
    for number in 0..12 {
        enqueue(&mut reactor, &jobs, Job::new(format!("{number}")).key(["a", "b", "c"][number % 3]));
    }
    let mut seen = vec![Vec::new(); 3];
    while seen.iter().map(Vec::len).sum::<usize>() < 12 {
        let running: usize = workers.iter().map(|(_, runs)| runs.borrow().len()).sum();
        assert!(running <= 3);
        run_until(&mut reactor, |_| workers.iter().any(|(_, runs)| !runs.borrow().is_empty()));
        for (_, runs) in &workers {
            for run in runs.borrow_mut().drain(..) {
                let number: usize = text(&run).parse().unwrap();
                seen[number % 3].push(number);
                run.done("");
            }
        }
    }
    assert_eq!(seen, [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]);
}

fn a_retry_blocks_its_key_and_nothing_else(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let (_, runs) = keep_runs(&mut reactor, &jobs, queue());
    enqueue(&mut reactor, &jobs, Job::new("first").key("k").retry(quick(3)));
    enqueue(&mut reactor, &jobs, Job::new("second").key("k"));
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    let failing = runs.borrow_mut().pop().unwrap();
    failing.fail(Failure::retry_in(Duration::from_millis(250), "later"));
    until_stats(&mut reactor, &jobs, |stats| stats.delayed == 1);
    assert_eq!(stats(&mut reactor, &jobs).blocked, 1);
    enqueue(&mut reactor, &jobs, Job::new("other").key("l"));
    let mut order = Vec::new();
    while order.len() < 3 {
        run_until(&mut reactor, |_| !runs.borrow().is_empty());
        let run = runs.borrow_mut().remove(0);
        order.push(text(&run));
        run.done("");
    }
    assert_eq!(order, ["other", "first", "second"]);
}

fn urgent_jobs_come_first(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    for priority in [Priority::Low, Priority::Normal, Priority::High, Priority::Urgent] {
        for number in 0..2 {
            enqueue(&mut reactor, &jobs, Job::new(format!("{priority} {number}")).priority(priority));
        }
    }
    let log = finish_all(&mut reactor, &jobs, queue().concurrency(1));
    until_stats(&mut reactor, &jobs, |stats| stats.done == 8);
    let expected = ["urgent 0", "urgent 1", "high 0", "high 1", "normal 0", "normal 1", "low 0", "low 1"];
    assert_eq!(*log.borrow(), expected);
}
