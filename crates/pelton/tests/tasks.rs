//! Tasks: futures on the loop.

#![forbid(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::{self, ThreadId};
use std::time::Duration;

use futures::StreamExt;
use futures::future::{Either, join_all, select};
use futures::stream;
use pelton::task::{self, JoinHandle, TaskError};
use pelton::{Error, EventLoop, Interest, PanicPolicy, Reactor};
use pelton_testing::{Log, On, block_on, on_every_engine, poll, run, run_until};

on_every_engine![
    a_task_runs_in_the_next_tick_phase_and_gives_its_result,
    a_handle_that_is_dropped_leaves_its_task_running,
    a_cancelled_task_is_dropped_and_not_polled_again,
    a_handle_can_cancel_its_task_when_dropped,
    cancelling_a_task_that_is_done_gives_its_result,
    a_task_that_cancels_itself_ends_when_it_waits,
    wake_ups_ticks_and_posts_share_one_order,
    a_task_that_is_woken_again_and_again_is_polled_once,
    a_task_that_wakes_itself_starves_neither_timers_nor_events,
    a_budget_bounds_the_polls_of_a_turn,
    wake_ups_from_other_threads_wake_a_sleeping_loop,
    a_task_is_spawned_from_another_thread,
    a_task_spawned_from_another_thread_is_cancelled_from_there,
    spawning_on_a_reactor_that_is_gone_gives_a_cancelled_task,
    a_waker_that_outlives_its_reactor_is_harmless,
    tasks_are_dropped_first_and_on_their_own_thread,
    wake_ups_while_the_reactor_is_dropped_lose_no_task,
    a_task_that_owns_other_tasks_goes_with_them,
    a_panic_is_reported_and_told,
    a_panic_goes_on_if_that_is_the_policy,
    a_panic_while_a_task_is_dropped_is_reported,
    a_stopped_reactor_takes_no_tasks,
    a_loop_that_is_told_to_stop_ends_block_on,
    block_on_borrows_and_leaves_the_loop_usable,
    block_on_inside_a_task_of_another_loop_is_refused,
    block_on_passes_a_panic_on,
    sleeps_are_never_early_and_end_in_order,
    a_sleep_that_is_dropped_costs_no_timer,
    a_sleep_follows_its_waker,
    a_timeout_ends_what_takes_too_long,
    an_interval_neither_drifts_nor_catches_up,
    yielding_lets_everybody_else_go_first,
    tasks_that_wait_for_each_other_need_no_turn_per_step,
    block_on_waits_for_tasks_without_a_turn_per_step,
    callbacks_wake_tasks,
    combinators_of_futures_work,
    channels_between_threads_work,
    many_tasks_come_and_go,
];

/// Ready when told to be, from anywhere.
#[derive(Clone, Default)]
struct Gate(Rc<RefCell<(bool, Vec<Waker>)>>);

impl Gate {
    fn open(&self) {
        let mut gate = self.0.borrow_mut();
        gate.0 = true;
        let waiting = std::mem::take(&mut gate.1);
        drop(gate);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn wakers(&self) -> Vec<Waker> {
        self.0.borrow().1.clone()
    }
}

impl Future for Gate {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut gate = self.0.borrow_mut();
        if gate.0 {
            return Poll::Ready(());
        }
        gate.1.push(context.waker().clone());
        Poll::Pending
    }
}

/// Says where and how often it was dropped.
#[derive(Clone, Default)]
struct Drops(Arc<std::sync::Mutex<Vec<ThreadId>>>);

impl Drops {
    fn witness(&self) -> Witness {
        Witness(self.clone())
    }

    fn threads(&self) -> Vec<ThreadId> {
        self.0.lock().unwrap().clone()
    }
}

struct Witness(Drops);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().push(thread::current().id());
    }
}

fn a_task_runs_in_the_next_tick_phase_and_gives_its_result(on: On) {
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
        unreachable!("it was cancelled");
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
    // One that has never been polled, too.
    let witness = drops.witness();
    drop(reactor.spawn(async move { drop(witness) }).cancel_on_drop());
    assert_eq!(reactor.task_count(), 1);
    poll(&mut reactor);
    assert_eq!((drops.threads().len(), reactor.task_count()), (2, 0));
}

fn cancelling_a_task_that_is_done_gives_its_result(on: On) {
    let mut reactor = on.reactor();
    let done = reactor.spawn(async { "done" });
    poll(&mut reactor);
    let waits = reactor.spawn(pending::<()>());
    let outcomes = block_on(&mut reactor, async { (done.cancel_and_wait().await, waits.cancel_and_wait().await) });
    assert_eq!(outcomes, (Ok("done"), Err(TaskError::Cancelled)));
    // Without being awaited, as well.
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
        unreachable!("it was cancelled");
    });
    own.replace(Some(task));
    poll(&mut reactor);
    assert_eq!((drops.threads().len(), reactor.task_count()), (1, 0));
}

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

fn a_task_that_is_woken_again_and_again_is_polled_once(on: On) {
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
        // By now, or soon, the loop sleeps.
        thread::sleep(Duration::from_millis(5));
        woken.store(true, Ordering::Release);
        waker.wake();
    });
    assert_eq!(block_on(&mut reactor, task), Ok("woken"));
    other.join().unwrap();
}

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
        // By an executor that has nothing to do with it.
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
    // A panic of what makes the future is one of the task.
    let task = reactor.handle().spawn(|| -> std::future::Ready<()> { panic!("no future") });
    reactor.on_fault(|_, _| {});
    assert_eq!(block_on(&mut reactor, task), Err(TaskError::Panicked { message: "no future".into() }));
}

fn spawning_on_a_reactor_that_is_gone_gives_a_cancelled_task(on: On) {
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
                // Queued when the reactor goes.
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

fn a_task_that_owns_other_tasks_goes_with_them(on: On) {
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

fn a_panic_is_reported_and_told(on: On) {
    let mut reactor = on.catching();
    let log = Log::default();
    let entry = log.clone();
    reactor
        .on_fault(move |_, fault| entry.add(format!("{} {}", fault.message, fault.place.file().ends_with("tasks.rs"))));
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

fn a_panic_goes_on_if_that_is_the_policy(on: On) {
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

fn a_stopped_reactor_takes_no_tasks(on: On) {
    let mut reactor = on.reactor();
    let drops = Drops::default();
    let witness = drops.witness();
    reactor.on_shutdown(move |reactor| {
        reactor.spawn(async move { drop(witness) });
    });
    reactor.stop();
    run(&mut reactor);
    assert_eq!(drops.threads().len(), 1, "what a hook spawns is dropped");
    let late = reactor.spawn(async { 1 });
    assert!(matches!(reactor.block_on(async {}), Err(Error::Stopped)));
    assert_eq!(futures::executor::block_on(late), Err(TaskError::Cancelled));
}

fn a_loop_that_is_told_to_stop_ends_block_on(on: On) {
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
    assert!(!log.take().is_empty(), "everything else goes on meanwhile");
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

fn block_on_passes_a_panic_on(on: On) {
    let mut reactor = on.reactor();
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reactor.block_on(async { panic!("mine") })));
    assert_eq!(*panicked.unwrap_err().downcast_ref::<&str>().unwrap(), "mine");
    assert_eq!(block_on(&mut reactor, async { 1 }), 1);
}

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
    // One that is made outside counts from when it is polled, and one until a deadline that has passed does not wait.
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
    // Moved out of its task, and dropped where there is no reactor.
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
            // A waker that nobody listens to.
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

fn a_timeout_ends_what_takes_too_long(on: On) {
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
        assert_eq!(task::timeout(Duration::ZERO, async { 1 }).await, Ok(1), "what is ready has the word");
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

fn yielding_lets_everybody_else_go_first(on: On) {
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
    // What somebody else has queued comes first, in its order.
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

fn block_on_waits_for_tasks_without_a_turn_per_step(on: On) {
    let mut reactor = on.reactor();
    let turns = reactor.stats().turns;
    block_on(&mut reactor, async {
        for number in 0..100 {
            assert_eq!(task::spawn(async move { number }).await, Ok(number));
        }
    });
    assert_eq!(reactor.stats().turns, turns);
    // One that keeps going all the same does not keep events from being looked at.
    let due = Rc::new(Cell::new(false));
    let is_due = Rc::clone(&due);
    reactor.after(Duration::from_millis(1), move |_| is_due.set(true));
    block_on(&mut reactor, async {
        while !due.get() {
            task::spawn(async {}).await.unwrap();
        }
    });
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
    // Those that wake themselves and those that sleep.
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
    // Which of them wait for what changes all the time, so a list may still grow once or twice.
    assert!(allocated <= 5, "{allocated} allocations in some 50,000 polls");
}
