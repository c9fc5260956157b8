//! Signals.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pelton::Error;
use pelton_testing::{Log, On, on_every_engine, poll, run, run_until};
use signal_hook::consts::{SIGKILL, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::low_level::raise;

on_every_engine![
    a_signal_calls_back_on_the_loop,
    several_callbacks_of_one_signal_are_called_in_order,
    a_removed_callback_is_not_called_and_others_are,
    a_callback_can_remove_itself_and_another,
    two_reactors_both_get_a_signal,
    a_signal_that_cannot_be_caught_is_an_error_that_says_so,
];

/// Signals affect the whole process, so these tests run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn a_signal_calls_back_on_the_loop(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    reactor
        .on_signal(SIGUSR1, |reactor, signal| {
            assert_eq!(signal, SIGUSR1);
            reactor.stop();
        })
        .unwrap();
    // From another thread, while the loop sleeps or is about to.
    let other = std::thread::spawn(|| raise(SIGUSR1).unwrap());
    run(&mut reactor);
    other.join().unwrap();
    assert_eq!(reactor.stats().panics, 0);
}

fn several_callbacks_of_one_signal_are_called_in_order(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let log = Log::default();
    for name in ["a", "b", "c"] {
        let entry = log.clone();
        reactor.on_signal(SIGUSR1, move |_, _| entry.add(name)).unwrap();
    }
    let entry = log.clone();
    reactor.on_signal(SIGUSR2, move |_, _| entry.add("other")).unwrap();
    for _ in 0..2 {
        raise(SIGUSR1).unwrap();
        run_until(&mut reactor, |_| log.len() >= 3);
        assert_eq!(log.take(), ["a", "b", "c"]);
    }
}

fn a_removed_callback_is_not_called_and_others_are(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    let first = reactor.on_signal(SIGUSR1, move |_, _| entry.add("first")).unwrap();
    let entry = log.clone();
    let second = reactor.on_signal(SIGUSR1, move |_, _| entry.add("second")).unwrap();
    assert!(reactor.end(first) && !reactor.end(first));
    raise(SIGUSR1).unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), ["second"]);
    assert!(reactor.end(second));

    // Nothing is left behind, and the signal can be caught again. (tests/processes.rs shows that the default action is
    // restored.)
    let entry = log.clone();
    reactor.on_signal(SIGUSR1, move |_, _| entry.add("again")).unwrap();
    raise(SIGUSR1).unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), ["again"]);
}

fn a_callback_can_remove_itself_and_another(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let log = Log::default();
    let ids = Rc::new(Cell::new([None; 2]));
    let (entry, known) = (log.clone(), ids.clone());
    let first = reactor.on_signal(SIGUSR1, move |reactor, _| {
        entry.add("first");
        for id in known.take().into_iter().flatten() {
            assert!(reactor.end(id));
        }
    });
    let second = reactor.on_signal(SIGUSR1, |_, _| panic!("called after it was removed"));
    ids.set([first.ok(), second.ok()]);
    // Keeps the signal caught.
    let entry = log.clone();
    reactor.on_signal(SIGUSR1, move |_, _| entry.add("third")).unwrap();
    raise(SIGUSR1).unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    raise(SIGUSR1).unwrap();
    run_until(&mut reactor, |_| log.len() == 3);
    assert_eq!(log.take(), ["first", "third", "third"]);
    assert_eq!(reactor.stats().panics, 0);
}

fn two_reactors_both_get_a_signal(on: On) {
    let _alone = alone();
    let log = Log::default();
    let mut reactors = [on.reactor(), on.reactor()];
    for reactor in &mut reactors {
        let entry = log.clone();
        reactor.on_signal(SIGUSR1, move |_, _| entry.add("heard")).unwrap();
    }
    raise(SIGUSR1).unwrap();
    for (number, reactor) in reactors.iter_mut().enumerate() {
        run_until(reactor, |_| log.len() == number + 1);
    }
    let [first, mut second] = reactors;
    drop(first);
    raise(SIGUSR1).unwrap();
    run_until(&mut second, |_| log.len() == 3);
}

fn a_signal_that_cannot_be_caught_is_an_error_that_says_so(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    for signal in [SIGKILL, 0, -1, 12_345] {
        let error = reactor.on_signal(signal, |_, _| {}).unwrap_err();
        assert!(matches!(error, Error::Signal { .. }));
        assert!(error.to_string().starts_with(&format!("catch signal {signal}: ")), "{error}");
    }
    // A failure does not prevent later calls from succeeding.
    reactor.on_signal(SIGWINCH, |reactor, _| reactor.stop()).unwrap();
    raise(SIGWINCH).unwrap();
    run(&mut reactor);
    poll(&mut on.reactor());
}
