//! Workers: fair shares, actors that block, idle pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use pelton::{Actor, Context, Pool};
use pelton_testing::{POOL_DEADLINE, wait_for};

use super::{blocker, pool};

#[test]
fn flooded_actor_gets_only_its_share() {
    let pool = Pool::builder().workers(1).messages_per_turn(10).build().unwrap();
    let (gate, inside, release) = blocker(&pool);
    gate.send(()).unwrap();
    inside.recv().unwrap();
    let (flooded, seen) = (Arc::new(AtomicUsize::new(0)), channel());
    let count = flooded.clone();
    let flood = pool.spawn_fn(move |_: u32, _| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    for number in 0..10_000 {
        flood.send(number).unwrap();
    }
    let count = flooded.clone();
    let other = pool.spawn_fn(move |(), _| seen.0.send(count.load(Ordering::Relaxed)).unwrap());
    other.send(()).unwrap();
    release.send(()).unwrap();
    assert_eq!(seen.1.recv_timeout(POOL_DEADLINE), Ok(10));
    pool.shutdown(POOL_DEADLINE).unwrap();
    assert_eq!(flooded.load(Ordering::Relaxed), 10_000);
}

#[test]
fn busy_actors_do_not_starve_messages_from_outside() {
    let pool = pool(1);
    let busy = pool.spawn_fn(|stop: bool, context: &mut Context<'_, bool>| {
        if stop {
            return context.stop();
        }
        if let Some(me) = context.me() {
            me.send(false).ok();
        }
    });
    busy.send(false).unwrap();
    for _ in 0..100 {
        let (answer, answered) = channel();
        pool.spawn_fn(move |(), _| answer.send(()).unwrap()).send(()).unwrap();
        answered.recv_timeout(POOL_DEADLINE).unwrap();
    }
    busy.send(true).unwrap();
    pool.shutdown(POOL_DEADLINE).unwrap();
}

#[test]
fn no_worker_waits_for_an_actor_that_blocks() {
    let pool = pool(2);
    let (gate, inside, release) = blocker(&pool);
    gate.send(()).unwrap();
    inside.recv_timeout(POOL_DEADLINE).unwrap();
    // Further messages for the blocked actor keep no other worker busy.
    gate.send(()).unwrap();
    let (done, finished) = channel();
    for number in 0..1_000 {
        let done = done.clone();
        pool.spawn_fn(move |number: u32, _| done.send(number).unwrap()).send(number).unwrap();
    }
    for _ in 0..1_000 {
        finished.recv_timeout(POOL_DEADLINE).unwrap();
    }
    drop(release);
    pool.shutdown(POOL_DEADLINE).unwrap();
}

#[test]
fn queue_of_a_blocked_worker_is_stolen_by_others() {
    let pool = pool(2);
    for _ in 0..50 {
        let (done, finished) = channel();
        let (release, released) = channel::<()>();
        // Its messages go into the queue of the worker that it is about to block.
        let (targets, waiting): (Vec<_>, _) = ((0..10).map(|_| done.clone()).collect(), released);
        let spreader = pool.spawn_fn(move |(), context: &mut Context<'_, ()>| {
            for done in targets.clone() {
                context.spawn(Once(done)).send(()).unwrap();
            }
            waiting.recv().ok();
        });
        spreader.send(()).unwrap();
        for _ in 0..10 {
            finished.recv_timeout(POOL_DEADLINE).unwrap();
        }
        drop(release);
    }
    struct Once(Sender<()>);
    impl Actor for Once {
        type Message = ();
        fn receive(&mut self, (): (), _: &mut Context<'_, ()>) {
            self.0.send(()).unwrap();
        }
    }
}

#[test]
fn an_idle_pool_sleeps() {
    let pool = pool(3);
    wait_for(|| pool.stats().asleep == 3);
    let parks = pool.stats().parks;
    let (done, finished) = channel();
    let actor = pool.spawn_fn(move |(), _| done.send(()).unwrap());
    actor.send(()).unwrap();
    finished.recv_timeout(POOL_DEADLINE).unwrap();
    wait_for(|| pool.stats().asleep == 3);
    assert!(pool.stats().parks > parks);
}
