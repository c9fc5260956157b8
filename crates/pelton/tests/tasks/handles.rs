//! Handles of tasks: results, detaching, cancelling.

use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;

use pelton::task::{self, JoinHandle, TaskError};
use pelton_testing::{Log, On, block_on, on_every_engine, poll};

use super::{Drops, Gate};

on_every_engine![
    task_runs_in_the_next_tick_phase_and_returns_its_result,
    a_handle_that_is_dropped_leaves_its_task_running,
    a_cancelled_task_is_dropped_and_not_polled_again,
    a_handle_can_cancel_its_task_when_dropped,
    cancelling_a_finished_task_returns_its_result,
    a_task_that_cancels_itself_ends_when_it_waits,
];

fn task_runs_in_the_next_tick_phase_and_returns_its_result(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    let task = reactor.spawn(async move {
        entry.add("ran");
        7
    });
    assert_eq!((log.len(), reactor.task_count()), (0, 1));
    poll(&mut reactor);
    assert_eq!((log.len(), reactor.task_count()), (1, 0));
    assert!(task.is_finished());
    assert_eq!(block_on(&mut reactor, task), Ok(7));
}

fn a_handle_that_is_dropped_leaves_its_task_running(on: On) {
    let mut reactor = on.reactor();
    let (gate, log) = (Gate::default(), Log::default());
    let (waits, entry) = (gate.clone(), log.clone());
    drop(reactor.spawn(async move {
        waits.await;
        entry.add("done");
    }));
    let entry = log.clone();
    reactor.spawn(async move { entry.add("detached") }).detach();
    poll(&mut reactor);
    gate.open();
    poll(&mut reactor);
    assert_eq!(log.take(), ["detached", "done"]);
}

fn a_cancelled_task_is_dropped_and_not_polled_again(on: On) {
    let mut reactor = on.reactor();
    let (gate, drops) = (Gate::default(), Drops::default());
    let (waits, witness) = (gate.clone(), drops.witness());
    let task = reactor.spawn(async move {
        let _witness = witness;
        waits.await;
        unreachable!("polled after it was cancelled");
    });
    poll(&mut reactor);
    gate.open();
    task.cancel();
    poll(&mut reactor);
    assert_eq!(drops.threads().len(), 1);
    assert_eq!(reactor.task_count(), 0);
}

fn a_handle_can_cancel_its_task_when_dropped(on: On) {
    let mut reactor = on.reactor();
    let drops = Drops::default();
    let witness = drops.witness();
    let task = reactor.spawn(async move {
        let _witness = witness;
        pending::<()>().await;
    });
    let task = task.cancel_on_drop();
    poll(&mut reactor);
    drop(task);
    poll(&mut reactor);
    assert_eq!(drops.threads().len(), 1);
    // A task that was never polled, too.
    let witness = drops.witness();
    drop(reactor.spawn(async move { drop(witness) }).cancel_on_drop());
    assert_eq!(reactor.task_count(), 1);
    poll(&mut reactor);
    assert_eq!((drops.threads().len(), reactor.task_count()), (2, 0));
}

fn cancelling_a_finished_task_returns_its_result(on: On) {
    let mut reactor = on.reactor();
    let done = reactor.spawn(async { "done" });
    poll(&mut reactor);
    let waits = reactor.spawn(pending::<()>());
    let outcomes = block_on(&mut reactor, async { (done.cancel_and_wait().await, waits.cancel_and_wait().await) });
    assert_eq!(outcomes, (Ok("done"), Err(TaskError::Cancelled)));
    // The same without awaiting the task.
    let waits = reactor.spawn(pending::<()>());
    drop(waits.cancel_and_wait());
    poll(&mut reactor);
    assert_eq!(reactor.task_count(), 0);
}

fn a_task_that_cancels_itself_ends_when_it_waits(on: On) {
    let mut reactor = on.reactor();
    let own: Rc<RefCell<Option<JoinHandle<()>>>> = Rc::default();
    let (mine, drops) = (own.clone(), Drops::default());
    let witness = drops.witness();
    let task = reactor.spawn(async move {
        let _witness = witness;
        mine.take().unwrap().cancel();
        task::yield_now().await;
        unreachable!("polled after it was cancelled");
    });
    own.replace(Some(task));
    poll(&mut reactor);
    assert_eq!((drops.threads().len(), reactor.task_count()), (1, 0));
}
