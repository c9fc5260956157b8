//! Settling a promise once, or abandoning it.

use pelton::{AlreadySettled, Deferred, Rejected};
use pelton_testing::Log;
use proptest::prelude::*;

use crate::{Outcome, outcome, outcome_now, reactor, settle};

#[test]
fn settling_twice_returns_the_second_value() {
    let mut reactor = reactor();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    assert!(!deferred.is_settled() && !promise.is_settled());
    assert_eq!(deferred.resolve(1), Ok(()));
    assert!(deferred.is_settled() && promise.is_settled());
    assert_eq!(deferred.resolve(2), Err(AlreadySettled(2)));
    assert_eq!(deferred.reject("late"), Err(AlreadySettled("late")));
    assert_eq!(deferred.settle(Ok(3)), Err(AlreadySettled(Ok(3))));
    assert_eq!(deferred.settle(Err("late")), Err(AlreadySettled(Err("late"))));
    assert_eq!(outcome_now(&mut reactor, promise), Ok(1));
    assert_eq!(AlreadySettled(1).to_string(), "settle a promise: it was already settled");
}

#[test]
fn promise_is_abandoned_when_the_last_deferred_is_dropped() {
    let mut reactor = reactor();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    let promise = outcome(promise);
    let other = deferred.clone();
    drop(deferred);
    settle(&mut reactor);
    assert_eq!(*promise.borrow(), None);
    drop(other);
    settle(&mut reactor);
    assert_eq!(promise.take(), Some(Err(Rejected::Abandoned)));
}

#[test]
fn a_deferred_knows_whether_anybody_wants_the_outcome() {
    let reactor = reactor();
    let (deferred, promise) = reactor.promise::<u32, &str>();
    assert!(deferred.is_wanted());
    let shared = promise.shared();
    let other = shared.clone();
    drop(shared);
    assert!(deferred.is_wanted());
    other.observe(|_, _| {});
    drop(other);
    assert!(deferred.is_wanted(), "the observer does");
    let (deferred, promise) = reactor.promise::<u32, &str>();
    drop(promise);
    assert!(!deferred.is_wanted());
    assert_eq!(deferred.resolve(1), Ok(()));
}

#[test]
fn a_promise_can_be_made_settled() {
    let mut reactor = reactor();
    let resolved = crate::Number::resolved(&reactor, 1);
    assert_eq!(outcome_now(&mut reactor, resolved), Ok(1));
    let rejected = crate::Number::rejected(&reactor, "no");
    assert_eq!(outcome_now(&mut reactor, rejected), Err(Rejected::Failed("no")));
}

#[test]
fn a_deferred_can_be_settled_where_there_is_no_reactor() {
    struct Guard(Deferred<u32, &'static str>, Log);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.1.add("dropped");
            assert!(self.0.resolve(7).is_ok());
            self.1.add("settled");
        }
    }
    let mut reactor = reactor();
    let log = Log::default();
    let (deferred, promise) = reactor.promise();
    let entry = log.clone();
    promise.done(move |_, outcome| entry.add(format!("{outcome:?}")));
    let guard = Guard(deferred, log.clone());
    reactor.next_tick(move |_| drop(guard));
    settle(&mut reactor);
    assert_eq!(log.take(), ["dropped", "settled", "Ok(7)"]);
}

#[derive(Debug, Clone)]
enum Move {
    Resolve(usize, u32),
    Reject(usize, u32),
    Clone(usize),
    Drop(usize),
    Turn,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        (any::<usize>(), any::<u32>()).prop_map(|(who, value)| Move::Resolve(who, value)),
        (any::<usize>(), any::<u32>()).prop_map(|(who, error)| Move::Reject(who, error)),
        any::<usize>().prop_map(Move::Clone),
        any::<usize>().prop_map(Move::Drop),
        Just(Move::Turn),
    ];
    prop::collection::vec(one, 0..12)
}

proptest! {
    /// The first to settle it wins. If none does, the promise is abandoned.
    #[test]
    fn the_first_to_settle_wins(moves in moves()) {
        let mut reactor = reactor();
        let (deferred, promise) = reactor.promise::<u32, u32>();
        let seen = outcome(promise);
        let mut deferreds = vec![deferred];
        let mut expected: Option<Outcome<u32, u32>> = None;
        for step in moves {
            let count = deferreds.len();
            match step {
                Move::Turn => {
                    settle(&mut reactor);
                    prop_assert_eq!(&*seen.borrow(), &expected);
                }
                _ if count == 0 => {}
                Move::Resolve(who, value) => {
                    let fresh = expected.is_none();
                    prop_assert_eq!(deferreds[who % count].resolve(value), fresh.then_some(()).ok_or(AlreadySettled(value)));
                    expected.get_or_insert(Ok(value));
                }
                Move::Reject(who, error) => {
                    let fresh = expected.is_none();
                    prop_assert_eq!(deferreds[who % count].reject(error), fresh.then_some(()).ok_or(AlreadySettled(error)));
                    expected.get_or_insert(Err(Rejected::Failed(error)));
                }
                Move::Clone(who) => deferreds.push(deferreds[who % count].clone()),
                Move::Drop(who) => {
                    drop(deferreds.swap_remove(who % count));
                    if deferreds.is_empty() {
                        expected.get_or_insert(Err(Rejected::Abandoned));
                    }
                }
            }
        }
        deferreds.clear();
        expected.get_or_insert(Err(Rejected::Abandoned));
        settle(&mut reactor);
        prop_assert_eq!(&*seen.borrow(), &expected);
    }
}
