//! Tasks of a reactor that is stopped or dropped.

use std::future::{pending, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::thread::{self};
use std::time::Duration;

use pelton::Error;
use pelton::task::{self, TaskError};
use pelton_testing::{Log, On, on_every_engine, poll, run};

use super::{Drops, Gate};

on_every_engine![
    a_waker_that_outlives_its_reactor_is_harmless,
    tasks_are_dropped_first_and_on_their_own_thread,
    wake_ups_while_the_reactor_is_dropped_lose_no_task,
    task_that_owns_other_tasks_is_dropped_with_them,
    stopped_reactor_accepts_no_tasks,
];

fn a_waker_that_outlives_its_reactor_is_harmless(on: On) {
    let mut reactor = on.reactor();
    let (gate, drops) = (Gate::default(), Drops::default());
    let (waits, witness) = (gate.clone(), drops.witness());
    let task = reactor.spawn(async move {
        let _witness = witness;
        waits.await;
    });
    poll(&mut reactor);
    drop(reactor);
    assert_eq!(drops.threads(), [thread::current().id()]);
    let wakers = gate.wakers();
    wakers.iter().for_each(Waker::wake_by_ref);
    thread::spawn(move || wakers.into_iter().for_each(Waker::wake)).join().unwrap();
    gate.open();
    assert_eq!(futures::executor::block_on(task), Err(TaskError::Cancelled));
    assert_eq!(drops.threads().len(), 1);
}

fn tasks_are_dropped_first_and_on_their_own_thread(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    struct Says(Log, &'static str);
    impl Drop for Says {
        fn drop(&mut self) {
            self.0.add(self.1);
        }
    }
    let timer = Says(log.clone(), "timer");
    reactor.after(Duration::from_secs(3600), move |_| drop(timer));
    let drops = Drops::default();
    for kind in 0..4 {
        let (witness, task) = (drops.witness(), Says(log.clone(), "task"));
        reactor.spawn(async move {
            let _owned = (witness, task);
            match kind {
                0 => pending().await,
                1 => task::sleep(Duration::from_secs(3600)).await,
                2 => task::timeout(Duration::from_secs(3600), pending()).await.unwrap(),
                // Queued when the reactor is dropped.
                _ => loop {
                    task::yield_now().await;
                },
            }
        });
    }
    poll(&mut reactor);
    let (witness, task) = (drops.witness(), Says(log.clone(), "task"));
    reactor.spawn(async move { drop((witness, task)) });
    drop(reactor);
    assert_eq!(log.take(), ["task", "task", "task", "task", "task", "timer"]);
    assert_eq!(drops.threads(), [thread::current().id(); 5]);
}

fn wake_ups_while_the_reactor_is_dropped_lose_no_task(on: On) {
    for _ in 0..20 {
        let mut reactor = on.reactor();
        let drops = Drops::default();
        let (sender, wakers) = mpsc::channel::<Waker>();
        for _ in 0..50 {
            let (witness, sender) = (drops.witness(), sender.clone());
            reactor.spawn(poll_fn(move |context| {
                let _ = (&witness, sender.send(context.waker().clone()));
                Poll::<()>::Pending
            }));
        }
        drop(sender);
        poll(&mut reactor);
        let quit = Arc::new(AtomicBool::new(false));
        let flag = quit.clone();
        let other = thread::spawn(move || {
            let mut known = Vec::new();
            while !flag.load(Ordering::Relaxed) {
                known.extend(wakers.try_iter());
                known.iter().for_each(Waker::wake_by_ref);
            }
        });
        poll(&mut reactor);
        drop(reactor);
        assert_eq!(drops.threads(), [thread::current().id(); 50]);
        quit.store(true, Ordering::Relaxed);
        other.join().unwrap();
    }
}

fn task_that_owns_other_tasks_is_dropped_with_them(on: On) {
    let mut reactor = on.reactor();
    let drops = Drops::default();
    let (inner, outer) = (drops.witness(), drops.witness());
    reactor.spawn(async move {
        let _witness = outer;
        let inner = task::spawn(async move {
            let _witness = inner;
            pending::<()>().await;
        });
        let inner = inner.cancel_on_drop();
        pending::<()>().await;
        drop(inner);
    });
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!(reactor.task_count(), 2);
    drop(reactor);
    assert_eq!(drops.threads().len(), 2);
}

fn stopped_reactor_accepts_no_tasks(on: On) {
    let mut reactor = on.reactor();
    let drops = Drops::default();
    let witness = drops.witness();
    reactor.on_shutdown(move |reactor| {
        reactor.spawn(async move { drop(witness) });
    });
    reactor.stop();
    run(&mut reactor);
    assert_eq!(drops.threads().len(), 1, "tasks spawned by a hook are dropped");
    let late = reactor.spawn(async { 1 });
    assert!(matches!(reactor.block_on(async {}), Err(Error::Stopped)));
    assert_eq!(futures::executor::block_on(late), Err(TaskError::Cancelled));
}
