//! Posts from other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pelton::{Batch, Guest, Lost, PostError, Reactor, Sleep};
use pelton_testing::{On, on_every_engine, poll, run, run_until};

on_every_engine![
    a_post_wakes_a_sleeping_loop,
    posts_of_one_thread_run_in_order,
    posts_of_many_threads_all_run,
    bounded_post_is_refused_when_full_and_returns_the_closure,
    post_to_a_dropped_loop_returns_the_closure,
    pending_posts_are_dropped_with_the_loop,
    reply_reaches_the_thread_that_asked,
    a_reply_is_lost_with_the_loop_or_a_panic,
    the_loop_thread_is_known,
    a_callback_may_drop_the_last_handle,
];

fn a_post_wakes_a_sleeping_loop(on: On) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let (asleep, is_asleep) = mpsc::channel();
    let other = thread::spawn(move || {
        for _ in 0..100 {
            is_asleep.recv().unwrap();
            handle.post(|_| {}).unwrap();
        }
        handle.stop();
    });
    /// Tells the other thread to post each time the loop is about to sleep.
    struct Asleep(mpsc::Sender<()>);
    impl Guest for Asleep {
        fn has_work(&mut self) -> bool {
            false
        }
        fn run(&mut self, _: &mut Reactor) -> Batch {
            unreachable!("it has no work")
        }
        fn park(&mut self, sleep: &mut Sleep<'_>) -> std::io::Result<()> {
            let _ = self.0.send(());
            sleep.block()
        }
    }
    reactor.host(Asleep(asleep)).unwrap();
    run(&mut reactor);
    other.join().unwrap();
    assert_eq!(reactor.stats().posts, 101);
}

fn posts_of_one_thread_run_in_order(on: On) {
    let mut reactor = on.reactor();
    #[derive(Default)]
    struct Seen(Vec<u32>);
    let handle = reactor.handle();
    let other = thread::spawn(move || {
        for number in 0..10_000 {
            handle.post(move |reactor| reactor.state::<Seen>().0.push(number)).unwrap();
        }
        handle.stop();
    });
    run(&mut reactor);
    other.join().unwrap();
    assert_eq!(reactor.state::<Seen>().0, (0..10_000).collect::<Vec<_>>());
}

fn posts_of_many_threads_all_run(on: On) {
    let mut reactor = on.reactor();
    #[derive(Default)]
    struct Count(usize);
    let others: Vec<_> = (0..4)
        .map(|_| {
            let handle = reactor.handle();
            thread::spawn(move || {
                for _ in 0..5_000 {
                    handle.post(|reactor| reactor.state::<Count>().0 += 1).unwrap();
                }
            })
        })
        .collect();
    run_until(&mut reactor, |reactor| reactor.state::<Count>().0 == 20_000);
    for other in others {
        other.join().unwrap();
    }
    assert_eq!(reactor.stats().posts, 20_000);
}

fn bounded_post_is_refused_when_full_and_returns_the_closure(on: On) {
    let mut reactor = on.build(on.builder().post_bound(2));
    let ran = Arc::new(AtomicUsize::new(0));
    let handle = reactor.handle();
    let post = |amount: usize| {
        let ran = ran.clone();
        handle.try_post(move |_| {
            ran.fetch_add(amount, Ordering::Relaxed);
        })
    };
    post(1).unwrap();
    post(10).unwrap();
    let refused = match post(100) {
        Err(PostError::Full(refused)) => refused,
        other => panic!("{other:?}"),
    };
    assert_eq!(handle.pending_posts(), 2);
    // Unbounded posts are not refused.
    handle.post(|_| {}).unwrap();
    poll(&mut reactor);
    assert_eq!(ran.load(Ordering::Relaxed), 11);
    handle.try_post(refused).unwrap();
    poll(&mut reactor);
    assert_eq!(ran.load(Ordering::Relaxed), 111);
}

fn post_to_a_dropped_loop_returns_the_closure(on: On) {
    let reactor = on.reactor();
    let handle = reactor.handle();
    drop(reactor);
    let value = Arc::new(());
    let captured = value.clone();
    match handle.post(move |_| drop(captured)) {
        Err(error @ PostError::Gone(_)) => {
            assert_eq!(error.to_string(), "post to the loop: it has stopped");
            assert_eq!(Arc::strong_count(&value), 2);
            drop(error.into_inner());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(Arc::strong_count(&value), 1);
    assert!(matches!(handle.try_post(|_| {}), Err(PostError::Gone(_))));
    handle.stop();
}

fn pending_posts_are_dropped_with_the_loop(on: On) {
    let mut reactor = on.reactor();
    let value = Arc::new(());
    for _ in 0..200 {
        let captured = value.clone();
        reactor.handle().post(move |_| drop(captured)).unwrap();
    }
    let captured = value.clone();
    reactor.next_tick(move |_| drop(captured));
    drop(reactor);
    assert_eq!(Arc::strong_count(&value), 1);
}

fn reply_reaches_the_thread_that_asked(on: On) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let other = thread::spawn(move || {
        let name = handle.post_with_reply(|reactor| reactor.engine_name()).wait();
        handle.stop();
        name
    });
    run(&mut reactor);
    assert_eq!(other.join().unwrap(), Ok(on.0.name()));
}

fn a_reply_is_lost_with_the_loop_or_a_panic(on: On) {
    let mut reactor = on.catching();
    let handle = reactor.handle();
    let panicked = handle.post_with_reply(|_| -> u32 { panic!("on purpose") });
    poll(&mut reactor);
    assert_eq!(panicked.wait(), Err(Lost));
    let waiting = handle.post_with_reply(|_| 1);
    drop(reactor);
    assert_eq!(waiting.wait(), Err(Lost));
    assert_eq!(handle.post_with_reply(|_| 1).wait(), Err(Lost));
}

fn the_loop_thread_is_known(on: On) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    assert!(handle.is_loop_thread());
    let elsewhere = handle.clone();
    assert!(!thread::spawn(move || elsewhere.is_loop_thread()).join().unwrap());
    reactor.next_tick(move |reactor| {
        assert!(handle.is_loop_thread());
        reactor.stop();
    });
    run(&mut reactor);
    assert_eq!(reactor.stats().panics, 0);
}

fn a_callback_may_drop_the_last_handle(on: On) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    reactor.next_tick(move |reactor| {
        drop(handle);
        reactor.after(Duration::from_millis(1), |reactor| reactor.stop());
    });
    run(&mut reactor);
}
