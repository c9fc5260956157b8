//! Runs tests on every engine, and on the in-memory network.

use pelton::{Builder, EngineKind, EventLoop, PanicPolicy, Reactor};

/// Turns each function into one test per engine, in the modules `epoll`, `kqueue`, `poll` and `select`.
///
/// Each function takes an [`On`]. A new engine is added here. The crate enables the feature `emulated-kqueue` of `pelton-os` in its
/// dev-dependencies, so that `kqueue` runs on Linux too.
///
/// ```ignore
/// use pelton_testing::{On, on_every_engine};
///
/// on_every_engine![a_timer_fires_once];
///
/// fn a_timer_fires_once(on: On) {
///     let mut reactor = on.reactor();
///     // ...
/// }
/// ```
#[macro_export]
macro_rules! on_every_engine {
    ($($name:ident),* $(,)?) => {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        mod epoll { $(#[test] fn $name() { super::$name($crate::On($crate::pelton::EngineKind::Epoll)) })* }
        mod kqueue { $(#[test] fn $name() { super::$name($crate::On($crate::pelton::EngineKind::Kqueue)) })* }
        mod poll { $(#[test] fn $name() { super::$name($crate::On($crate::pelton::EngineKind::Poll)) })* }
        mod select { $(#[test] fn $name() { super::$name($crate::On($crate::pelton::EngineKind::Select)) })* }
    };
}

/// Turns each function into one test per engine and one on the [in-memory network](crate::memory), in the module `memory`.
///
/// Each function takes an `impl` [`Network`](crate::Network). Functions listed after `with_a_kernel:` need the kernel's sockets; they
/// take an [`On`] and run on the engines only.
#[macro_export]
macro_rules! on_every_network {
    ($($name:ident),* $(,)?) => { $crate::on_every_network![$($name),*; with_a_kernel:]; };
    ($($name:ident),* $(,)?; with_a_kernel: $($kernel:ident),* $(,)?) => {
        $crate::on_every_engine![$($name,)* $($kernel),*];
        mod memory { $(#[test] fn $name() { $crate::memory::with_seeds(super::$name) })* }
    };
}

/// An engine to build reactors on.
#[derive(Clone, Copy)]
pub struct On(pub EngineKind);

impl On {
    /// Starts a reactor on this engine. A panic in a callback fails the test.
    pub fn builder(self) -> Builder {
        Reactor::builder().engine(self.0).panic_policy(PanicPolicy::Propagate)
    }

    /// Builds a reactor that catches panics, as reactors do by default.
    pub fn catching(self) -> EventLoop {
        self.build(self.builder().panic_policy(PanicPolicy::Close))
    }

    /// Builds a reactor with the default settings.
    pub fn reactor(self) -> EventLoop {
        self.build(self.builder())
    }

    /// Builds a reactor, and checks that it did not fall back to another engine.
    pub fn build(self, builder: Builder) -> EventLoop {
        let reactor = builder.build().unwrap();
        assert_eq!(reactor.engine_name(), self.0.name());
        reactor
    }
}
