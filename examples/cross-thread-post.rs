//! Another thread computes and posts its results to the loop.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin cross-thread-post
//! 168 primes from 0 to 1000
//! 135 primes from 1000 to 2000
//! ...
//! 112 primes from 9000 to 10000
//! the loop has counted 1229 primes; it refused 3 posts at first
//! ```
//!
//! The worker is faster than the loop, and only two posts may be queued. So some posts are refused, and the worker waits.

#![forbid(unsafe_code)]

use std::error::Error;
use std::thread;
use std::time::Duration;

use pelton::{Handle, Lost, PostError, Reactor};

/// State that callbacks share, stored in the reactor by its type. It needs no lock: only the loop's thread can access it.
#[derive(Default)]
struct Primes(usize);

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::builder().post_bound(2).build()?;
    // The reactor belongs to this thread. Other threads use a handle.
    let handle = reactor.handle();
    let worker = thread::spawn(move || work(&handle));
    reactor.run()?;
    worker.join().map_err(|_| "the worker panicked")??;
    Ok(())
}

fn work(handle: &Handle) -> Result<(), Lost> {
    let mut refused = 0;
    for start in (0..10_000).step_by(1000) {
        let found = (start..start + 1000).filter(|number| is_prime(*number)).count();
        // The closure runs on the loop, in its next turn.
        let mut report = move |reactor: &mut Reactor| {
            println!("{found} primes from {start} to {}", start + 1000);
            reactor.state::<Primes>().0 += found;
            thread::sleep(Duration::from_millis(5)); // simulates more work
        };
        // If the loop is behind, `try_post` fails and returns the closure.
        while let Err(PostError::Full(returned)) = handle.try_post(report) {
            refused += 1;
            report = returned;
            // Posts run in order. When this one is answered, all earlier ones have run, and there is room again.
            handle.post_with_reply(|_| ()).wait()?;
        }
    }
    // A post can also return a value. `wait` blocks this thread, not the loop.
    let primes = handle.post_with_reply(|reactor| reactor.state::<Primes>().0).wait()?;
    println!("the loop has counted {primes} primes; it refused {refused} posts at first");
    handle.stop();
    Ok(())
}

fn is_prime(number: u32) -> bool {
    number > 1 && (2..).take_while(|factor| factor * factor <= number).all(|factor| !number.is_multiple_of(factor))
}
