//! A client that stays connected to a server that keeps dropping it.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin reconnecting-client
//! attempt 1 got "the time is 1"
//! attempt 1 got "the time is 2"
//! 127.0.0.1:41235 was connected for 20.4ms: finished by the other side; reconnecting in 8.2ms
//! ...
//! that was enough
//! ```
//!
//! Each connection has its own handler. State that outlives a connection, here the number of received ticks, is in
//! the reactor's state.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use pelton::{Address, Backoff, Chunk, Connection, Io, ListenerId, Reactor, Reconnect};

/// The client stops after this many ticks.
const ENOUGH: usize = 6;

/// How often the server sends the time, and after how many times it hangs up.
const TICK: Duration = Duration::from_millis(10);
const TICKS_PER_CONNECTION: usize = 2;

#[derive(Default)]
struct Received(usize);

struct Client {
    attempt: u64,
}

impl Connection for Client {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        // The lines are short and arrive whole; a real protocol needs a codec.
        for line in String::from_utf8_lossy(&chunk).lines() {
            println!("attempt {} got {line:?}", self.attempt);
            io.reactor().state::<Received>().0 += 1;
        }
        if io.reactor().state::<Received>().0 == ENOUGH {
            println!("that was enough");
            // A stopping loop does not reconnect.
            io.reactor().stop();
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let (listener, address) = serve(&mut reactor, "127.0.0.1:0".parse()?)?;

    // A real client uses longer delays: by default 100 milliseconds, doubled up to 30 seconds.
    let backoff = Backoff::default().start(Duration::from_millis(10)).most(Duration::from_millis(100));
    let mut server = Some(listener);
    Reconnect::to(&address)
        .backoff(backoff)
        .on_outage(move |reactor, outage| {
            println!("{outage}");
            // Removes the server for a while, then starts one again at the same address.
            match outage.attempt {
                2 => {
                    println!("the server goes away");
                    server.take().map(|listener| reactor.end(listener));
                }
                4 => match serve(reactor, address.clone()) {
                    Ok(_) => println!("the server is back"),
                    Err(error) => {
                        eprintln!("{error}");
                        reactor.stop();
                    }
                },
                _ => {}
            }
        })
        .run(&mut reactor, |_, attempt| Client { attempt });
    reactor.run()?;
    Ok(())
}

/// Sends the time a few times, and hangs up.
struct Clock {
    ticks: usize,
}

impl Connection for Clock {
    fn opened(&mut self, io: &mut Io<'_>) {
        let id = io.id();
        io.reactor().every(TICK, move |reactor, beat| {
            let more = reactor.visit(id, |clock: &mut Clock, io| clock.tick(io));
            // The connection is closed, or has got all its ticks.
            if more != Some(true) {
                reactor.cancel(beat.timer);
            }
        });
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

impl Clock {
    /// Returns whether there is more to send.
    fn tick(&mut self, io: &mut Io<'_>) -> bool {
        self.ticks += 1;
        // If the client has gone, the connection is about to be closed anyway.
        io.send(format!("the time is {}\n", self.ticks).as_bytes()).ok();
        if self.ticks == TICKS_PER_CONNECTION {
            io.close_after_writing();
        }
        self.ticks < TICKS_PER_CONNECTION
    }
}

fn serve(reactor: &mut Reactor, address: Address) -> Result<(ListenerId, Address), pelton::Error> {
    let listener = reactor.listen(&address, |_| Clock { ticks: 0 })?;
    let address = reactor.listening_on(listener).cloned().unwrap_or(address);
    Ok((listener, address))
}
