//! What the reactor knows about itself: which callback blocks it, and its metrics for Prometheus.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin stats
//! timer "refresh the cache" (examples/stats.rs:26:27) has been blocking the loop for 20.093207ms
//! timer "refresh the cache" (examples/stats.rs:26:27) took 50.176251ms
//! # HELP pelton_turns_total Turns of the loop.
//! # TYPE pelton_turns_total counter
//! pelton_turns_total 13
//! ...
//! ```

#![forbid(unsafe_code)]

use std::thread::sleep;
use std::time::Duration;

use pelton::Reactor;

fn main() -> Result<(), pelton::Error> {
    let mut reactor = Reactor::new()?;

    // Called twice for a slow callback: by another thread while it is still blocking, and by the loop when it has returned.
    reactor.on_slow_callback(Duration::from_millis(20), |slow| eprintln!("{slow}"))?;

    let refresh = reactor.after(Duration::from_millis(30), |_| sleep(Duration::from_millis(50)));
    // Reports name the place where a callback was registered. A label says what it is for.
    reactor.label(refresh, "refresh the cache");

    reactor.every(Duration::from_millis(10), |_, _| {});
    reactor.after(Duration::from_millis(150), |reactor| reactor.stop());
    reactor.run()?;

    // A server would return this from its metrics page. Each number is also available by itself.
    let stats = reactor.stats();
    print!("{}", stats.to_prometheus());
    if let Some(lag) = &stats.lag {
        println!("# the latest timer was {:?} late", lag.max());
    }
    Ok(())
}
