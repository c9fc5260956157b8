//! `all`, `any` and `race`.

use pelton::{Promise, Rejected};
use proptest::prelude::*;

use crate::{Outcome, outcome, outcome_now, reactor, settle};

type Short = Promise<u32, u32>;

#[test]
fn of_none() {
    let mut reactor = reactor();
    let (all, any, race) = (Short::all(&reactor, []), Short::any(&reactor, []), Short::race(&reactor, []));
    assert_eq!(outcome_now(&mut reactor, all), Ok(vec![]));
    assert_eq!(outcome_now(&mut reactor, any), Err(Rejected::Failed(vec![])));
    assert_eq!(outcome_now(&mut reactor, race), Err(Rejected::Abandoned));
}

#[test]
fn rejections_after_the_first_are_not_reported() {
    let mut reactor = reactor();
    reactor.on_unhandled_rejection(|_, unhandled| panic!("{unhandled}"));
    let two = |reactor: &pelton::Reactor| [Short::rejected(reactor, 1), Short::rejected(reactor, 2)];
    let (all, race) = (Short::all(&reactor, two(&reactor)), Short::race(&reactor, two(&reactor)));
    assert_eq!(outcome_now(&mut reactor, all), Err(Rejected::Failed(1)));
    assert_eq!(outcome_now(&mut reactor, race), Err(Rejected::Failed(1)));
    let any = Short::any(&reactor, two(&reactor));
    assert_eq!(outcome_now(&mut reactor, any), Err(Rejected::Failed(vec![Rejected::Failed(1), Rejected::Failed(2)])));
    assert_eq!(reactor.stats().panics, 0);
}

/// The outcome of one promise and its rank in time. `None`: never settled.
type Part = (Option<Outcome<u32, u32>>, u32);

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let outcome = prop_oneof![
        4 => any::<u32>().prop_map(|value| Some(Ok(value))),
        2 => any::<u32>().prop_map(|error| Some(Err(Rejected::Failed(error)))),
        1 => Just(Some(Err(Rejected::Abandoned))),
        1 => Just(None),
    ];
    prop::collection::vec((outcome, any::<u32>()), 1..8)
}

proptest! {
    #[test]
    fn all_any_and_race_match_their_models(parts in parts(), turned in any::<bool>()) {
        let mut reactor = reactor();
        let mut order: Vec<usize> = (0..parts.len()).filter(|index| parts[*index].0.is_some()).collect();
        order.sort_by_key(|index| parts[*index].1);
        let in_order = || order.iter().filter_map(|index| parts[*index].0.clone());

        let (mut deferreds, mut shared) = (Vec::new(), Vec::new());
        for _ in &parts {
            let (deferred, promise) = reactor.promise::<u32, u32>();
            deferreds.push(Some(deferred));
            shared.push(promise.shared());
        }
        let promises = || shared.iter().map(|shared| shared.promise());
        let all = outcome(Short::all(&reactor, promises()));
        let any = outcome(Short::any(&reactor, promises()));
        let race = outcome(Short::race(&reactor, promises()));
        for index in &order {
            let deferred = deferreds[*index].take().unwrap();
            match parts[*index].0.clone() {
                Some(Ok(value)) => deferred.resolve(value).unwrap(),
                Some(Err(Rejected::Failed(error))) => deferred.reject(error).unwrap(),
                _ => drop(deferred),
            }
            if turned {
                settle(&mut reactor);
            }
        }
        settle(&mut reactor);

        let complete = order.len() == parts.len();
        let all_model = in_order().find_map(Result::err).map(Err).or_else(|| {
            complete.then(|| Ok(parts.iter().filter_map(|part| part.0.clone()?.ok()).collect::<Vec<_>>()))
        });
        let any_model = in_order().find_map(Result::ok).map(Ok).or_else(|| {
            let errors = || parts.iter().filter_map(|part| part.0.clone()?.err()).collect::<Vec<_>>();
            complete.then(|| Err(Rejected::Failed(errors())))
        });
        prop_assert_eq!(all.take(), all_model);
        prop_assert_eq!(any.take(), any_model);
        prop_assert_eq!(race.take(), in_order().next());
    }
}
