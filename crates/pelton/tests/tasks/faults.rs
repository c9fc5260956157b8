//! Tasks that panic.

use std::future::pending;

use pelton::PanicPolicy;
use pelton::task::{self, JoinHandle, TaskError};
use pelton_testing::{Log, On, block_on, on_every_engine, poll};

on_every_engine![
    panic_is_reported_and_returned,
    panic_propagates_if_that_is_the_policy,
    a_panic_while_a_task_is_dropped_is_reported,
];

fn panic_is_reported_and_returned(on: On) {
    let mut reactor = on.catching();
    let log = Log::default();
    let entry = log.clone();
    reactor.on_fault(move |_, fault| entry.add(format!("{} {}", fault.message, fault.place.file() == file!())));
    let task = reactor.spawn(async {
        task::yield_now().await;
        panic!("burst");
    });
    let other = reactor.spawn(async {
        task::yield_now().await;
        "fine"
    });
    let outcomes: (Result<(), TaskError>, _) = block_on(&mut reactor, async { (task.await, other.await) });
    assert_eq!(outcomes, (Err(TaskError::Panicked { message: "burst".into() }), Ok("fine")));
    assert_eq!(log.take(), ["burst true"]);
    assert_eq!(reactor.stats().panics, 1);
}

fn panic_propagates_if_that_is_the_policy(on: On) {
    let mut reactor = on.build(on.builder().panic_policy(PanicPolicy::Propagate));
    reactor.on_fault(|_, _| {});
    let task: JoinHandle<()> = reactor.spawn(async { panic!("burst") });
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| poll(&mut reactor)));
    assert_eq!(*panicked.unwrap_err().downcast_ref::<&str>().unwrap(), "burst");
    assert_eq!(block_on(&mut reactor, task), Err(TaskError::Panicked { message: "burst".into() }));
}

fn a_panic_while_a_task_is_dropped_is_reported(on: On) {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let mut reactor = on.catching();
    let log = Log::default();
    let entry = log.clone();
    reactor.on_fault(move |_, fault| entry.add(&*fault.message));
    let cancelled = reactor.spawn(async {
        let _bomb = Bomb;
        pending::<()>().await;
    });
    poll(&mut reactor);
    assert_eq!(block_on(&mut reactor, cancelled.cancel_and_wait()), Err(TaskError::Cancelled));
    poll(&mut reactor);
    assert_eq!(log.take(), ["dropped"]);
    // With nobody left to report to.
    reactor.spawn(async {
        let _bomb = Bomb;
        pending::<()>().await;
    });
    poll(&mut reactor);
    drop(reactor);
}
