//! Panics, drops and shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use pelton::{Actor, ActorRef, Context, MailError, Pool};
use pelton_testing::{Alive, Counted, POOL_DEADLINE, wait_for};

use super::{blocker, panic_quietly, pool};

#[test]
fn random_panics_affect_no_other_actor_and_leak_nothing() {
    const ACTORS: usize = 200;
    let (alive, faults, received) = (Alive::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let told = faults.clone();
    let pool = Pool::builder().workers(3).on_fault(move |fault| {
        assert!(fault.to_string().contains("panicked: on purpose"), "{fault}");
        told.fetch_add(1, Ordering::Relaxed);
    });
    let pool = pool.build().unwrap();
    let actors: Arc<[_]> = (0..ACTORS)
        .map(|_| {
            let (own, received) = (Counted::new(&alive), received.clone());
            pool.spawn_fn(move |_: Counted, _| {
                let _own = &own;
                received.fetch_add(1, Ordering::Relaxed);
                if fastrand::u32(..500) == 0 {
                    panic_quietly();
                }
            })
        })
        .collect();
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let (actors, alive) = (actors.clone(), alive.clone());
            thread::spawn(move || {
                let mut refused = 0;
                for _ in 0..50_000 {
                    match actors[fastrand::usize(..ACTORS)].send(Counted::new(&alive)) {
                        Ok(()) => {}
                        Err(MailError::Closed(_)) => refused += 1,
                        Err(MailError::Full(_)) => unreachable!(),
                    }
                }
                refused
            })
        })
        .collect();
    let mut refused: usize = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
    // On a busy machine, the senders may have finished before any worker ran.
    wait_for(|| actors.iter().any(|actor| actor.is_closed()));
    let first_closed = actors.iter().find(|actor| actor.is_closed()).unwrap();
    assert!(matches!(first_closed.send(Counted::new(&alive)), Err(MailError::Closed(_))));
    refused += 1;
    pool.shutdown(POOL_DEADLINE).unwrap();
    let closed = actors.iter().filter(|actor| actor.is_closed()).count();
    assert_eq!(closed, faults.load(Ordering::Relaxed));
    assert_eq!(pool.stats().panics as usize, closed);
    assert!(received.load(Ordering::Relaxed) + refused <= 200_001);
    assert_eq!(alive.count(), ACTORS - closed);
    drop(actors);
    assert_eq!((alive.count(), pool.stats().actors), (0, 0));
}

#[test]
fn everything_is_dropped_once_however_an_actor_ends() {
    let alive = Alive::default();
    let pool = Pool::builder().workers(2).on_fault(|_| {}).build().unwrap();
    for ending in 0..4 {
        let own = Counted::new(&alive);
        let actor = pool.spawn_fn(move |(what, _counted): (u32, Counted), context: &mut Context<'_, _>| {
            let _own = &own;
            match what {
                1 => context.stop(),
                2 => panic_quietly(),
                _ => {}
            }
        });
        for number in 0..1_000 {
            let what = if number == 500 { ending } else { 0 };
            actor.send((what, Counted::new(&alive))).ok();
        }
        // The others end with their last reference.
        drop(actor);
    }
    wait_for(|| pool.stats().actors == 0);
    wait_for(|| alive.count() == 0);
}

#[test]
fn chain_of_actors_that_own_each_other_is_dropped() {
    struct Link(#[expect(dead_code, reason = "held only to be dropped")] Option<ActorRef<()>>);
    impl Actor for Link {
        type Message = ();
        fn receive(&mut self, (): (), _: &mut Context<'_, ()>) {}
    }
    for stopped in [false, true] {
        let pool = pool(2);
        let chain = (0..50_000).fold(None, |next, _| Some(pool.spawn(Link(next))));
        if stopped {
            pool.shutdown(POOL_DEADLINE).unwrap();
        }
        drop(chain);
        wait_for(|| pool.stats().actors == 0);
    }
}

#[test]
fn shutdown_finishes_queued_messages_and_refuses_new_ones() {
    let pool = pool(2);
    let count = Arc::new(AtomicUsize::new(0));
    let counter = {
        let count = count.clone();
        pool.spawn_fn(move |left: u32, context: &mut Context<'_, u32>| {
            count.fetch_add(1, Ordering::Relaxed);
            // Messages that actors send each other are received, too.
            if left > 0 {
                context.me().unwrap().send(left - 1).unwrap();
            }
        })
    };
    for _ in 0..1_000 {
        counter.send(9).unwrap();
    }
    pool.shutdown(POOL_DEADLINE).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 10_000);
    assert_eq!(counter.send(0), Err(MailError::Closed(0)));
    pool.shutdown(POOL_DEADLINE).unwrap();
}

#[test]
fn shutdown_drops_remaining_messages_at_the_deadline() {
    let alive = Alive::default();
    let pool = pool(1);
    let (gate, inside, release) = blocker(&pool);
    gate.send(()).unwrap();
    inside.recv_timeout(POOL_DEADLINE).unwrap();
    let other = pool.spawn_fn(|_: Counted, _| unreachable!("the actor must not run"));
    for _ in 0..100 {
        other.send(Counted::new(&alive)).unwrap();
    }
    let error = pool.shutdown(Duration::from_millis(20)).unwrap_err();
    assert_eq!((error.busy, error.waiting), (1, 1));
    drop(release);
    wait_for(|| alive.count() == 0 && other.is_closed());
}
