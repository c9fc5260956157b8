//! The queue with real threads, in numbers that a model cannot have.
#![cfg(not(loom))]

use std::thread;

use pelton_sync::{PushError, Pushed, queue};

#[test]
fn four_senders_and_a_sleeping_receiver_lose_nothing_and_keep_their_order() {
    const SENDERS: usize = 4;
    const VALUES: usize = 100_000;
    let (sender, mut receiver) = queue();
    let loop_thread = thread::current();
    let senders: Vec<_> = (0..SENDERS)
        .map(|number| {
            let (sender, loop_thread) = (sender.clone(), loop_thread.clone());
            thread::spawn(move || {
                let mut wakes = 0;
                for value in 0..VALUES {
                    if sender.push((number, value)).unwrap() == Pushed::ReceiverSleeps {
                        wakes += 1;
                        loop_thread.unpark();
                    }
                }
                wakes
            })
        })
        .collect();
    let mut next = [0; SENDERS];
    let mut sleeps = 0;
    for _ in 0..SENDERS * VALUES {
        let (number, value) = loop {
            if let Some(value) = receiver.pop() {
                break value;
            }
            if receiver.sleep() {
                sleeps += 1;
                thread::park();
                receiver.awake();
            }
        };
        assert_eq!(value, next[number]);
        next[number] += 1;
    }
    let wakes: usize = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
    assert!(wakes <= sleeps, "{wakes} wake-ups for {sleeps} sleeps");
    assert_eq!(receiver.pop(), None);
}

#[test]
fn a_bound_holds_against_many_senders() {
    const BOUND: usize = 100;
    let (sender, mut receiver) = queue();
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let sender = sender.clone();
            thread::spawn(move || {
                let mut accepted = 0;
                for _ in 0..50_000 {
                    accepted += usize::from(sender.try_push(1u64, BOUND).is_ok());
                }
                accepted
            })
        })
        .collect();
    let mut taken = 0;
    while senders.iter().any(|sender| !sender.is_finished()) {
        // Longer than this only if the bound was passed: nothing is taken between here and the next look.
        let mut waiting = 0;
        while waiting <= BOUND && receiver.pop().is_some() {
            waiting += 1;
        }
        taken += waiting;
    }
    let accepted: usize = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
    while receiver.pop().is_some() {
        taken += 1;
    }
    assert_eq!(taken, accepted);
    for _ in 0..BOUND {
        let _ = sender.try_push(1, BOUND).unwrap();
    }
    assert!(matches!(sender.try_push(7, BOUND), Err(PushError::Full(7))));
    drop(receiver);
    assert!(matches!(sender.try_push(7, BOUND), Err(PushError::Closed(7))));
    assert!(matches!(sender.push(8), Err(PushError::Closed(8))));
}

#[test]
fn values_are_dropped_with_the_receiver() {
    let value = std::sync::Arc::new(());
    let (sender, mut receiver) = queue();
    for _ in 0..1_000 {
        let _ = sender.push(value.clone()).unwrap();
    }
    for _ in 0..100 {
        receiver.pop().unwrap();
    }
    drop(receiver);
    assert_eq!(std::sync::Arc::strong_count(&value), 1);
}
