//! State shared by Rust and Python.

#![cfg(feature = "embed")]

mod host_support;

use host_support::{start, wait, with};
use pelton_python::Value;
use pelton_python::host::Call;
use pelton_python::native::{State, StateError};

#[test]
fn each_side_sees_values_set_by_the_other() {
    let host = start();
    let state = State::new();
    state.set("from rust", vec![1, 2]).unwrap();
    let namespace = with(
        &host,
        "
def use(state):
    assert state['from rust'] == [1, 2] and state.get('missing') is None and state.get('missing', 3) == 3
    state['from rust'].append(3)
    assert state['from rust'] == [1, 2], 'it is a copy'
    state['from python'] = {'a': (1, None)}
    assert 'from python' in state and len(state) == 2 and sorted(state) == sorted(state.keys())
    assert dict(state.items()) == {'from rust': [1, 2], 'from python': {'a': (1, None)}}
    state['gone'] = 1
    del state['gone']
    assert state.pop('gone', 'nothing') == 'nothing'
    for function in (lambda: state['gone'], lambda: state.pop('gone'), lambda: state.__delitem__('gone')):
        try: function()
        except KeyError as error: assert error.args == ('gone',)
        else: assert False
    assert state.add('hits') == 1 and state.add('hits', 41) == 42 and state['hits'] == 42
    assert state.compare_and_swap('hits', 42, 50) and not state.compare_and_swap('hits', 42, 60)
    assert state.compare_and_swap('lock', None, 'mine') and not state.compare_and_swap('lock', None, 'yours')
    for value, kind in (('text', TypeError), (1 << 70, TypeError)):
        try: state['hits'] = value
        except kind: pass
        else: assert False
    try: state.add('hits', (1 << 63) - 1)
    except OverflowError as error: assert 'hits' in str(error)
    else: assert False
    try: state.add('lock')
    except TypeError as error: assert 'lock' in str(error)
    else: assert False
    return state
",
    );
    let outcome = wait(namespace.create_task("__main__", "use", (state.clone(),), ()).unwrap()).unwrap();
    assert_eq!(State::try_from(outcome).unwrap(), state, "the same state is returned");
    assert_eq!(state.get("from python").unwrap().get("a"), Some(&Value::from((1, ()))));
    assert_eq!(state.get("hits"), Some(50.into()));
    assert_eq!(state.get("lock"), Some("mine".into()));
}

#[test]
fn counters_are_exact_with_many_threads() {
    let host = start();
    let state = State::new();
    let namespace = with(&host, "def count(state, times):\n    for _ in range(times): state.add('hits')");
    let count = |call: Call| namespace.submit(call.args((state.clone(), 10_000))).unwrap();
    let mut replies: Vec<_> = (0..3).map(|_| count(Call::new("__main__", "count").on_worker())).collect();
    replies.push(count(Call::new("__main__", "count")));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let counter = state.counter("hits").unwrap();
                for _ in 0..10_000 {
                    counter.add(1).unwrap();
                }
            });
        }
    });
    replies.into_iter().for_each(|reply| drop(wait(reply).unwrap()));
    assert_eq!(state.get("hits"), Some(70_000.into()));
}

#[test]
fn only_one_of_several_swaps_succeeds() {
    let state = State::new();
    let won: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|me| {
                let state = &state;
                scope.spawn(move || state.compare_and_swap("leader", &Value::None, me).unwrap())
            })
            .collect();
        threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
    });
    assert_eq!(won, 1);
}

#[test]
fn a_number_becomes_a_counter_and_stays_one() {
    let state = State::new();
    assert_eq!(state.set("n", 5), Ok(None));
    let counter = state.counter("n").unwrap();
    assert_eq!(state.set("n", 7), Ok(Some(5.into())));
    assert_eq!(counter.get(), 7);
    assert_eq!(counter.set(i64::MAX), 7);
    assert_eq!(counter.add(1), None);
    assert_eq!(state.add("n", 1), Err(StateError::Overflow { key: "n".into() }));
    assert_eq!(state.set("n", "text"), Err(StateError::Counter { key: "n".into(), found: "str" }));
    assert_eq!(state.compare_and_swap("n", &"x".into(), 1), Ok(false));
    assert_eq!(state.remove("n"), Some(i64::MAX.into()));
    assert_eq!(state.set("n", "text"), Ok(None));
    assert_eq!(state.add("n", 1), Err(StateError::NoNumber { key: "n".into(), found: "str" }));
    assert!(!state.is_empty() && state.contains("n"));
}
