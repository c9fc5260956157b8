//! Tests the queue and the mailbox with real threads, and with more values than a model can have.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use pelton_sync::{Inbox, Next, PushError, Pushed, Receive, Schedule, Turn, mailbox, queue};

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
        // More than BOUND only if the bound was exceeded: nothing is taken between here and the next check.
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

/// Turns that wait for a worker, and the number of mailboxes that have not ended.
#[derive(Clone, Default)]
struct Turns(Arc<(Mutex<Vec<Turn>>, Condvar, AtomicUsize)>);

impl Schedule for Turns {
    fn schedule(&self, turn: Turn) {
        self.0.0.lock().unwrap().push(turn);
        self.0.1.notify_one();
    }
}

impl Turns {
    /// Runs turns until all mailboxes have ended.
    fn work(&self) {
        let (turns, changed, mailboxes) = &*self.0;
        let mut waiting = turns.lock().unwrap();
        while mailboxes.load(Ordering::Relaxed) > 0 {
            match waiting.pop() {
                None => waiting = changed.wait(waiting).unwrap(),
                Some(turn) => {
                    drop(waiting);
                    if let Some(turn) = turn.run(7).again {
                        self.schedule(turn);
                    }
                    waiting = turns.lock().unwrap();
                }
            }
        }
        changed.notify_all();
    }
}

#[test]
fn mailboxes_keep_the_order_of_each_sender_and_end_with_their_last_address() {
    const SENDERS: usize = 4;
    const MAILBOXES: usize = 10;
    const MESSAGES: usize = 50_000;
    struct Checker {
        next: [usize; SENDERS],
        received: Arc<AtomicUsize>,
        turns: Turns,
    }
    impl Receive<(usize, Box<usize>), Turns> for Checker {
        fn receive(
            &mut self,
            (sender, number): (usize, Box<usize>),
            _: &Inbox<'_, (usize, Box<usize>), Turns>,
        ) -> Next {
            assert!(*number >= self.next[sender]);
            self.next[sender] = *number + 1;
            self.received.fetch_add(1, Ordering::Relaxed);
            Next::GoOn
        }
    }
    impl Drop for Checker {
        fn drop(&mut self) {
            self.turns.0.2.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let (turns, received) = (Turns::default(), Arc::new(AtomicUsize::new(0)));
    turns.0.2.store(MAILBOXES, Ordering::Relaxed);
    let addresses: Vec<_> = (0..MAILBOXES)
        .map(|_| {
            let checker = Checker { next: [0; SENDERS], received: received.clone(), turns: turns.clone() };
            mailbox(turns.clone(), 64, Box::new(checker))
        })
        .collect();
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let turns = turns.clone();
            thread::spawn(move || turns.work())
        })
        .collect();
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let addresses = addresses.clone();
            thread::spawn(move || {
                for number in 0..MESSAGES {
                    // Some messages with one method, some with the other.
                    let address = &addresses[number % MAILBOXES];
                    let mut message = (sender, Box::new(number));
                    while let Err(PushError::Full(back)) =
                        if number % 3 == 0 { address.push(message) } else { address.try_push(message) }
                    {
                        message = back;
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    drop(addresses);
    for thread in senders.into_iter().chain(workers) {
        thread.join().unwrap();
    }
    assert_eq!(received.load(Ordering::Relaxed), SENDERS * MESSAGES);
}
