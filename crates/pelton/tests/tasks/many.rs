//! Combinators of the futures crate, many tasks at once, and the cost of a task.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::{Either, join_all, select};
use futures::{StreamExt, stream};
use pelton::task::{self, JoinHandle};
use pelton::{EventLoop, Reactor};
use pelton_testing::{On, block_on, on_every_engine, poll};

on_every_engine![combinators_of_futures_work, many_tasks_come_and_go,];

fn combinators_of_futures_work(on: On) {
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let naps = (0..50u64).map(|number| async move {
            task::sleep(Duration::from_micros(number * 37 % 11 * 100)).await;
            number
        });
        assert_eq!(join_all(naps).await, (0..50).collect::<Vec<u64>>());

        let slow = std::pin::pin!(task::sleep(Duration::from_secs(3600)));
        let quick = std::pin::pin!(task::sleep(Duration::from_millis(1)));
        assert!(matches!(select(slow, quick).await, Either::Right(_)));

        let most = Rc::new(Cell::new((0, 0)));
        let jobs = stream::iter(0..40u64).map(|number| {
            let most = most.clone();
            async move {
                let (running, peak) = most.get();
                most.set((running + 1, peak.max(running + 1)));
                task::spawn(task::sleep(Duration::from_micros(number * 31 % 7 * 100))).await.unwrap();
                most.set((most.get().0 - 1, most.get().1));
                number
            }
        });
        let ordered: Vec<u64> = jobs.buffered(8).collect().await;
        assert_eq!(ordered, (0..40).collect::<Vec<u64>>());
        assert_eq!(most.get(), (0, 8));
    });
}

fn many_tasks_come_and_go(on: On) {
    let mut reactor = on.reactor();
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    block_on(&mut reactor, async move {
        for _ in 0..10 {
            let tasks = (0..1_000).map(|number: usize| {
                let count = count.clone();
                task::spawn(async move {
                    for _ in 0..number % 5 {
                        task::yield_now().await;
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                })
            });
            let tasks: Vec<JoinHandle<()>> = tasks.collect();
            for task in tasks {
                task.await.unwrap();
            }
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), 10_000);
    assert_eq!(reactor.task_count(), 0);
}

#[test]
fn a_task_is_one_allocation_and_waking_it_none() {
    let mut reactor = Reactor::new().unwrap();
    let mut turns = |count: usize, work: fn(&mut EventLoop)| {
        for _ in 0..count {
            work(&mut reactor);
            poll(&mut reactor);
        }
    };
    let spawn = |reactor: &mut EventLoop| {
        for _ in 0..50 {
            reactor.spawn(async { 1 }).detach();
        }
    };
    turns(100, spawn);
    assert_eq!(allocation_counter::measure(|| turns(100, spawn)).count_total, 50 * 100);
    // Tasks that wake themselves and tasks that sleep.
    turns(1, |reactor| {
        for _ in 0..50 {
            reactor.spawn(async {
                loop {
                    task::yield_now().await;
                    let _ = task::timeout(Duration::from_secs(3600), task::sleep(Duration::ZERO)).await;
                }
            });
        }
    });
    turns(1_000, |_| {});
    let allocated = allocation_counter::measure(|| turns(1_000, |_| {})).count_total;
    // Which task waits for what changes constantly, so a list may still grow once or twice.
    assert!(allocated <= 5, "{allocated} allocations in some 50,000 polls");
}
