//! Ends gracefully on ctrl-c: takes on nothing new, finishes what it has begun. Ends at once on the second ctrl-c.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin signals
//! working; press ctrl-c, or send SIGTERM to 4711
//! job 1 begins
//! job 2 begins
//! ^Cfinishing 2 jobs; once more to stop at once
//! job 1 is done
//! job 2 is done
//! Drained
//! ```

#![forbid(unsafe_code)]

use std::time::Duration;

use pelton::Reactor;
use rustix::process::Signal;

/// How long what is in progress may take after the first signal.
const GRACE: Duration = Duration::from_secs(5);

fn main() -> Result<(), pelton::Error> {
    let mut reactor = Reactor::new()?;

    for signal in [Signal::INT, Signal::TERM] {
        // The callback runs on the loop like any other, so it may do everything that a signal handler must not.
        reactor.on_signal(signal.as_raw(), |reactor, _| {
            if reactor.stopping() {
                reactor.stop();
            } else {
                println!("finishing {} jobs; once more to stop at once", reactor.holds());
                reactor.drain(GRACE);
            }
        })?;
    }

    let mut job = 0;
    let begin_jobs = reactor.every(Duration::from_millis(400), move |reactor, _| {
        job += 1;
        println!("job {job} begins");
        // For as long as there is a hold, draining goes on. It moves into the callback that ends the job.
        let hold = reactor.hold();
        reactor.after(Duration::from_millis(700), move |_| {
            println!("job {job} is done");
            drop(hold);
        });
    });
    // Timers go on while the loop drains. What brings new work is for us to stop.
    reactor.on_drain(move |reactor| {
        reactor.cancel(begin_jobs);
    });

    println!("working; press ctrl-c, or send SIGTERM to {}", std::process::id());
    let exit = reactor.run()?;
    println!("{exit:?}");
    Ok(())
}
