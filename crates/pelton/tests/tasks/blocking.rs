//! `block_on`.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::thread::{self};
use std::time::Duration;

use pelton::Error;
use pelton::task::{self};
use pelton_testing::{Log, On, block_on, on_every_engine, run, run_until};

on_every_engine![
    stopping_the_loop_ends_block_on,
    block_on_borrows_and_leaves_the_loop_usable,
    block_on_inside_a_task_of_another_loop_is_refused,
    block_on_propagates_panics,
    block_on_waits_for_tasks_without_a_turn_per_step,
];

fn stopping_the_loop_ends_block_on(on: On) {
    let mut reactor = on.reactor();
    reactor.after(Duration::from_millis(1), |reactor| reactor.stop());
    assert!(matches!(reactor.block_on(pending::<()>()), Err(Error::Stopped)));
    run(&mut reactor);
}

fn block_on_borrows_and_leaves_the_loop_usable(on: On) {
    let mut reactor = on.reactor();
    let mut words = vec!["water"];
    let log = Log::default();
    let entry = log.clone();
    reactor.every(Duration::from_millis(1), move |_, _| entry.add("beat"));
    block_on(&mut reactor, async {
        task::sleep(Duration::from_millis(3)).await;
        words.push("wheel");
    });
    assert_eq!(words, ["water", "wheel"]);
    assert!(!log.take().is_empty(), "other callbacks run meanwhile");
    // Woken by another thread while the loop sleeps.
    let (waker, wakers) = mpsc::channel::<Waker>();
    let other = thread::spawn(move || wakers.recv().unwrap().wake());
    let mut polls = 0;
    block_on(
        &mut reactor,
        poll_fn(|context| {
            polls += 1;
            let _ = waker.send(context.waker().clone());
            if polls == 2 { Poll::Ready(()) } else { Poll::Pending }
        }),
    );
    other.join().unwrap();
    run_until(&mut reactor, |_| log.len() > 3);
}

fn block_on_inside_a_task_of_another_loop_is_refused(on: On) {
    let (mut outer, mut inner) = (on.reactor(), on.reactor());
    let refused = block_on(&mut outer, async move { inner.block_on(async {}) });
    assert!(matches!(refused, Err(Error::Nested)));
}

fn block_on_propagates_panics(on: On) {
    let mut reactor = on.reactor();
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reactor.block_on(async { panic!("mine") })));
    assert_eq!(*panicked.unwrap_err().downcast_ref::<&str>().unwrap(), "mine");
    assert_eq!(block_on(&mut reactor, async { 1 }), 1);
}

fn block_on_waits_for_tasks_without_a_turn_per_step(on: On) {
    let mut reactor = on.reactor();
    let turns = reactor.stats().turns;
    block_on(&mut reactor, async {
        for number in 0..100 {
            assert_eq!(task::spawn(async move { number }).await, Ok(number));
        }
    });
    assert_eq!(reactor.stats().turns, turns);
    // A task that keeps waking itself does not starve events.
    let due = Rc::new(Cell::new(false));
    let is_due = Rc::clone(&due);
    reactor.after(Duration::from_millis(1), move |_| is_due.set(true));
    block_on(&mut reactor, async {
        while !due.get() {
            task::spawn(async {}).await.unwrap();
        }
    });
}
