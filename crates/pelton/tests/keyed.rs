//! Tasks by key, on a pool.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use pelton::{Keyed, Lost, Pool, SubmitError};
use pelton_testing::{POOL_DEADLINE, wait_for};

fn pool(workers: usize) -> Pool {
    Pool::builder().workers(workers).build().unwrap()
}

/// Submits a task that ends when the returned sender is dropped. Returns once it has started.
fn block(keyed: &Keyed<u32>, key: u32) -> Sender<()> {
    let (begin, begun) = channel();
    let (release, released) = channel::<()>();
    let task = move || {
        begin.send(()).unwrap();
        assert_eq!(released.recv_timeout(POOL_DEADLINE), Err(RecvTimeoutError::Disconnected));
    };
    keyed.submit(key, task).unwrap();
    begun.recv_timeout(POOL_DEADLINE).unwrap();
    release
}

/// The tasks of a key that have run, by sender and number.
type Order = Mutex<Vec<(usize, usize)>>;

#[test]
fn tasks_of_a_key_run_one_at_a_time_and_in_order() {
    const KEYS: usize = 50;
    const TASKS: usize = 400;
    const SENDERS: usize = 2;
    let pool = pool(3);
    let keyed = pool.keyed().bound(usize::MAX).bound_per_key(usize::MAX);
    let ran: Arc<Vec<Order>> = Arc::new((0..KEYS).map(|_| Mutex::default()).collect());
    let running: Arc<Vec<AtomicBool>> = Arc::new((0..KEYS).map(|_| AtomicBool::new(false)).collect());
    let together = Arc::new(AtomicUsize::new(0));
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let (keyed, ran, running, together) = (keyed.clone(), ran.clone(), running.clone(), together.clone());
            thread::spawn(move || {
                for number in 0..TASKS {
                    for key in 0..KEYS {
                        let (ran, running, together) = (ran.clone(), running.clone(), together.clone());
                        let task = move || {
                            let overlaps = running[key].swap(true, Ordering::SeqCst);
                            together.fetch_add(usize::from(overlaps), Ordering::SeqCst);
                            ran[key].lock().unwrap().push((sender, number));
                            running[key].store(false, Ordering::SeqCst);
                        };
                        keyed.submit(key, task).unwrap();
                    }
                }
            })
        })
        .collect();
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    pool.shutdown(POOL_DEADLINE).unwrap();
    assert_eq!(together.load(Ordering::SeqCst), 0, "two tasks of one key ran at the same time");
    for ran in ran.iter() {
        let ran = ran.lock().unwrap();
        for sender in 0..SENDERS {
            let numbers: Vec<_> = ran.iter().filter(|(from, _)| *from == sender).map(|(_, number)| *number).collect();
            assert!(numbers.iter().copied().eq(0..TASKS), "{numbers:?}");
        }
    }
}

#[test]
fn busy_key_does_not_block_others() {
    let pool = pool(2);
    let keyed = pool.keyed();
    let release = block(&keyed, 1);
    let behind = keyed.submit_with_reply(1, || "behind").unwrap();
    assert_eq!(keyed.submit_with_reply(2, || "beside").unwrap().wait(), Ok("beside"));
    let behind = behind.try_take().expect_err("it must wait for the first task of its key");
    drop(release);
    assert_eq!(behind.wait(), Ok("behind"));
}

#[test]
fn panicking_task_is_reported_and_others_of_its_key_run() {
    let faults = Arc::new(Mutex::new(Vec::new()));
    let list = faults.clone();
    let pool =
        Pool::builder().workers(1).on_fault(move |fault| list.lock().unwrap().push(fault.clone())).build().unwrap();
    let keyed = pool.keyed();
    let release = block(&keyed, 1);
    let line = line!() + 1;
    keyed.submit(1, || resume_unwind(Box::new("on purpose"))).unwrap();
    let lost = keyed.submit_with_reply(1, || -> u32 { resume_unwind(Box::new("this, too")) }).unwrap();
    let next = keyed.submit_with_reply(1, || 7).unwrap();
    drop(release);
    assert_eq!(next.wait(), Ok(7));
    assert_eq!(lost.wait(), Err(Lost));
    let faults = faults.lock().unwrap();
    let told: Vec<_> = faults.iter().map(|fault| (fault.message.as_str(), fault.place.line())).collect();
    assert_eq!(told, [("on purpose", line), ("this, too", line + 1)]);
    assert!(faults[0].place.file().ends_with("keyed.rs"));
}

#[test]
fn key_without_tasks_has_no_actor() {
    let pool = pool(2);
    let keyed = pool.keyed();
    for key in 0..1000 {
        keyed.submit(key, || {}).unwrap();
    }
    wait_for(|| keyed.busy_keys() == 0);
    assert_eq!(keyed.tasks(), 0);
    wait_for(|| pool.stats().actors == 0);
    assert_eq!(keyed.submit_with_reply(7, || "again").unwrap().wait(), Ok("again"));
    wait_for(|| keyed.busy_keys() == 0 && pool.stats().actors == 0);
}

#[test]
fn tasks_over_the_limit_are_refused_and_returned() {
    let pool = pool(2);
    let keyed = pool.keyed().bound_per_key(2).bound(4);
    let release = block(&keyed, 1);
    keyed.submit(1, || {}).unwrap();
    let refused = keyed.submit(1, || {}).unwrap_err();
    assert!(matches!(refused, SubmitError::Full(_)));
    refused.into_inner()();
    let other = block(&keyed, 2);
    keyed.submit(2, || {}).unwrap();
    assert!(matches!(keyed.submit(3, || {}), Err(SubmitError::Full(_))), "the total is limited, too");
    assert!(matches!(keyed.submit_with_reply(3, || 1), Err(SubmitError::Full(_))));
    assert_eq!((keyed.busy_keys(), keyed.tasks()), (2, 4));
    drop(release);
    wait_for(|| keyed.tasks() == 2);
    assert_eq!(keyed.submit_with_reply(3, || 1).unwrap().wait(), Ok(1));
    drop(other);
}

#[test]
fn stopped_pool_refuses_tasks_and_drops_queued_ones() {
    let pool = pool(1);
    let keyed = pool.keyed();
    let release = block(&keyed, 1);
    let waiting = keyed.submit_with_reply(1, || ()).unwrap();
    let other = keyed.submit_with_reply(2, || ()).unwrap();
    assert!(pool.shutdown(Duration::ZERO).is_err());
    assert!(matches!(keyed.submit(1, || {}), Err(SubmitError::Closed(_))));
    assert!(matches!(keyed.submit_with_reply(3, || {}), Err(SubmitError::Closed(_))));
    assert_eq!(other.wait(), Err(Lost));
    drop(release);
    // The turn in progress may have run it.
    assert!(waiting.wait_timeout(POOL_DEADLINE).is_ok());
    wait_for(|| keyed.busy_keys() == 0 && keyed.tasks() == 0);
}

#[test]
fn task_may_submit_to_its_own_key() {
    let pool = pool(1);
    let keyed = pool.keyed();
    let (sender, order) = channel();
    let (again, first) = (keyed.clone(), sender.clone());
    let release = block(&keyed, 1);
    keyed
        .submit(1, move || {
            first.send("first").unwrap();
            let third = first.clone();
            again.submit(1, move || third.send("third").unwrap()).unwrap();
        })
        .unwrap();
    keyed.submit(1, move || sender.send("second").unwrap()).unwrap();
    drop(release);
    assert_eq!(order.iter().collect::<Vec<_>>(), ["first", "second", "third"]);
}

#[test]
fn shutdown_during_submission_leaves_no_keys_or_counts() {
    for round in 0..100 {
        let pool = pool(2);
        let keyed = pool.keyed();
        let submitting: Vec<_> = (0..2)
            .map(|_| {
                let keyed = keyed.clone();
                thread::spawn(move || {
                    let mut last = None;
                    for key in (0..7).cycle() {
                        match keyed.submit_with_reply(key, || ()) {
                            Ok(reply) => last = Some(reply),
                            Err(SubmitError::Full(_)) => thread::yield_now(),
                            Err(SubmitError::Closed(_)) => break,
                        }
                    }
                    last.is_none_or(|reply| reply.wait_timeout(POOL_DEADLINE).is_ok())
                })
            })
            .collect();
        wait_for(|| keyed.tasks() > 0);
        let _ = pool.shutdown(if round % 2 == 0 { Duration::ZERO } else { POOL_DEADLINE });
        assert!(submitting.into_iter().all(|thread| thread.join().unwrap()), "a reply was neither sent nor lost");
        wait_for(|| (keyed.busy_keys(), keyed.tasks()) == (0, 0));
    }
}

#[test]
fn payload_that_panics_when_dropped_affects_nothing_else() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped on purpose");
        }
    }
    let pool = pool(2);
    let keyed = pool.keyed();
    keyed.submit(1, || std::panic::panic_any(Bomb)).unwrap();
    assert_eq!(keyed.submit_with_reply(1, || "next").unwrap().wait(), Ok("next"));
    assert_eq!(keyed.submit_with_reply(2, || "other").unwrap().wait(), Ok("other"));
    wait_for(|| keyed.busy_keys() == 0 && keyed.tasks() == 0);
}
