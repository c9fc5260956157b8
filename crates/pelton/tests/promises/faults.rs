//! Panics in continuations, and unhandled rejections.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use pelton::{CallbackKind, EventLoop, Fault, PanicPolicy, Reactor, Rejected};
use pelton_testing::{Log, poll};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Metadata, Subscriber};

use crate::{Number, Outcome, catching, outcome, outcome_now, reactor, settle};

fn panicked(message: &str) -> Outcome {
    Err(Rejected::Panicked(message.into()))
}

#[test]
fn panic_rejects_the_chain_and_is_reported_as_a_fault() {
    let mut reactor = catching();
    let faults = Rc::new(RefCell::new(Vec::<Fault>::new()));
    let fault = faults.clone();
    reactor.on_fault(move |_, it| fault.borrow_mut().push(it.clone()));
    let chain = Number::resolved(&reactor, 1).then(|_, _| -> Result<u32, &str> { panic!("then") });
    let line = line!() - 1;
    assert_eq!(outcome_now(&mut reactor, chain), panicked("then"));
    let chain = Number::resolved(&reactor, 1).map(|_| -> u32 { panic!("map") });
    assert_eq!(outcome_now(&mut reactor, chain), panicked("map"));
    let chain = Number::rejected(&reactor, "no").or_else(|_, _| -> Outcome { panic!("or_else") });
    assert_eq!(outcome_now(&mut reactor, chain), panicked("or_else"));
    let chain = Number::resolved(&reactor, 1).finally(|_| panic!("finally"));
    assert_eq!(outcome_now(&mut reactor, chain), panicked("finally"));
    let chain = Number::resolved(&reactor, 1).map(|_| -> u32 { panic!("handled") }).or_else(|_, _| Ok(2));
    assert_eq!(outcome_now(&mut reactor, chain), Ok(2));
    Number::resolved(&reactor, 1).done(|_, _| panic!("done"));
    settle(&mut reactor);
    let messages: Vec<_> = faults.borrow().iter().map(|fault| fault.message.clone()).collect();
    assert_eq!(messages, ["then", "map", "or_else", "finally", "handled", "done"]);
    assert_eq!(reactor.stats().panics, 6);
    let place = faults.borrow()[0].place;
    assert!(place.file().ends_with("faults.rs") && place.line() == line, "{place}");
}

#[test]
fn each_link_is_a_separate_callback() {
    // Without measuring, the next continuation is called without going through the queue.
    for (measure, policy) in [(true, PanicPolicy::Close), (false, PanicPolicy::Close), (false, PanicPolicy::Propagate)]
    {
        let mut reactor = Reactor::builder().stats(measure).panic_policy(policy).build().unwrap();
        let faults = Rc::new(RefCell::new(Vec::<Fault>::new()));
        let fault = faults.clone();
        reactor.on_fault(move |_, it| fault.borrow_mut().push(it.clone()));
        for round in 1..=50 {
            let chain = Number::resolved(&reactor, 1).map(|value| value + 1).map(|value| value + 1);
            let (chain, line) = (chain.then(|_, value| -> Result<u32, &str> { panic!("at {value}") }), line!());
            let chain = outcome(chain.or_else(|_, _| Ok(7)).map(|value| value + 1));
            let propagated = catch_unwind(AssertUnwindSafe(|| poll(&mut reactor))).is_err();
            assert_eq!(propagated, policy == PanicPolicy::Propagate);
            settle(&mut reactor);
            assert_eq!(chain.take(), Some(Ok(8)));
            let fault = faults.borrow_mut().pop().unwrap();
            assert_eq!((fault.place.line(), fault.message.as_str()), (line, "at 3"));
            let stats = reactor.stats();
            assert_eq!((stats.calls(CallbackKind::Tick), stats.panics), (6 * round, round));
        }
    }
}

#[test]
fn panicking_observer_affects_no_others() {
    let mut reactor = catching();
    let log = Log::default();
    let entry = log.clone();
    reactor.on_fault(move |_, fault| entry.add(fault.message.clone()));
    let promise = Number::resolved(&reactor, 1);
    promise.observe(|_, _| panic!("observer"));
    let entry = log.clone();
    promise.observe(move |_, outcome| entry.add(format!("{outcome:?}")));
    assert_eq!(outcome_now(&mut reactor, promise), Ok(1));
    assert_eq!(log.take(), ["observer", "Ok(1)"]);
}

#[test]
fn propagated_panic_loses_nothing() {
    let mut reactor = Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap();
    let log = Log::default();
    let promise = Number::resolved(&reactor, 1);
    promise.observe(|_, _| panic!("observer"));
    let entry = log.clone();
    promise.observe(move |_, _| entry.add("second observer"));
    let chain = outcome(promise.map(|_| -> u32 { panic!("map") }));
    let turn = |reactor: &mut EventLoop| catch_unwind(AssertUnwindSafe(|| poll(reactor))).is_err();
    assert!(turn(&mut reactor), "the observer's panic");
    assert!(turn(&mut reactor), "the continuation's panic");
    assert_eq!(log.take(), ["second observer"]);
    assert!(!turn(&mut reactor));
    assert_eq!(chain.take(), Some(panicked("map")));
}

/// Collects the rejections that are reported as unhandled.
fn unhandled(reactor: &mut EventLoop) -> Log {
    let log = Log::default();
    let entry = log.clone();
    reactor.on_unhandled_rejection(move |_, unhandled| {
        assert!(unhandled.place.file().ends_with("faults.rs"));
        entry.add(format!("{} {}", unhandled.place.line(), unhandled.message));
    });
    log
}

#[test]
fn unhandled_rejection_is_reported_with_the_end_of_its_chain() {
    let mut reactor = reactor();
    let log = unhandled(&mut reactor);
    let line = line!();
    // One dropped before it is rejected, one dropped after.
    let (deferred, promise) = reactor.promise::<u32, &str>();
    drop(promise);
    deferred.reject("before").unwrap();
    drop(Number::rejected(&reactor, "after"));
    drop(Number::resolved(&reactor, 1).then(|_, _| Err::<u32, _>("chain")).map(|_| 1));
    let (deferred, promise) = reactor.promise::<u32, &str>();
    promise.map(|_| ());
    drop(deferred);
    Number::rejected(&reactor, "observed").observe(|_, outcome| assert!(outcome.is_err()));
    drop(Number::rejected(&reactor, "shared").shared());
    settle(&mut reactor);
    let reports = [
        (2, "\"before\""),
        (5, "\"after\""),
        (11, "\"shared\""),
        (10, "\"observed\""),
        (6, "\"chain\""),
        (8, "abandoned: dropped without being settled"),
    ];
    let mut expected: Vec<_> = reports.iter().map(|(after, text)| format!("{} {text}", line + after)).collect();
    let mut reported = log.take();
    expected.sort();
    reported.sort();
    assert_eq!(reported, expected);
}

#[test]
fn handled_and_forgotten_rejections_and_panics_are_not_unhandled() {
    let mut reactor = catching();
    reactor.on_fault(|_, _| {});
    let log = unhandled(&mut reactor);
    Number::rejected(&reactor, "done").done(|_, _| {});
    drop(Number::rejected(&reactor, "recovered").or_else(|_, _| Ok(1)));
    drop(Number::resolved(&reactor, 1).map(|_| -> u32 { panic!("a fault") }));
    drop(reactor.promise::<u32, &str>());
    let (deferred, promise) = reactor.promise::<u32, &str>();
    drop(promise);
    drop(deferred);
    outcome(Number::rejected(&reactor, "shared").shared().promise());
    settle(&mut reactor);
    assert_eq!(log.take(), [""; 0]);
    // The loop was dropped before it was handled.
    let (deferred, promise) = reactor.promise::<u32, &str>();
    drop(promise.map(|_| ()));
    reactor.on_shutdown(move |_| drop(deferred));
    reactor.next_tick(|reactor| reactor.stop());
    reactor.run().unwrap();
    assert_eq!(log.take(), [""; 0]);
}

#[test]
fn a_panicking_hook_is_a_fault() {
    let mut reactor = catching();
    reactor.on_fault(|_, _| {});
    reactor.on_unhandled_rejection(|_, _| panic!("hook"));
    drop(Number::rejected(&reactor, "no"));
    settle(&mut reactor);
    assert_eq!(reactor.stats().panics, 1);
}

/// Records log messages.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<String>>>);

impl Subscriber for Logged {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "pelton_os::fault"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
                self.0 += &format!("{value:?}");
            }
        }
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn without_a_hook_it_is_logged_even_if_the_loop_ends() {
    let logged = Logged::default();
    tracing::subscriber::with_default(logged.clone(), || {
        let mut reactor = reactor();
        drop(Number::rejected(&reactor, "one"));
        settle(&mut reactor);
        let (deferred, promise) = reactor.promise::<u32, &str>();
        drop(promise);
        drop(Number::rejected(&reactor, "two"));
        drop(reactor);
        deferred.reject("three").unwrap();
    });
    let logged = logged.0.lock().unwrap();
    assert_eq!(logged.len(), 3, "{logged:#?}");
    for (line, text) in logged.iter().zip(["one", "two", "three"]) {
        let said = format!("was rejected, and nobody handled it: \"{text}\"");
        assert!(line.starts_with("ERROR ") && line.contains("promise (") && line.contains(&said), "{line}");
    }
}
