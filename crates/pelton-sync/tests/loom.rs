//! Models of the queue, the mailbox and the parking of workers, run under every interleaving of a few threads and every
//! reordering that the memory model allows.
//!
//! `cargo xtask test` runs them. To run them directly: `RUSTFLAGS="--cfg loom" cargo test --release -p pelton-sync --test
//! loom`. In these builds a block has two slots, so that a few values are enough to link, retire and reuse blocks.
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use pelton_sync::{
    Address, Inbox, Next, Parking, PushError, Pushed, Receive, Receiver, Schedule, Sender, Turn, mailbox, queue,
};

/// Explores with at most three preemptions per run. That finds every known bug of this kind and saves minutes.
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(3));
    builder.check(f);
}

/// Pushes, and wakes the receiver's thread if necessary.
fn push_and_wake<T: Send>(sender: &Sender<T>, value: T, receiver: &thread::Thread) {
    if sender.push(value).unwrap() == Pushed::ReceiverSleeps {
        receiver.unpark();
    }
}

/// Takes `count` values and sleeps while there is none. If a wake-up is lost, loom reports a deadlock.
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
        // Nothing was taken meanwhile, so exactly one push found room.
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
fn a_value_pushed_while_the_queue_is_closed_is_taken_or_given_back() {
    model(|| {
        let (sender, mut receiver) = queue();
        let other = {
            let sender = sender.clone();
            thread::spawn(move || sender.push(1).is_ok())
        };
        receiver.close();
        let taken = std::iter::from_fn(|| receiver.pop_rest()).count();
        let accepted = other.join().unwrap();
        assert_eq!(taken, usize::from(accepted));
        assert!(matches!(sender.push(2), Err(PushError::Closed(2))));
        assert!(sender.is_empty());
    });
}

#[test]
fn a_value_pushed_while_the_receiver_is_dropped_is_dropped_once_or_given_back() {
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

/// Scheduled turns. The lock belongs to the model, not to the mailbox.
#[derive(Clone, Default)]
struct Turns(Arc<loom::sync::Mutex<Vec<Turn>>>);

impl Schedule for Turns {
    fn schedule(&self, turn: Turn) {
        self.0.lock().unwrap().push(turn);
    }
}

impl Turns {
    fn take(&self) -> Option<Turn> {
        self.0.lock().unwrap().pop()
    }

    /// Runs scheduled turns until there are none, one message at a time. Returns the number of messages.
    fn run(&self) -> usize {
        let mut received = 0;
        while let Some(turn) = self.take() {
            let ran = turn.run(1);
            received += ran.messages;
            if let Some(turn) = ran.again {
                self.schedule(turn);
            }
        }
        received
    }
}

/// Checks that it runs on one thread at a time, and records what it receives.
struct Collector {
    /// Loom fails if two threads access it at once, or if one does not see what another did.
    log: loom::cell::UnsafeCell<Vec<(usize, usize)>>,
    out: Arc<loom::sync::Mutex<Vec<(usize, usize)>>>,
    rooms: Arc<AtomicUsize>,
    _drops: Counted,
}

impl Receive<(usize, usize), Turns> for Collector {
    fn receive(&mut self, message: (usize, usize), _: &Inbox<'_, (usize, usize), Turns>) -> Next {
        // SAFETY: the mailbox lets one thread in at a time. That is what this test checks.
        self.log.with_mut(|log| unsafe { (*log).push(message) });
        self.out.lock().unwrap().push(message);
        if message.1 == CLOSE { Next::Close } else { Next::GoOn }
    }

    fn has_room(&mut self) {
        self.rooms.fetch_add(1, Ordering::Relaxed);
    }
}

/// A message on which the receiver closes the mailbox.
const CLOSE: usize = 99;

struct Scene {
    turns: Turns,
    out: Arc<loom::sync::Mutex<Vec<(usize, usize)>>>,
    rooms: Arc<AtomicUsize>,
    drops: Arc<AtomicUsize>,
}

fn scene(bound: usize) -> (Scene, Address<(usize, usize), Turns>) {
    let scene = Scene {
        turns: Turns::default(),
        out: Arc::new(loom::sync::Mutex::new(Vec::new())),
        rooms: Arc::new(AtomicUsize::new(0)),
        drops: Arc::new(AtomicUsize::new(0)),
    };
    let collector = Collector {
        log: loom::cell::UnsafeCell::new(Vec::new()),
        out: scene.out.clone(),
        rooms: scene.rooms.clone(),
        _drops: Counted(scene.drops.clone()),
    };
    let address = mailbox(scene.turns.clone(), bound, Box::new(collector));
    (scene, address)
}

impl Scene {
    fn received_from(&self, sender: usize) -> Vec<usize> {
        self.out.lock().unwrap().iter().filter(|(from, _)| *from == sender).map(|(_, value)| *value).collect()
    }

    fn drops(&self) -> usize {
        self.drops.load(Ordering::Relaxed)
    }
}

#[test]
fn every_message_is_received_once_in_its_senders_order_by_one_worker_at_a_time() {
    model(|| {
        let (scene, address) = scene(100);
        let sender = {
            let address = address.clone();
            let turns = scene.turns.clone();
            thread::spawn(move || {
                address.push((1, 0)).unwrap();
                address.push((1, 1)).unwrap();
                // This thread is a worker too: turns move between threads.
                turns.run();
            })
        };
        address.push((0, 0)).unwrap();
        scene.turns.run();
        sender.join().unwrap();
        scene.turns.run();
        assert_eq!(scene.received_from(0), [0]);
        assert_eq!(scene.received_from(1), [0, 1]);
        assert_eq!(scene.drops(), 0);
        drop(address);
        scene.turns.run();
        assert_eq!(scene.drops(), 1);
    });
}

#[test]
fn a_mailbox_that_goes_to_rest_misses_no_message_and_has_one_turn() {
    model(|| {
        let (scene, address) = scene(100);
        address.push((0, 0)).unwrap();
        let turn = scene.turns.take().unwrap();
        let senders: Vec<_> = (1..3)
            .map(|number| {
                let address = address.clone();
                thread::spawn(move || address.push((number, 0)).unwrap())
            })
            .collect();
        let ran = turn.run(100);
        assert!(ran.again.is_none());
        for sender in senders {
            sender.join().unwrap();
        }
        let turns: Vec<_> = scene.turns.0.lock().unwrap().drain(..).collect();
        assert!(turns.len() <= 1);
        assert_eq!(turns.is_empty(), ran.messages == 3);
        let later: usize = turns.into_iter().map(|turn| turn.run(100).messages).sum();
        assert_eq!(ran.messages + later, 3);
        drop(address);
        scene.turns.run();
    });
}

#[test]
fn the_last_address_and_the_last_message_end_the_receiver_once() {
    model(|| {
        let (scene, address) = scene(100);
        let other = {
            let address = address.clone();
            thread::spawn(move || address.push((1, 0)).unwrap())
        };
        let worker = {
            let turns = scene.turns.clone();
            thread::spawn(move || turns.run())
        };
        drop(address);
        other.join().unwrap();
        let received = worker.join().unwrap() + scene.turns.run();
        assert_eq!((received, scene.drops()), (1, 1));
    });
}

#[test]
fn a_message_sent_while_the_mailbox_closes_is_dropped_or_given_back_and_all_is_freed() {
    model(|| {
        let (scene, address) = scene(100);
        address.push((0, CLOSE)).unwrap();
        let sender = thread::spawn(move || match address.push((1, 0)) {
            Ok(()) => {}
            Err(PushError::Closed(message)) => assert_eq!(message, (1, 0)),
            Err(PushError::Full(_)) => unreachable!(),
        });
        scene.turns.run();
        sender.join().unwrap();
        scene.turns.run();
        assert_eq!((scene.received_from(1).len(), scene.drops()), (0, 1));
    });
}

#[test]
fn a_dropped_turn_closes_the_mailbox_while_the_last_address_is_dropped() {
    model(|| {
        let (scene, address) = scene(100);
        address.push((0, 0)).unwrap();
        let turn = scene.turns.take().unwrap();
        let other = thread::spawn(move || drop(address));
        drop(turn);
        other.join().unwrap();
        assert_eq!((scene.drops(), scene.turns.0.lock().unwrap().len()), (1, 0));
    });
}

#[test]
fn refused_sender_is_notified_of_room_exactly_once() {
    model(|| {
        let (scene, address) = scene(1);
        let rooms = scene.rooms.clone();
        let sender = {
            let address = address.clone();
            thread::spawn(move || {
                address.try_push((1, 0)).unwrap();
                match address.try_push((1, 1)) {
                    Ok(()) => 0,
                    Err(PushError::Full(message)) => {
                        assert_eq!(message, (1, 1));
                        1
                    }
                    Err(PushError::Closed(_)) => unreachable!(),
                }
            })
        };
        scene.turns.run();
        let refused = sender.join().unwrap();
        scene.turns.run();
        assert_eq!(rooms.load(Ordering::Relaxed), refused);
        assert!(address.try_push((0, 0)).is_ok());
        drop(address);
        scene.turns.run();
    });
}

#[test]
fn an_address_made_by_the_receiver_keeps_it_or_comes_too_late() {
    struct Finder(Arc<loom::sync::Mutex<Vec<Address<u8, Turns>>>>);
    impl Receive<u8, Turns> for Finder {
        fn receive(&mut self, _: u8, inbox: &Inbox<'_, u8, Turns>) -> Next {
            self.0.lock().unwrap().extend(inbox.address());
            Next::GoOn
        }
    }
    model(|| {
        let (turns, found) = (Turns::default(), Arc::new(loom::sync::Mutex::new(Vec::new())));
        let address = mailbox(turns.clone(), 1, Box::new(Finder(found.clone())));
        address.push(1).unwrap();
        let other = thread::spawn(move || drop(address));
        turns.run();
        other.join().unwrap();
        turns.run();
        let found: Vec<_> = found.lock().unwrap().drain(..).collect();
        for address in found {
            address.push(2).unwrap();
        }
        turns.run();
    });
}

/// Schedules turns as a pool does.
#[derive(Clone)]
struct Injected(Arc<pelton_sync::Turns>);

impl Schedule for Injected {
    fn schedule(&self, turn: Turn) {
        self.0.push(turn);
    }
}

#[test]
fn turns_are_taken_once_in_the_order_in_which_they_were_added() {
    struct Logger(Arc<loom::sync::Mutex<Vec<u8>>>);
    impl Receive<u8, Injected> for Logger {
        fn receive(&mut self, message: u8, _: &Inbox<'_, u8, Injected>) -> Next {
            self.0.lock().unwrap().push(message);
            Next::GoOn
        }
    }
    model(|| {
        let injected = Injected(Arc::new(pelton_sync::Turns::new()));
        let log = Arc::new(loom::sync::Mutex::new(Vec::new()));
        let address = |_| mailbox(injected.clone(), 1, Box::new(Logger(log.clone())));
        let [one, two, three] = [0, 1, 2].map(address);
        let other = thread::spawn(move || {
            one.push(1).unwrap();
            two.push(2).unwrap();
            (one, two)
        });
        three.push(3).unwrap();
        let run = || injected.0.take().for_each(|turn| assert!(turn.run(10).again.is_none()));
        run();
        let addresses = other.join().unwrap();
        run();
        let log = log.lock().unwrap().clone();
        assert_eq!(log.len(), 3);
        assert_eq!(log.iter().filter(|message| **message < 3).collect::<Vec<_>>(), [&1, &2]);
        drop((addresses, three));
        run();
        assert!(injected.0.is_empty() && injected.0.len() == 0);
    });
}

/// Takes one piece of work and sleeps while there is none.
fn work(number: usize, parking: &Parking, work: &AtomicUsize, threads: &[thread::Thread]) {
    let take = || work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    let mut searching = parking.search();
    loop {
        if take() {
            if searching
                && parking.found()
                && let Some(other) = parking.wake()
            {
                threads[other].unpark();
            }
            return;
        }
        parking.sleep(number, searching);
        if work.load(Ordering::Relaxed) > 0 {
            parking.get_up(number);
        }
        while parking.is_asleep(number) {
            thread::park();
        }
        searching = true;
    }
}

#[test]
fn a_worker_that_goes_to_sleep_is_woken_by_what_is_added_meanwhile() {
    model(|| {
        let (parking, pieces) = (Arc::new(Parking::new(1)), Arc::new(AtomicUsize::new(0)));
        let worker = thread::current();
        let adding = {
            let (parking, pieces) = (parking.clone(), pieces.clone());
            thread::spawn(move || {
                pieces.fetch_add(1, Ordering::Relaxed);
                if parking.wake().is_some() {
                    worker.unpark();
                }
            })
        };
        // If the wake-up is lost, loom reports a deadlock.
        work(0, &parking, &pieces, &[thread::current()]);
        adding.join().unwrap();
    });
}

#[test]
fn two_pieces_of_work_wake_two_workers() {
    model(|| {
        let (parking, pieces) = (Arc::new(Parking::new(2)), Arc::new(AtomicUsize::new(0)));
        let main = thread::current();
        let other = {
            let (parking, pieces, main) = (parking.clone(), pieces.clone(), main.clone());
            thread::spawn(move || {
                let threads = [main, thread::current()];
                work(1, &parking, &pieces, &threads);
            })
        };
        let adding = {
            let (parking, pieces, threads) = (parking.clone(), pieces.clone(), [main.clone(), other.thread().clone()]);
            thread::spawn(move || {
                for _ in 0..2 {
                    pieces.fetch_add(1, Ordering::Relaxed);
                    if let Some(worker) = parking.wake() {
                        threads[worker].unpark();
                    }
                }
            })
        };
        work(0, &parking, &pieces, &[main, other.thread().clone()]);
        other.join().unwrap();
        adding.join().unwrap();
        assert_eq!(pieces.load(Ordering::Relaxed), 0);
    });
}
