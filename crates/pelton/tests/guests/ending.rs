//! How a guest ends, and what becomes of it in a forked child.

use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use fork::{Fork, fork, waitpid};
use pelton::{Batch, CallbackKind, Exit, Guest, Interest, Reactor, Sleep};
use pelton_testing::{Alive, Counted, Log, On, count_faults, on_every_engine, poll, run, run_until};
use signal_hook::low_level::exit;

use crate::{Runtime, RuntimeGuest};

on_every_engine![
    a_guest_that_panics_is_dropped_and_reported,
    a_panic_can_be_propagated_out_of_the_turn,
    a_guest_that_panics_outside_of_its_batch_is_dropped_and_reported,
    the_guest_is_dropped_after_everything_that_may_refer_to_it,
    draining_waits_for_the_guests_work,
    draining_does_not_wait_for_a_guest_for_ever,
    a_child_can_make_a_hosting_reactor_its_own,
];

fn a_guest_that_panics_is_dropped_and_reported(on: On) {
    let mut reactor = on.catching();
    let faults = count_faults(&mut reactor);
    let runtime = Runtime::on(&mut reactor);
    runtime.soon(|_| panic!("out of water"));
    runtime.busy();
    poll(&mut reactor);
    poll(&mut reactor);
    assert_eq!((faults.get(), reactor.stats().panics, runtime.batches()), (1, 1, 1));
    assert!(!reactor.has_guest());
    // The loop goes on.
    reactor.next_tick(|reactor| reactor.stop());
    run(&mut reactor);
}

fn a_panic_can_be_propagated_out_of_the_turn(on: On) {
    let mut reactor = on.reactor();
    reactor.on_fault(|_, fault| assert_eq!(fault.kind, CallbackKind::Guest));
    let runtime = Runtime::on(&mut reactor);
    runtime.soon(|_| panic!("out of water"));
    assert!(catch_unwind(AssertUnwindSafe(|| poll(&mut reactor))).is_err());
    assert!(!reactor.has_guest());
    poll(&mut reactor);
    reactor.host(runtime.guest()).unwrap();
    poll(&mut reactor);
}

fn a_guest_that_panics_outside_of_its_batch_is_dropped_and_reported(on: On) {
    #[derive(Clone, Copy, PartialEq)]
    enum Where {
        HasWork,
        Deadline,
        BeforeSleep,
        Park,
    }
    struct Clumsy(Where, #[allow(dead_code, reason = "it counts drops")] Counted);
    impl Guest for Clumsy {
        fn has_work(&mut self) -> bool {
            assert!(self.0 != Where::HasWork, "has_work");
            false
        }
        fn next_deadline(&mut self) -> Option<pelton::Time> {
            assert!(self.0 != Where::Deadline, "next_deadline");
            None
        }
        fn run(&mut self, _: &mut Reactor) -> Batch {
            unreachable!("it has no work")
        }
        fn before_sleep(&mut self, _: &mut Reactor) {
            assert!(self.0 != Where::BeforeSleep, "before_sleep");
        }
        fn park(&mut self, sleep: &mut Sleep<'_>) -> std::io::Result<()> {
            assert!(self.0 != Where::Park, "park");
            sleep.block()
        }
    }
    for place in [Where::HasWork, Where::Deadline, Where::BeforeSleep, Where::Park] {
        let mut reactor = on.catching();
        let faults = count_faults(&mut reactor);
        let guests = Alive::default();
        reactor.host(Clumsy(place, Counted::new(&guests))).unwrap();
        reactor.after(Duration::from_millis(5), |reactor| reactor.stop());
        run(&mut reactor);
        assert_eq!((faults.get(), guests.count()), (1, 0));
    }
}

fn the_guest_is_dropped_after_everything_that_may_refer_to_it(on: On) {
    /// Logs when it is dropped.
    struct Bell(Log, &'static str);
    impl Drop for Bell {
        fn drop(&mut self) {
            self.0.add(self.1);
        }
    }
    for shut_down in [false, true] {
        let mut reactor = on.reactor();
        let log = Log::default();
        let runtime = Runtime::on(&mut reactor);
        reactor.evict();
        let guests = Alive::default();
        reactor.host(RuntimeGuest { runtime, dropped: Some((log.clone(), Counted::new(&guests))) }).unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let bell = Bell(log.clone(), "watch dropped");
        reactor.watch(&ours, Interest::READABLE, move |_, _| bell.0.add("never")).unwrap();
        let bell = Bell(log.clone(), "tick dropped");
        reactor.next_tick(move |_| bell.0.add("never"));
        let bell = Bell(log.clone(), "timer dropped");
        reactor.after(Duration::from_secs(3600), move |_| bell.0.add("never"));
        if shut_down {
            reactor.shutdown().unwrap();
            assert_eq!(guests.count(), 0);
        }
        drop(reactor);
        assert_eq!(guests.count(), 0);
        let dropped = log.take();
        assert_eq!(dropped.last().map(String::as_str), Some("guest dropped"));
        assert_eq!(dropped.len(), 4, "{dropped:?}");
    }
}

fn draining_waits_for_the_guests_work(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    fn chain(runtime: &Runtime, links: u32) {
        let next = runtime.clone();
        runtime.soon(move |_| {
            if links > 1 {
                chain(&next, links - 1);
            }
        });
    }
    chain(&runtime, 20);
    reactor.drain(Duration::from_secs(10));
    assert_eq!(reactor.run().unwrap(), Exit::Drained);
    assert_eq!(runtime.batches(), 20);
}

fn draining_does_not_wait_for_a_guest_for_ever(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    runtime.busy();
    reactor.drain(Duration::from_millis(5));
    assert_eq!(reactor.run().unwrap(), Exit::DrainTimedOut { holds: 0, connections: 0 });
}

fn a_child_can_make_a_hosting_reactor_its_own(on: On) {
    let mut reactor = on.reactor();
    let runtime = Runtime::on(&mut reactor);
    let log = Log::default();
    runtime.at(reactor.clock() + Duration::from_millis(5), {
        let log = log.clone();
        move |_| log.add("timer")
    });
    // The child is forked inside a batch, and goes on from there.
    let forked = std::rc::Rc::new(std::cell::Cell::new(None));
    let (guest, result, entry) = (runtime.clone(), forked.clone(), log.clone());
    runtime.soon(move |reactor| {
        let both = fork().unwrap();
        if matches!(both, Fork::Child) {
            assert!(matches!(reactor.turn_inside(Some(Duration::ZERO)), Err(pelton::Error::Forked)));
            reactor.after_fork().unwrap();
        }
        guest.soon_log(&entry, "batch");
        result.set(Some(both));
    });
    poll(&mut reactor);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run_until(&mut reactor, |_| log.len() == 2);
        assert_eq!(log.take(), ["batch", "timer"]);
    }));
    match forked.take().unwrap() {
        // Nothing else of this process may run in the child.
        Fork::Child => exit(if outcome.is_ok() { 0 } else { 1 }),
        Fork::Parent(child) => {
            assert_eq!(waitpid(child).unwrap(), 0, "the child failed; its panic is printed above");
            assert!(outcome.is_ok());
        }
    }
}
