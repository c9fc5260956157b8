//! Models of the queue, run under every interleaving (and every reordering the memory model allows) of a few threads.
//!
//! `cargo xtask test` runs them; by hand: `RUSTFLAGS="--cfg loom" cargo test --release -p pelton-sync --test loom`.
//! In these builds a block has two slots, so that a handful of values links, retires and reuses blocks.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use pelton_sync::{PushError, Pushed, Receiver, Sender, queue};

/// Explores with at most three preemptions per run: enough for every bug of this kind on record, and minutes less.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
    builder.check(f);
}

/// Pushes, and wakes the receiver's thread if told to.
fn push_and_wake<T: Send>(sender: &Sender<T>, value: T, receiver: &thread::Thread) {
    if sender.push(value).unwrap() == Pushed::ReceiverSleeps {
        receiver.unpark();
    }
}

/// Takes `count` values, sleeping whenever there is none. If a wake-up is lost, the model deadlocks, and says so.
fn take<T: Send>(receiver: &mut Receiver<T>, count: usize) -> Vec<T> {
    let mut taken = Vec::new();
    while taken.len() < count {
        match receiver.pop() {
            Some(value) => taken.push(value),
            None => {
                if receiver.sleep() {
                    thread::park();
                    receiver.awake();
                }
            }
        }
    }
    taken
}

#[test]
fn every_value_arrives_once_in_its_senders_order_and_no_wake_up_is_lost() {
    model(|| {
        let (sender, mut receiver) = queue();
        let loop_thread = thread::current();
        let senders: Vec<_> = (0..2)
            .map(|number| {
                let (sender, loop_thread) = (sender.clone(), loop_thread.clone());
                thread::spawn(move || {
                    push_and_wake(&sender, (number, 0), &loop_thread);
                    push_and_wake(&sender, (number, 1), &loop_thread);
                })
            })
            .collect();
        let taken = take(&mut receiver, 4);
        for number in 0..2 {
            let own: Vec<_> = taken.iter().filter(|(from, _)| *from == number).map(|(_, value)| *value).collect();
            assert_eq!(own, [0, 1]);
        }
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(receiver.pop(), None);
    });
}

#[test]
fn blocks_are_reused_while_a_sender_is_at_work() {
    model(|| {
        let (sender, mut receiver) = queue();
        let loop_thread = thread::current();
        let pushing = thread::spawn(move || {
            for value in 0..6 {
                push_and_wake(&sender, Box::new(value), &loop_thread);
            }
        });
        let taken: Vec<i32> = take(&mut receiver, 6).into_iter().map(|boxed| *boxed).collect();
        assert_eq!(taken, [0, 1, 2, 3, 4, 5]);
        pushing.join().unwrap();
    });
}

#[test]
fn two_senders_that_cross_blocks_find_their_own_slots() {
    model(|| {
        let (sender, mut receiver) = queue();
        // The first block is full and read, so both senders start at a retired one.
        for value in 0..3 {
            let _ = sender.push(value).unwrap();
        }
        assert_eq!((receiver.pop(), receiver.pop()), (Some(0), Some(1)));
        let other = {
            let sender = sender.clone();
            thread::spawn(move || {
                let _ = sender.push(10).unwrap();
                let _ = sender.push(11).unwrap();
            })
        };
        let _ = sender.push(20).unwrap();
        let mut taken = Vec::new();
        while let Some(value) = receiver.pop() {
            taken.push(value);
        }
        other.join().unwrap();
        while let Some(value) = receiver.pop() {
            taken.push(value);
        }
        assert_eq!(taken.len(), 4);
        assert_eq!(taken.iter().filter(|value| (10..12).contains(*value)).collect::<Vec<_>>(), [&10, &11]);
        assert!(taken.contains(&20) && taken[0] == 2);
    });
}

#[test]
fn a_sleeping_receiver_is_woken_by_exactly_one_sender() {
    model(|| {
        let (sender, mut receiver) = queue();
        assert!(receiver.sleep());
        let wakes = Arc::new(AtomicUsize::new(0));
        let senders: Vec<_> = (0..2)
            .map(|value| {
                let (sender, wakes) = (sender.clone(), wakes.clone());
                thread::spawn(move || {
                    if sender.push(value).unwrap() == Pushed::ReceiverSleeps {
                        wakes.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        assert_eq!(take(&mut receiver, 2).len(), 2);
    });
}

#[test]
fn a_bounded_push_never_exceeds_its_bound_and_gives_the_value_back() {
    model(|| {
        let (sender, mut receiver) = queue();
        let other = {
            let sender = sender.clone();
            thread::spawn(move || match sender.try_push(Box::new(1), 1) {
                Ok(_) => true,
                Err(PushError::Full(value)) => *value != 1,
                Err(PushError::Closed(_)) => unreachable!(),
            })
        };
        let mine = sender.try_push(Box::new(2), 1).is_ok();
        let theirs = other.join().unwrap();
        // Nothing was taken meanwhile, so exactly one found room.
        assert!(mine ^ theirs);
        assert!(receiver.pop().is_some());
        assert!(receiver.pop().is_none());
        assert!(sender.try_push(Box::new(3), 1).is_ok());
    });
}

#[test]
fn a_bounded_push_finds_room_again_while_the_receiver_takes() {
    model(|| {
        let (sender, mut receiver) = queue();
        let _ = sender.try_push(0, 1).unwrap();
        let loop_thread = thread::current();
        let pushing = thread::spawn(move || {
            let mut value = 1;
            loop {
                match sender.try_push(value, 1) {
                    Ok(Pushed::ReceiverSleeps) => break loop_thread.unpark(),
                    Ok(Pushed::ReceiverAwake) => break,
                    Err(PushError::Full(back)) => value = back,
                    Err(PushError::Closed(_)) => unreachable!(),
                }
                thread::yield_now();
            }
        });
        assert_eq!(take(&mut receiver, 2), [0, 1]);
        pushing.join().unwrap();
    });
}

/// Counts how often it was dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_value_pushed_while_the_receiver_goes_is_dropped_once_or_given_back() {
    model(|| {
        let drops = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = queue();
        let _ = sender.push(Counted(drops.clone())).unwrap();
        let pushing = {
            let value = Counted(drops.clone());
            thread::spawn(move || match sender.push(value) {
                Ok(_) => {}
                Err(PushError::Closed(value)) => drop(value),
                Err(PushError::Full(_)) => unreachable!(),
            })
        };
        drop(receiver);
        pushing.join().unwrap();
        assert_eq!(drops.load(Ordering::Relaxed), 2);
    });
}
