//! Mailboxes: order of messages, full mailboxes, and messages returned by closed actors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use pelton::{Actor, Context, MailError};
use pelton_testing::{POOL_DEADLINE, wait_for};

use super::pool;

#[test]
fn a_million_messages_from_eight_senders_arrive_in_order() {
    const SENDERS: usize = 8;
    const ACTORS: usize = 1_000;
    const EACH: u32 = 125_000;
    struct Checker {
        next: [u32; SENDERS],
        busy: bool,
        count: usize,
        total: Arc<AtomicUsize>,
    }
    impl Actor for Checker {
        type Message = (usize, u32);
        fn receive(&mut self, (sender, number): (usize, u32), _: &mut Context<'_, (usize, u32)>) {
            assert!(!std::mem::replace(&mut self.busy, true));
            assert!(number >= self.next[sender], "{number} of {sender} after {}", self.next[sender]);
            self.next[sender] = number + 1;
            self.count += 1;
            if fastrand::u32(..1_000) == 0 {
                thread::yield_now();
            }
            self.busy = false;
        }
        fn stopped(&mut self) {
            self.total.fetch_add(self.count, Ordering::Relaxed);
        }
    }
    let (pool, total) = (pool(4), Arc::new(AtomicUsize::new(0)));
    let actors: Arc<[_]> = (0..ACTORS)
        .map(|_| pool.spawn(Checker { next: [0; SENDERS], busy: false, count: 0, total: total.clone() }))
        .collect();
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let actors = actors.clone();
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(sender as u64);
                for number in 0..EACH {
                    actors[random.usize(..ACTORS)].send((sender, number)).unwrap();
                    match random.u32(..20_000) {
                        0 => thread::sleep(Duration::from_micros(random.u64(..300))),
                        1..50 => thread::yield_now(),
                        _ => {}
                    }
                }
            })
        })
        .collect();
    for sender in senders {
        sender.join().unwrap();
    }
    drop(actors);
    pool.shutdown(POOL_DEADLINE).unwrap();
    assert_eq!(total.load(Ordering::Relaxed), SENDERS * EACH as usize);
    let stats = pool.stats();
    assert_eq!((stats.messages, stats.panics, stats.actors), (SENDERS as u64 * u64::from(EACH), 0, 0));
}

#[test]
fn closed_actor_returns_messages() {
    let pool = pool(1);
    let stopping = pool.spawn_fn(|stop: bool, context: &mut Context<'_, bool>| {
        if stop {
            context.stop();
        }
    });
    stopping.send(true).unwrap();
    wait_for(|| stopping.is_closed());
    assert_eq!(stopping.send(false), Err(MailError::Closed(false)));
    assert_eq!(stopping.try_send(false), Err(MailError::Closed(false)));
    assert_eq!(MailError::Full(7).to_string(), "send to an actor: its mailbox is full");
    assert_eq!(MailError::Closed(7).into_inner(), 7);
}

#[test]
fn full_mailbox_refuses_and_reports_room_once() {
    let pool = pool(1);
    let (room, rooms) = channel();
    let (entered, inside) = channel();
    let (release, released) = channel::<()>();
    let actor =
        pool.actor().bound(4).label("slow").on_room(move || room.send(()).unwrap()).spawn_fn(move |_: u32, _| {
            entered.send(()).unwrap();
            released.recv().unwrap();
        });
    actor.try_send(0).unwrap();
    inside.recv_timeout(POOL_DEADLINE).unwrap();
    // The message being received may still count.
    let sent = (1..).find(|number| actor.try_send(*number) == Err(MailError::Full(*number))).unwrap();
    assert!(sent == 4 || sent == 5, "{sent}");
    assert_eq!(actor.try_send(9), Err(MailError::Full(9)));
    actor.send(5).unwrap();
    assert!(rooms.try_recv().is_err() && actor.waiting() >= 4 && actor.bound() == 4);
    for _ in 0..sent {
        release.send(()).unwrap();
    }
    rooms.recv_timeout(POOL_DEADLINE).unwrap();
    actor.try_send(6).unwrap();
    drop(actor);
    for _ in 0..2 {
        release.send(()).unwrap();
    }
    pool.shutdown(POOL_DEADLINE).unwrap();
    assert!(rooms.try_recv().is_err(), "one notification for both refusals");
}
