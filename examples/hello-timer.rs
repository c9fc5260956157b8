//! The smallest program: a timer that stops the loop.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin hello-timer
//! waiting, on epoll
//! hello, after 500 ms
//! ```

#![forbid(unsafe_code)]

use std::time::Duration;

use pelton::Reactor;

fn main() -> Result<(), pelton::Error> {
    let mut reactor = Reactor::new()?;
    println!("waiting, on {}", reactor.engine_name());

    let start = reactor.now();
    reactor.after(Duration::from_millis(500), move |reactor| {
        // Every callback receives the reactor, to query it and to register more callbacks.
        println!("hello, after {} ms", (reactor.now() - start).as_millis());
        reactor.stop();
    });

    // Sleeps until the timer is due. A loop does not end by itself: `stop` makes `run` return.
    reactor.run()?;
    Ok(())
}
