//! Other threads: posts, replies, tasks.

use std::cell::Cell;
use std::rc::Rc;
use std::thread::{self};
use std::time::Duration;

use pelton::task::TaskError;
use pelton::{Exit, Lost, PostError, task};
use pelton_testing::{DEADLINE, Network, on_every_network};

use super::{Dropped, outcome, stopped, within_deadline};

on_every_network![
    posts_are_refused_and_given_back,
    pending_replies_are_lost,
    posts_are_dropped_on_the_loops_thread,
    tasks_that_other_threads_wait_for_are_cancelled,
    a_thread_that_asks_a_loop_that_stops_at_any_moment_never_hangs,
    a_shutdown_hook_can_wait_for_a_thread_that_waits_for_an_answer,
];

fn posts_are_refused_and_given_back(on: impl Network) {
    let mut reactor = stopped(on);
    let handle = reactor.handle();
    let value = String::from("mine");
    let refused = handle.post(move |_| drop(value)).unwrap_err();
    assert!(matches!(refused, PostError::Gone(_)));
    assert_eq!(refused.to_string(), "post to the loop: it has stopped");
    assert!(matches!(handle.try_post(|_| {}), Err(PostError::Gone(_))));
    assert!(matches!(handle.schedule(|_| {}), Err(PostError::Gone(_))));
    let lent = reactor.enter(|| handle.schedule(|_| panic!("run on a stopped loop")));
    assert!(matches!(lent, Err(PostError::Gone(_))), "schedule on the loop is refused, too");
    assert!(handle.has_stopped());
    assert_eq!(handle.pending_posts(), 0, "refused posts are not pending");
    // These return no error and must do no harm.
    handle.stop();
    handle.drain(DEADLINE);
    drop(handle.hold());
}

fn pending_replies_are_lost(on: impl Network) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    // A post that is queued behind the stop in the same turn runs; one in a later turn does not.
    reactor.next_tick(|reactor| reactor.stop());
    let early = handle.post_with_reply(|_| "in the last turn");
    reactor.run().unwrap();
    assert_eq!(within_deadline(early), Ok("in the last turn"));
    assert_eq!(within_deadline(handle.post_with_reply(|_| "never")), Err(Lost));

    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let late = handle.post_with_reply(|_| "never");
    reactor.stop();
    reactor.run().unwrap();
    assert_eq!(within_deadline(late), Err(Lost));
}

fn posts_are_dropped_on_the_loops_thread(on: impl Network) {
    let mut reactor = on.reactor();
    let (handle, dropped) = (reactor.handle(), Dropped::here());
    let owned = dropped.tells();
    thread::spawn(move || handle.post(move |_| drop(owned)).is_ok()).join().unwrap();
    reactor.stop();
    assert_eq!(dropped.count(), 0);
    reactor.run().unwrap();
    assert_eq!(dropped.count(), 1, "dropped when the loop stops");
}

fn tasks_that_other_threads_wait_for_are_cancelled(on: impl Network) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let running = handle.spawn(|| async {
        let not_send = Rc::new(());
        std::future::pending::<()>().await;
        drop(not_send);
    });
    let waiting = handle.spawn(|| async { task::sleep(DEADLINE).await });
    reactor.after(Duration::from_millis(1), |reactor| reactor.stop());
    reactor.run().unwrap();
    assert_eq!(outcome(running), Err(TaskError::Cancelled));
    assert_eq!(outcome(waiting), Err(TaskError::Cancelled));
    assert_eq!(outcome(handle.spawn(|| async { 1 })), Err(TaskError::Cancelled));
}

fn a_thread_that_asks_a_loop_that_stops_at_any_moment_never_hangs(on: impl Network) {
    for _ in 0..20 {
        let mut reactor = on.reactor();
        let handle = reactor.handle();
        let asking = thread::spawn(move || {
            let mut answers = 0;
            while within_deadline(handle.post_with_reply(|_| ())).is_ok() {
                answers += 1;
                if answers == 10 {
                    handle.stop();
                }
            }
            outcome(handle.spawn(|| async {}))
        });
        assert_eq!(reactor.run().unwrap(), Exit::Stopped);
        assert_eq!(asking.join().unwrap(), Err(TaskError::Cancelled));
    }
}

fn a_shutdown_hook_can_wait_for_a_thread_that_waits_for_an_answer(on: impl Network) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let answer = handle.post_with_reply(|_| "never");
    let asking =
        thread::spawn(move || (within_deadline(answer), within_deadline(handle.post_with_reply(|_| "nor this"))));
    let answers = Rc::new(Cell::new(None));
    let given = answers.clone();
    reactor.on_shutdown(move |_| given.set(asking.join().ok()));
    reactor.stop();
    reactor.run().unwrap();
    assert_eq!(answers.take(), Some((Err(Lost), Err(Lost))));
}
