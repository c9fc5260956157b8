//! Sleeps, timeouts and intervals.

use std::cell::RefCell;
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::thread::{self};
use std::time::Duration;

use futures::StreamExt;
use pelton::Reactor;
use pelton::task::{self, JoinHandle};
use pelton_testing::{Log, On, block_on, on_every_engine, poll};

use super::Drops;

on_every_engine![
    sleeps_are_never_early_and_end_in_order,
    a_sleep_that_is_dropped_costs_no_timer,
    a_sleep_follows_its_waker,
    timeout_ends_a_slow_future,
    an_interval_neither_drifts_nor_catches_up,
];

fn sleeps_are_never_early_and_end_in_order(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    for millis in [3, 1, 2, 0] {
        let entry = log.clone();
        reactor.spawn(async move {
            let start = Reactor::with_current(|reactor| reactor.clock()).unwrap();
            task::sleep(Duration::from_millis(millis)).await;
            let end = Reactor::with_current(|reactor| reactor.clock()).unwrap();
            assert!(end - start >= Duration::from_millis(millis));
            entry.add(millis.to_string());
        });
    }
    // A sleep created outside starts when it is polled, and one with a past deadline does not wait.
    let sleep = task::sleep(Duration::from_millis(4));
    assert_eq!(sleep.deadline(), None);
    block_on(&mut reactor, async {
        sleep.await;
        task::sleep_until(pelton::Time::ZERO).await;
    });
    assert_eq!(log.take(), ["0", "1", "2", "3"]);
}

fn a_sleep_that_is_dropped_costs_no_timer(on: On) {
    let mut reactor = on.reactor();
    let drops: Vec<JoinHandle<()>> = (0..10).map(|_| reactor.spawn(task::sleep(Duration::from_secs(3600)))).collect();
    poll(&mut reactor);
    assert_eq!(reactor.timer_count(), 10);
    drops.into_iter().for_each(JoinHandle::cancel);
    poll(&mut reactor);
    assert_eq!(reactor.timer_count(), 0);
    // Moved out of its task, and dropped without a reactor.
    let kept: Rc<RefCell<Option<task::Sleep>>> = Rc::default();
    let place = kept.clone();
    reactor.spawn(async move {
        let mut sleep = task::sleep(Duration::from_secs(3600));
        poll_fn(|context| Poll::Ready(Pin::new(&mut sleep).poll(context).is_pending())).await;
        place.replace(Some(sleep));
    });
    poll(&mut reactor);
    assert_eq!(reactor.timer_count(), 1);
    let sleep = kept.take();
    drop(sleep);
    poll(&mut reactor);
    assert_eq!(reactor.timer_count(), 0);
}

fn a_sleep_follows_its_waker(on: On) {
    let mut reactor = on.reactor();
    let mut sleep = task::sleep(Duration::from_millis(2));
    let mut first = Some(());
    block_on(
        &mut reactor,
        poll_fn(|_| {
            // A waker without effect.
            match first.take() {
                Some(()) => {
                    assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(Waker::noop())).is_pending());
                    Poll::Ready(())
                }
                None => Poll::Pending,
            }
        }),
    );
    block_on(&mut reactor, sleep);
    poll(&mut reactor);
    assert_eq!(reactor.timer_count(), 0);
}

fn timeout_ends_a_slow_future(on: On) {
    let mut reactor = on.reactor();
    let drops = Drops::default();
    let witness = drops.witness();
    block_on(&mut reactor, async {
        let slow = async move {
            let _witness = witness;
            pending::<()>().await;
        };
        let elapsed = task::timeout(Duration::from_millis(1), slow).await.unwrap_err();
        assert_eq!(std::io::Error::from(elapsed).kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(drops.threads().len(), 1);
        assert_eq!(task::timeout(Duration::ZERO, async { 1 }).await, Ok(1), "a ready future wins");
        let nested = task::timeout(Duration::from_secs(3600), task::timeout(Duration::from_millis(1), pending::<()>()));
        assert!(matches!(nested.await, Ok(Err(_))));
    });
    poll(&mut reactor);
    assert_eq!(reactor.timer_count(), 0);
}

fn an_interval_neither_drifts_nor_catches_up(on: On) {
    let mut reactor = on.reactor();
    let period = Duration::from_millis(2);
    block_on(&mut reactor, async {
        let mut interval = task::interval(period);
        let mut last = interval.tick().await;
        for round in 0..5 {
            if round == 2 {
                thread::sleep(period * 5);
            }
            let tick = interval.tick().await;
            assert_eq!(tick.deadline - last.deadline, period * (1 + last.missed as u32));
            if round == 2 {
                assert!(tick.missed >= 3, "{tick:?}");
            }
            last = tick;
        }
        // Dropping the future in between loses nothing.
        for _ in 0..3 {
            assert!(task::timeout(Duration::ZERO, interval.tick()).await.is_err());
        }
        let tick = interval.next().await.unwrap();
        assert_eq!(tick.deadline - last.deadline, period * (1 + last.missed as u32));
    });
}
