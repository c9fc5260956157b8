//! CPU work off the loop: the loop keeps ticking while other threads count primes.
//!
//! One piece panics, one is cancelled before it starts, and the loop ends when the rest is done.

use std::time::Duration;

use pelton::{Exit, Lane, LaneSettings, Reactor};

/// The upper limit of the primes, and the number of pieces.
const LIMIT: u32 = 200_000;
const PIECES: u32 = 8;

#[derive(Default)]
struct Counted {
    primes: u32,
    beats: u32,
}

fn is_prime(number: u32) -> bool {
    number > 1 && (2..).take_while(|divisor| divisor * divisor <= number).all(|divisor| !number.is_multiple_of(divisor))
}

fn main() -> Result<(), pelton::Error> {
    let settings = LaneSettings { threads: 2, ..LaneSettings::CPU };
    let mut reactor = Reactor::builder().lane(Lane::Cpu, settings).build()?;

    for piece in 0..PIECES {
        let numbers = piece * LIMIT / PIECES..(piece + 1) * LIMIT / PIECES;
        let count = move || numbers.filter(|number| is_prime(*number)).count() as u32;
        reactor.defer(Lane::Cpu, count, move |reactor, primes| {
            // These pieces do not panic.
            let primes = primes.unwrap_or_default();
            println!("piece {piece} has {primes} primes");
            reactor.state::<Counted>().primes += primes;
        })?;
    }

    reactor.defer(
        Lane::Cpu,
        || panic!("there is no prime here"),
        |_, outcome: Result<(), _>| {
            if let Err(failure) = outcome {
                println!("another piece failed: {failure}");
            }
        },
    )?;

    let unwanted = reactor.defer(Lane::Cpu, || {}, |_, _| println!("this is never printed"))?;
    if reactor.cancel_deferred(unwanted) {
        println!("one was cancelled in time");
    }

    reactor.every(Duration::from_millis(1), |reactor, _| reactor.state::<Counted>().beats += 1);
    reactor.on_shutdown(|reactor| {
        let Counted { primes, beats } = *reactor.state::<Counted>();
        println!("{primes} primes below {LIMIT}, and {beats} beats meanwhile");
    });

    // Deferred work counts as in progress, so the loop waits for it.
    reactor.drain(Duration::from_secs(60));
    if reactor.run()? != Exit::Drained {
        println!("it took too long");
    }
    Ok(())
}
