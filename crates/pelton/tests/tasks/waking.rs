//! When tasks are polled: order, fairness, wake-ups from callbacks and other threads.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::thread::{self};
use std::time::Duration;

use pelton::task::{self};
use pelton::{EventLoop, Interest, Reactor};
use pelton_testing::{Log, On, block_on, on_every_engine, poll, run};

use super::Gate;

on_every_engine![
    wake_ups_ticks_and_posts_share_one_order,
    task_woken_repeatedly_is_polled_once,
    a_task_that_wakes_itself_starves_neither_timers_nor_events,
    a_budget_bounds_the_polls_of_a_turn,
    wake_ups_from_other_threads_wake_a_sleeping_loop,
    yielding_lets_others_run_first,
    tasks_that_wait_for_each_other_need_no_turn_per_step,
    callbacks_wake_tasks,
];

fn wake_ups_ticks_and_posts_share_one_order(on: On) {
    let mut reactor = on.reactor();
    let (gates, log) = ([Gate::default(), Gate::default()], Log::default());
    for (name, gate) in ["first", "second"].into_iter().zip(gates.clone()) {
        let entry = log.clone();
        reactor.spawn(async move {
            gate.await;
            entry.add(name);
        });
    }
    poll(&mut reactor);
    let tick = |reactor: &mut EventLoop, name: &'static str| {
        let entry = log.clone();
        reactor.next_tick(move |_| entry.add(name));
    };
    reactor.put_state(log.clone());
    tick(&mut reactor, "tick 1");
    gates[1].open();
    tick(&mut reactor, "tick 2");
    reactor.handle().post(|reactor| reactor.state::<Log>().add("post")).unwrap();
    let entry = log.clone();
    reactor.spawn(async move { entry.add("new") });
    gates[0].open();
    tick(&mut reactor, "tick 3");
    poll(&mut reactor);
    assert_eq!(log.take(), ["tick 1", "second", "tick 2", "post", "new", "first", "tick 3"]);
}

fn task_woken_repeatedly_is_polled_once(on: On) {
    let mut reactor = on.reactor();
    let (gate, polls) = (Gate::default(), Rc::new(Cell::new(0)));
    let (mut waits, count) = (gate.clone(), polls.clone());
    reactor.spawn(poll_fn(move |context| {
        count.set(count.get() + 1);
        Pin::new(&mut waits).poll(context)
    }));
    poll(&mut reactor);
    for waker in gate.wakers().iter().cycle().take(100) {
        waker.wake_by_ref();
    }
    assert_eq!(reactor.handle().pending_posts(), 1);
    poll(&mut reactor);
    assert_eq!(polls.get(), 2);
}

fn a_task_that_wakes_itself_starves_neither_timers_nor_events(on: On) {
    let mut reactor = on.reactor();
    reactor.spawn(async {
        loop {
            task::yield_now().await;
        }
    });
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    reactor.watch(&ours, Interest::READABLE, |reactor, _| reactor.stop()).unwrap();
    let fired = Rc::new(Cell::new(false));
    let flag = fired.clone();
    reactor.after(Duration::from_millis(1), move |_| {
        flag.set(true);
        theirs.write_all(b"x").unwrap();
    });
    run(&mut reactor);
    assert!(fired.get());
}

fn a_budget_bounds_the_polls_of_a_turn(on: On) {
    let mut reactor = on.build(on.builder().ticks_per_turn(10));
    let polls = Rc::new(Cell::new(0));
    for _ in 0..25 {
        let count = polls.clone();
        reactor.spawn(async move {
            count.set(count.get() + 1);
            task::yield_now().await;
            count.set(count.get() + 100);
        });
    }
    for expected in [10, 20, 525, 1525, 2525] {
        poll(&mut reactor);
        assert_eq!(polls.get(), expected);
    }
}

fn wake_ups_from_other_threads_wake_a_sleeping_loop(on: On) {
    let mut reactor = on.reactor();
    let (sender, wakers) = mpsc::channel::<Waker>();
    let woken = Arc::new(AtomicBool::new(false));
    let flag = woken.clone();
    let task = reactor.spawn(poll_fn(move |context| {
        if flag.load(Ordering::Acquire) {
            return Poll::Ready("woken");
        }
        sender.send(context.waker().clone()).unwrap();
        Poll::Pending
    }));
    let other = thread::spawn(move || {
        let waker = wakers.recv().unwrap();
        // The loop sleeps now or soon.
        thread::sleep(Duration::from_millis(5));
        woken.store(true, Ordering::Release);
        waker.wake();
    });
    assert_eq!(block_on(&mut reactor, task), Ok("woken"));
    other.join().unwrap();
}

fn yielding_lets_others_run_first(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    for name in ["a", "b"] {
        let entry = log.clone();
        reactor.spawn(async move {
            for round in 1..=2 {
                entry.add(format!("{name}{round}"));
                task::yield_now().await;
            }
        });
    }
    poll(&mut reactor);
    assert_eq!(log.take(), ["a1", "b1"]);
    poll(&mut reactor);
    assert_eq!(log.take(), ["a2", "b2"]);
}

fn tasks_that_wait_for_each_other_need_no_turn_per_step(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    reactor.spawn(async move {
        for number in 0..100 {
            assert_eq!(task::spawn(async move { number }).await, Ok(number));
        }
        entry.add("joined a hundred");
    });
    poll(&mut reactor);
    assert_eq!(log.take(), ["joined a hundred"]);
    // Work that others have queued comes first, in order.
    let (entry, queued) = (log.clone(), log.clone());
    reactor.spawn(async move {
        Reactor::with_current(|reactor| reactor.next_tick(move |_| queued.add("tick")));
        task::spawn(async {}).await.unwrap();
        entry.add("joined");
    });
    poll(&mut reactor);
    assert!(log.take().is_empty());
    poll(&mut reactor);
    assert_eq!(log.take(), ["tick", "joined"]);
}

fn callbacks_wake_tasks(on: On) {
    let mut reactor = on.reactor();
    let gate = Gate::default();
    let opens = gate.clone();
    reactor.after(Duration::from_millis(1), move |_| opens.open());
    block_on(&mut reactor, gate);
    let answer = reactor.handle().post_with_reply(|reactor| reactor.engine_name());
    let name = reactor.engine_name();
    assert_eq!(block_on(&mut reactor, answer), Ok(name));
}
