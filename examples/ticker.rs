//! A periodic timer that stays in phase, however late it runs.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin ticker
//! beat 1 at 100 ms
//! beat 2 at 200 ms
//! ... and now something slow blocks the loop for 250 ms
//! beat 3 at 450 ms, late by 150 ms: 1 beat missed
//! beat 4 at 500 ms
//! beat 5 at 600 ms
//! ```
//!
//! The third beat was due at 300 ms. The one due at 400 ms was missed meanwhile: it is counted, not made up for. The
//! fourth is at 500 ms again, a whole number of periods after the start.

#![forbid(unsafe_code)]

use std::thread::sleep;
use std::time::Duration;

use pelton::Reactor;

const PERIOD: Duration = Duration::from_millis(100);

fn main() -> Result<(), pelton::Error> {
    let mut reactor = Reactor::new()?;
    let start = reactor.now();
    let mut beats = 0;

    reactor.every(PERIOD, move |reactor, beat| {
        beats += 1;
        print!("beat {beats} at {} ms", (reactor.now() - start).as_millis());
        match beat.missed {
            0 => println!(),
            missed => {
                let late = (reactor.now() - beat.deadline).as_millis();
                println!(", late by {late} ms: {missed} beat{} missed", if missed == 1 { "" } else { "s" });
            }
        }
        if beats == 2 {
            println!("... and now something slow blocks the loop for 250 ms");
            sleep(Duration::from_millis(250));
        }
        if beats == 5 {
            reactor.stop();
        }
    });

    reactor.run()?;
    Ok(())
}
