//! The test kit: helpers that the tests of all Pelton crates share. It is not published.
//!
//! | to … | use |
//! |---|---|
//! | run a test on every engine | [`on_every_engine!`], with [`On`] |
//! | run it also on the late in-memory network | [`on_every_network!`], with [`Network`] and [`Memory`](memory::Memory) |
//! | run a loop until something happens, with a deadline | [`run`], [`run_until`], [`run_with`], [`block_on`], [`poll`] |
//! | wait for another thread or process, with a deadline | [`wait_for`], [`eventually`], [`DEADLINE`], [`POOL_DEADLINE`] |
//! | serve something simple | [`Echo`], [`EchoUntilQuit`], [`listen`], [`localhost`] |
//! | talk to a reactor from a blocking thread | [`Peer`], [`PeerListener`], [`dial`], [`is_served`] |
//! | make certificates (feature `certificates`) | `Authority`, `Issued` |
//! | generate data in which loss and reordering show | [`pattern`] |
//! | record what happened, in order | [`Log`], [`watch_and_log`], [`activity`] |
//! | count live values, open or registered descriptors and faults | [`Alive`], [`Counted`], [`descriptors`], [`registered`], [`count_faults`] |
//! | run a test again in a child process | [`child`] |
//! | start a Redis server, freeze it, kill it | [`RedisServer`], with replicas and Sentinel [`RedisNode`] |
//! | cut connections at random bytes | [`CuttingProxy`] |
//! | control time and the outcome of each connect | [`clockwork`] |
//! | write a test engine that lacks some operations | [`unsupported!`] |
//!
//! A test waits for the event itself, with a deadline, instead of sleeping:
//!
//! ```
//! use std::io::{Read, Write};
//!
//! use pelton::EngineKind;
//! use pelton_testing::{Echo, On, dial, listen, run_with};
//!
//! let mut reactor = On(EngineKind::Poll).reactor();
//! let address = listen(&mut reactor, |_| Echo);
//! let echoed = run_with(&mut reactor, move || {
//!     let mut stream = dial(&address);
//!     stream.write_all(b"ping").unwrap();
//!     let mut echoed = [0; 4];
//!     stream.read_exact(&mut echoed).unwrap();
//!     echoed
//! });
//! assert_eq!(&echoed, b"ping");
//! ```

#![forbid(unsafe_code)]

pub mod child;
pub mod clockwork;
pub mod memory;

#[cfg(feature = "certificates")]
mod authority;
mod counters;
mod cutting_proxy;
mod deadlines;
mod engines;
mod handlers;
mod log;
mod network;
mod redis;
mod redis_node;
mod unsupported;

#[cfg(feature = "certificates")]
pub use authority::{Authority, Issued};
pub use counters::{Alive, Counted, count_faults, descriptors, registered};
pub use cutting_proxy::CuttingProxy;
pub use deadlines::{
    DEADLINE, POOL_DEADLINE, activity, block_on, eventually, poll, run, run_until, run_with, wait_for,
};
pub use engines::On;
pub use handlers::{Echo, EchoUntilQuit, dial, is_served, listen, localhost, pattern};
pub use log::{Log, watch_and_log};
pub use network::{Duplex, Network, Peer, PeerListener};
pub use redis::{RedisServer, ports};
pub use redis_node::RedisNode;

// Used by the macros.
#[doc(hidden)]
pub use {pelton, pelton_os};
