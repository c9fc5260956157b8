//! Shuts down gracefully on ctrl-c: starts no new work and finishes what it has begun. Stops immediately on a second ctrl-c.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin signals
//! working; press ctrl-c, or send SIGTERM to 4711
//! job 1 begins
//! job 2 begins
//! ^Cfinishing 2 jobs; repeat to stop immediately
//! job 1 is done
//! job 2 is done
//! Drained
//! ```

#![forbid(unsafe_code)]

use std::time::Duration;

use pelton::Reactor;
use rustix::process::Signal;

/// How long jobs in progress may take after the first signal.
const GRACE: Duration = Duration::from_secs(5);

fn main() -> Result<(), pelton::Error> {
    let mut reactor = Reactor::new()?;

    for signal in [Signal::INT, Signal::TERM] {
        // The callback runs on the loop like any other, so it may do anything, unlike a signal handler.
        reactor.on_signal(signal.as_raw(), |reactor, _| {
            if reactor.stopping() {
                reactor.stop();
            } else {
                println!("finishing {} jobs; repeat to stop immediately", reactor.holds());
                reactor.drain(GRACE);
            }
        })?;
    }

    let mut job = 0;
    let begin_jobs = reactor.every(Duration::from_millis(400), move |reactor, _| {
        job += 1;
        println!("job {job} begins");
        // Draining waits until every hold is dropped. This one moves into the callback that ends the job.
        let hold = reactor.hold();
        reactor.after(Duration::from_millis(700), move |_| {
            println!("job {job} is done");
            drop(hold);
        });
    });
    // Timers keep running while the loop drains, so stop the one that creates new work.
    reactor.on_drain(move |reactor| {
        reactor.cancel(begin_jobs);
    });

    println!("working; press ctrl-c, or send SIGTERM to {}", std::process::id());
    let exit = reactor.run()?;
    println!("{exit:?}");
    Ok(())
}
