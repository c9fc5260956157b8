//! What the tests of reactors share.

#![allow(dead_code, unused_imports, unused_macros, reason = "no test uses all of it")]

pub(crate) mod memory;
pub(crate) mod peer;
pub(crate) mod unsupported;

use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Builder, EngineKind, EventLoop, Exit, Interest, PanicPolicy, Reactor, WatchId};

/// Makes a test per engine of each function.
macro_rules! on_every_engine {
    ($($name:ident),* $(,)?) => {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        mod epoll { $(#[test] fn $name() { super::$name($crate::common::on(pelton::EngineKind::Epoll)) })* }
        mod kqueue { $(#[test] fn $name() { super::$name($crate::common::on(pelton::EngineKind::Kqueue)) })* }
        mod poll { $(#[test] fn $name() { super::$name($crate::common::on(pelton::EngineKind::Poll)) })* }
        mod select { $(#[test] fn $name() { super::$name($crate::common::on(pelton::EngineKind::Select)) })* }
    };
}
pub(crate) use on_every_engine;

/// Makes a test per engine of each function, and one on the network in memory; but not of those that are about the kernel's.
macro_rules! on_every_network {
    ($($name:ident),* $(,)?) => { on_every_network![$($name),*; with_a_kernel:]; };
    ($($name:ident),* $(,)?; with_a_kernel: $($kernel:ident),* $(,)?) => {
        $crate::common::on_every_engine![$($name,)* $($kernel),*];
        mod memory { $(#[test] fn $name() { $crate::common::memory::with_seeds(super::$name) })* }
    };
}
pub(crate) use on_every_network;

/// A test that takes longer than this hangs.
const DEADLINE: Duration = Duration::from_secs(20);

/// An engine to build reactors on.
#[derive(Clone, Copy)]
pub(crate) struct On(pub(crate) EngineKind);

pub(crate) fn on(kind: EngineKind) -> On {
    On(kind)
}

impl On {
    /// What panics in a callback fails the test, unless that is about such panics and says so.
    pub(crate) fn builder(self) -> Builder {
        Reactor::builder().engine(self.0).panic_policy(PanicPolicy::Propagate)
    }

    /// One that catches panics, as reactors do by default.
    pub(crate) fn catching(self) -> EventLoop {
        self.build(self.builder().panic_policy(PanicPolicy::Close))
    }

    pub(crate) fn reactor(self) -> EventLoop {
        self.build(self.builder())
    }

    /// Builds it, and makes sure that it did not fall back to another engine.
    pub(crate) fn build(self, builder: Builder) -> EventLoop {
        let reactor = builder.build().unwrap();
        assert_eq!(reactor.engine_name(), self.0.name());
        reactor
    }
}

/// Runs the loop until it is stopped, and fails if that takes too long.
pub(crate) fn run(reactor: &mut EventLoop) -> Exit {
    let late = Rc::new(RefCell::new(false));
    let flag = late.clone();
    reactor.after(DEADLINE, move |reactor| {
        *flag.borrow_mut() = true;
        reactor.stop();
    });
    let exit = reactor.run().unwrap();
    assert!(!*late.borrow(), "the loop was not stopped within {DEADLINE:?}");
    exit
}

/// Turns the loop until the condition holds, and fails if that takes too long.
pub(crate) fn run_until(reactor: &mut EventLoop, condition: impl FnMut(&mut Reactor) -> bool) {
    let late = reactor.after(DEADLINE, |reactor| reactor.stop());
    reactor.run_until(condition).unwrap_or_else(|error| panic!("not within {DEADLINE:?}: {error}"));
    assert!(reactor.cancel(late), "it took {DEADLINE:?} to notice it");
}

/// One turn that does not wait.
pub(crate) fn poll(reactor: &mut EventLoop) {
    reactor.turn(Some(Duration::ZERO)).unwrap();
}

/// What happened, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, entry: impl Into<String>) {
        self.0.borrow_mut().push(entry.into());
    }

    /// What has come in. Where one piece ends and the next begins is nobody's business, so they are one entry.
    pub(crate) fn received(&self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let mut entries = self.0.borrow_mut();
        match entries.last_mut().filter(|entry| entry.starts_with("received ")) {
            Some(entry) => entry.push_str(&text),
            None => entries.push(format!("received {text}")),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(crate) fn entries(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        self.0.take()
    }
}

/// Watches and logs what it was told, without reading.
pub(crate) fn watch_and_log(reactor: &mut EventLoop, stream: &UnixStream, interest: Interest, log: &Log) -> WatchId {
    let entry = log.clone();
    reactor
        .watch(stream, interest, move |_, ready| {
            let told = [("r", ready.readable()), ("w", ready.writable()), ("c", ready.closed())];
            entry.add(told.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect::<String>());
        })
        .unwrap()
}

/// How many callbacks and turns there are within some milliseconds, for what should cause next to none.
pub(crate) fn activity(reactor: &mut EventLoop, log: &Log) -> (u64, usize) {
    log.take();
    let before = reactor.stats().turns;
    let end = reactor.clock() + Duration::from_millis(30);
    while reactor.clock() < end {
        reactor.turn(Some(end - reactor.clock())).unwrap();
    }
    (reactor.stats().turns - before, log.len())
}
