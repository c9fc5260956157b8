//! The forms of handlers, and enqueueing from other threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pelton::{Lane, Pool, Reactor};
use pelton_jobs::{Failure, Job, Run};
use pelton_testing::{count_faults, run_with};

use crate::{Place, enqueue, queue, quick, until_stats};

on_every_store![tasks_lanes_pools_and_actors_run_jobs, a_handler_that_panics_fails_its_job_only, other_threads_enqueue,];

fn tasks_lanes_pools_and_actors_run_jobs(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let pool = Pool::builder().workers(2).build().unwrap();
    let counts: [Arc<AtomicUsize>; 4] = Default::default();
    let count = |which: usize| {
        let count = counts[which].clone();
        move |run: &Run| {
            count.fetch_add(1, Ordering::Relaxed);
            match run.attempt() {
                1 => Err(Failure::new("try again")),
                _ => Ok::<_, Failure>(b"ok".to_vec()),
            }
        }
    };
    let mut done = 0;
    for (form, runs) in counts.iter().enumerate() {
        let options = queue().concurrency(8);
        let f = count(form);
        let worker = match form {
            0 => jobs.work_async(&mut reactor, options, move |run| {
                let result = f(&run);
                async move {
                    pelton::task::sleep(Duration::from_millis(1)).await;
                    result
                }
            }),
            1 => jobs.work_on_lane(&mut reactor, options, Lane::Cpu, f),
            2 => jobs.work_on_pool(&mut reactor, options, &pool, f),
            _ => {
                let actor = pool.spawn_fn(move |run: Run, _: &mut pelton::Context<'_, Run>| run.end_with(f(&run)));
                jobs.work_on_actor(&mut reactor, options, actor)
            }
        };
        let worker = worker.unwrap();
        for number in 0..6 {
            enqueue(&mut reactor, &jobs, Job::new("x").key(format!("{}", number % 2)).retry(quick(2)));
        }
        done += 6;
        until_stats(&mut reactor, &jobs, |stats| stats.done == done);
        assert_eq!(runs.load(Ordering::Relaxed), 12, "form {form}");
        let drained = worker.drain(&mut reactor);
        crate::settled(&mut reactor, drained).unwrap();
    }
}

fn a_handler_that_panics_fails_its_job_only(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let faults = count_faults(&mut reactor);
    let jobs = place.open(&mut reactor);
    let handler = |_: &mut Reactor, run: Run| {
        assert!(run.payload() != b"bad" || run.attempt() > 1, "on purpose");
        run.done("");
    };
    jobs.work(&mut reactor, queue(), handler).unwrap();
    for payload in ["good", "bad", "good"] {
        enqueue(&mut reactor, &jobs, Job::new(payload).retry(quick(3)));
    }
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.done == 3);
    assert_eq!(stats.failed, 1);
    assert_eq!(faults.get(), 1);
}

fn other_threads_enqueue(place: &Place) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = place.open(&mut reactor);
    let sender = jobs.sender(&mut reactor);
    let enqueued = run_with(&mut reactor, move || {
        let ids = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (sender, ids) = (sender.clone(), &ids);
                scope.spawn(move || {
                    for number in 0..5 {
                        let reply = sender.enqueue("q", Job::new(format!("{thread} {number}")));
                        ids.lock().unwrap().push(reply.wait().unwrap().unwrap().id);
                    }
                });
            }
        });
        ids.into_inner().unwrap()
    });
    assert_eq!(enqueued.len(), 15);
    assert_eq!(crate::stats(&mut reactor, &jobs).ready, 15);
}
