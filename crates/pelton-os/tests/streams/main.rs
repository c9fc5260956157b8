//! Streams of the readiness engine whose descriptors somebody else closes, on every poller; and writing to closed pipes in a
//! program that does not ignore `SIGPIPE`.

mod early_close;
mod sigpipe;

use std::time::{Duration, Instant};

use pelton_os::engine::{Engine, EngineKind};
use pelton_os::{Event, Time, Token};

/// Runs `test` on each engine that this build has.
fn on_every_engine(test: impl Fn(EngineKind, &mut dyn Engine)) {
    for kind in EngineKind::ALL {
        if let Ok(mut engine) = kind.open() {
            test(kind, &mut *engine);
        }
    }
}

/// Makes one turn that waits for at most `millis`, and returns its events.
fn turn(engine: &mut dyn Engine, millis: u64) -> Vec<Event> {
    let until = if millis == 0 { Time::ZERO } else { engine.now() + Duration::from_millis(millis) };
    engine.park(Some(until)).block().unwrap();
    std::iter::from_fn(|| engine.next()).collect()
}

/// Counts the turns within 30 milliseconds, which report nothing.
fn idle_turns(engine: &mut dyn Engine) -> usize {
    let end = Instant::now() + Duration::from_millis(30);
    let mut turns = 0;
    while Instant::now() < end {
        let left = end.saturating_duration_since(Instant::now()).as_millis() as u64;
        let events = turn(engine, left.max(1));
        assert!(events.is_empty(), "{events:?}");
        turns += 1;
    }
    turns
}

fn token(index: u32) -> Token {
    Token::new(index, 1)
}
