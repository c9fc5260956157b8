//! An in-memory network with an engine that completes every operation late, in parts and in odd orders. Tests that pass on it
//! show that the code above the engine does not assume readiness.
//!
//! A seed determines the order. Each test runs with five seeds; `PELTON_TEST_SEEDS=0..200` or `PELTON_TEST_SEEDS=7` picks others.
//! Peers are threads: the same seed repeats the engine's decisions, but not every interleaving with the peers.

mod engine;
mod stream;
mod switchboard;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use pelton::{Address, Builder, EventLoop, PanicPolicy, Reactor};

use crate::{Network, Peer, PeerListener};

use engine::MemoryEngine;
use switchboard::Switchboard;

const SEEDS: Range<u64> = 0..5;

/// Runs a test on a new in-memory network for each seed. Prints the seed that failed.
pub fn with_seeds(test: fn(Memory)) {
    for seed in seeds() {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(Memory::new(seed)))) {
            eprintln!("this was PELTON_TEST_SEEDS={seed}");
            resume_unwind(panic);
        }
    }
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("PELTON_TEST_SEEDS") else { return SEEDS };
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("PELTON_TEST_SEEDS={text}: write 7 or 0..200"));
    match text.split_once("..") {
        Some((first, end)) => number(first)..number(end),
        None => number(&text)..number(&text) + 1,
    }
}

/// An in-memory network to build reactors on. Clones refer to the same network.
#[derive(Clone, Copy)]
pub struct Memory {
    seed: u64,
    /// Leaked, so that tests can copy it into threads as they copy the name of an engine.
    board: &'static Switchboard,
    engines: &'static AtomicU64,
}

impl Memory {
    fn new(seed: u64) -> Memory {
        Memory { seed, board: Box::leak(Box::default()), engines: Box::leak(Box::default()) }
    }
}

impl Network for Memory {
    const HIDES_READING: bool = false;

    fn builder(self) -> Builder {
        // Reactors of one test make different random decisions.
        let number = self.engines.fetch_add(1, Ordering::Relaxed);
        let random = Random(self.seed ^ number << 32);
        let engine = Box::new(MemoryEngine::new(self.board, random));
        Reactor::builder().custom_engine(engine).panic_policy(PanicPolicy::Propagate)
    }

    fn build(self, builder: Builder) -> EventLoop {
        let reactor = builder.build().unwrap();
        assert_eq!(reactor.engine_name(), "memory");
        reactor
    }

    fn connect_peer(self, address: &Address) -> Peer {
        Peer::new(self.board.connect(address).unwrap())
    }

    fn listen_peer(self) -> PeerListener {
        let listener = self.board.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        PeerListener::new(listener.address().clone(), move || Peer::new(listener.accept()))
    }

    fn silent_listener(self) -> PeerListener {
        let listener = self.board.listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        listener.fall_silent();
        PeerListener::new(listener.address().clone(), move || Peer::new(listener.accept()))
    }

    fn more_than_fits(self) -> usize {
        20 * switchboard::ROOM
    }
}

/// A pseudo-random sequence (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// A size that is often small, sometimes large, and seldom round.
    fn size(&mut self) -> usize {
        let most = 1 << self.below(16);
        1 + self.below(most)
    }
}
