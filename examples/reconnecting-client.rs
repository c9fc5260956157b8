//! A client that stays connected to a server which keeps dropping it.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin reconnecting-client
//! attempt 1 got "the time is 1"
//! attempt 1 got "the time is 2"
//! 127.0.0.1:41235 was connected for 20.4ms: finished by the other side; again in 8.2ms
//! ...
//! that was enough
//! ```
//!
//! Each connection has a handler of its own. What they have in common, here how many ticks were received, outlives them in the
//! reactor's state.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use pelton::{Address, Backoff, Chunk, Connection, Io, ListenerId, Reactor, Reconnect};

/// The client is satisfied when it has received so many ticks.
const ENOUGH: usize = 6;

/// How often a server says what time it is, and after how many times it has had enough of it.
const TICK: Duration = Duration::from_millis(10);
const TICKS_PER_CONNECTION: usize = 2;

#[derive(Default)]
struct Received(usize);

struct Client {
    attempt: u64,
}

impl Connection for Client {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        // The lines are short and come one at a time, or a few together; a real protocol has a codec.
        for line in String::from_utf8_lossy(&chunk).lines() {
            println!("attempt {} got {line:?}", self.attempt);
            io.reactor().state::<Received>().0 += 1;
        }
        if io.reactor().state::<Received>().0 == ENOUGH {
            println!("that was enough");
            // A loop that is stopping connects no more.
            io.reactor().stop();
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let (listener, address) = serve(&mut reactor, "127.0.0.1:0".parse()?)?;

    // In a real client the waits are longer: by default 100 milliseconds, doubled up to 30 seconds.
    let backoff = Backoff::default().start(Duration::from_millis(10)).most(Duration::from_millis(100));
    let mut server = Some(listener);
    Reconnect::to(&address)
        .backoff(backoff)
        .on_outage(move |reactor, outage| {
            println!("{outage}");
            // For a while there is no server at all; then there is one again at the same address.
            match outage.attempt {
                2 => {
                    println!("the server goes away");
                    server.take().map(|listener| reactor.unlisten(listener));
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

/// Says what time it is, a few times, and hangs up.
struct Clock {
    ticks: usize,
}

impl Connection for Clock {
    fn opened(&mut self, io: &mut Io<'_>) {
        let id = io.id();
        io.reactor().every(TICK, move |reactor, beat| {
            let more = reactor.visit(id, |clock: &mut Clock, io| clock.tick(io));
            // The connection is over, or has had enough.
            if more != Some(true) {
                reactor.cancel(beat.timer);
            }
        });
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

impl Clock {
    /// Says whether there is more to come.
    fn tick(&mut self, io: &mut Io<'_>) -> bool {
        self.ticks += 1;
        // A client that is gone is noticed when the connection is over.
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
