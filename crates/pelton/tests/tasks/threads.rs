//! Tasks spawned, cancelled and fed from other threads.

use std::future::pending;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self};
use std::time::Duration;

use pelton::task::{self, TaskError};
use pelton_testing::{On, block_on, on_every_engine, poll, run, run_until};

use super::Drops;

on_every_engine![
    a_task_is_spawned_from_another_thread,
    a_task_spawned_from_another_thread_is_cancelled_from_there,
    spawning_on_a_dropped_reactor_returns_a_cancelled_task,
    channels_between_threads_work,
];

fn a_task_is_spawned_from_another_thread(on: On) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let loop_thread = thread::current().id();
    let other = thread::spawn(move || {
        let task = handle.spawn(move || async move {
            // Neither this nor the future is `Send`.
            let own = Rc::new(thread::current().id());
            task::sleep(Duration::from_millis(1)).await;
            (*own, thread::current().id())
        });
        // Awaited by an unrelated executor.
        let outcome = futures::executor::block_on(task);
        handle.stop();
        outcome
    });
    run(&mut reactor);
    assert_eq!(other.join().unwrap(), Ok((loop_thread, loop_thread)));
}

fn a_task_spawned_from_another_thread_is_cancelled_from_there(on: On) {
    let mut reactor = on.catching();
    let (handle, drops) = (reactor.handle(), Drops::default());
    let witness = drops.witness();
    let (begun, begins) = mpsc::channel();
    let other = thread::spawn(move || {
        let task = handle.spawn(move || async move {
            let _witness = witness;
            begun.send(()).unwrap();
            pending::<()>().await;
        });
        begins.recv().unwrap();
        task.cancel();
    });
    run_until(&mut reactor, |_| !drops.threads().is_empty());
    other.join().unwrap();
    assert_eq!(drops.threads(), [thread::current().id()]);
    // A panic of the closure that creates the future is one of the task.
    let task = reactor.handle().spawn(|| -> std::future::Ready<()> { panic!("no future") });
    reactor.on_fault(|_, _| {});
    assert_eq!(block_on(&mut reactor, task), Err(TaskError::Panicked { message: "no future".into() }));
}

fn spawning_on_a_dropped_reactor_returns_a_cancelled_task(on: On) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let early = handle.spawn(|| async { 1 });
    let waits = handle.spawn(pending::<()>);
    poll(&mut reactor);
    poll(&mut reactor);
    let unpolled = handle.spawn(|| async { 2 });
    drop(reactor);
    let late = handle.spawn(|| async { 3 });
    futures::executor::block_on(async {
        assert_eq!(early.await, Ok(1));
        assert_eq!(waits.await, Err(TaskError::Cancelled));
        assert_eq!(unpolled.await, Err(TaskError::Cancelled));
        assert_eq!(late.await, Err(TaskError::Cancelled));
    });
}

fn channels_between_threads_work(on: On) {
    const EACH: usize = 5_000;
    let mut reactor = on.reactor();
    let (to_loop, at_loop) = async_channel::bounded::<usize>(16);
    let (to_thread, at_thread) = async_channel::bounded::<usize>(16);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (sender, receiver) = (to_loop.clone(), at_thread.clone());
            thread::spawn(move || {
                let mut sum = 0;
                for number in 0..EACH {
                    sender.send_blocking(number).unwrap();
                    sum += receiver.recv_blocking().unwrap();
                }
                sum
            })
        })
        .collect();
    drop((to_loop, at_thread));
    let echo = reactor.spawn(async move {
        while let Ok(number) = at_loop.recv().await {
            to_thread.send(number).await.unwrap();
        }
    });
    assert_eq!(block_on(&mut reactor, echo), Ok(()));
    let sum: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(sum, 2 * (0..EACH).sum::<usize>());
}
