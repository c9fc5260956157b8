//! Many calls at once, a full queue, and several loops.

use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, PartlyRefused, RefusalKind, Refused};

use super::host_support::{start, start_with, until, wait, with};

#[test]
fn gather_returns_one_outcome_per_call() {
    let host = start();
    let outcomes = host.gather(vec![
        Call::new("math", "sqrt").arg(4.0),
        Call::new("math", "sqrt").arg(-1.0),
        Call::new("asyncio", "sleep").arg(0.001).arg("slept"),
        Call::new("math", "sqrt").arg("x"),
    ]);
    assert_eq!(*outcomes[0].as_ref().unwrap(), Value::Float(2.0));
    assert_eq!(outcomes[1].as_ref().unwrap_err().exception().unwrap().type_name(), "ValueError");
    assert_eq!(*outcomes[2].as_ref().unwrap(), Value::from("slept"));
    assert_eq!(outcomes[3].as_ref().unwrap_err().exception().unwrap().type_name(), "TypeError");
    assert!(host.gather(Vec::new()).is_empty());
}

#[test]
fn more_calls_than_a_batch_are_executed() {
    let host = start_with(Config::new().batch(7));
    let calls = (0..10_000).map(|number| Call::new("builtins", "int").arg(number)).collect();
    let outcomes = host.batch(calls).unwrap().wait();
    for (number, outcome) in (0..).zip(outcomes) {
        assert_eq!(outcome.unwrap(), Value::Int(number));
    }
}

#[test]
fn a_full_queue_returns_the_call() {
    let host = start_with(Config::new().queue_bound(10));
    let namespace = with(
        &host,
        "import builtins, threading\nheld = builtins.pelton_test_held = threading.Event()\ndef hold(): held.wait()",
    );
    let holding = namespace.create_task("__main__", "hold", (), ()).unwrap();
    until("the loop is blocked", || host.stats()[0].queued == 0);
    let mut replies = Vec::new();
    let Refused { kind, call } = loop {
        match host.submit(Call::new("builtins", "len").arg("abc")) {
            Ok(reply) => replies.push(reply),
            Err(refused) => break refused,
        }
    };
    assert_eq!((kind, replies.len()), (RefusalKind::Full, 10));
    let PartlyRefused { rest, accepted, .. } = host.batch(vec![*call.clone(), *call.clone()]).unwrap_err();
    assert_eq!((rest.len(), accepted.wait().len()), (2, 0));
    release();
    wait(holding).unwrap();
    for reply in replies {
        assert_eq!(wait(reply).unwrap(), Value::Int(3));
    }
    assert_eq!(wait(host.submit(*call).unwrap()).unwrap(), Value::Int(3), "the returned call can be submitted again");
}

/// Sets the event that blocks the loop, from this thread.
fn release() {
    use pyo3::prelude::*;
    Python::attach(|py| {
        let held = py.import("builtins").unwrap().getattr("pelton_test_held").unwrap();
        held.call_method0("set").unwrap();
    });
}

#[test]
fn threads_are_spread_over_several_loops() {
    let host = start_with(Config::new().loops(3));
    let identity = |host: &Host| host.run("threading", "get_ident", (), ()).unwrap();
    let mine = identity(&host);
    for _ in 0..20 {
        assert_eq!(identity(&host), mine, "a thread's calls all go to one loop");
    }
    let others: std::collections::HashSet<i64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..12).map(|_| scope.spawn(|| identity(&host).as_int().unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(others.len(), 3, "threads are spread over all loops");
}
