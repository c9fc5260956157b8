//! Step 2: a web server on an event loop.
//!
//! The loop waits for all clients at once, in one system call that reports which of them have sent something. A silent client
//! costs only memory, so connections can stay open between requests. The blocking function becomes a
//! `Connection` that receives input and keeps what is not complete yet.
//!
//! ```text
//! $ cargo run --release -p pelton-examples --bin step-2 127.0.0.1:8082
//! http://127.0.0.1:8082/
//! ```

#![forbid(unsafe_code)]

mod answer;
mod request;

use std::error::Error;
use std::thread;
use std::time::Duration;

use pelton::{Chunk, Connection, Io, Reactor};

/// How long `/slow` takes.
const WAIT: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Client {
    /// The unfinished request.
    input: Vec<u8>,
}

impl Connection for Client {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.input.extend_from_slice(&chunk);
        while let Some(path) = request::take(&mut self.input) {
            // Fails if the client has gone, which does not matter.
            let _ = io.send(&answer(&path));
        }
    }
}

fn answer(path: &str) -> Vec<u8> {
    match path {
        "/" => answer::plain("200 OK", "hello\n"),
        "/slow" => {
            // The loop is one thread. While it sleeps here, nobody is served. A callback must not block.
            thread::sleep(WAIT);
            answer::plain("200 OK", "at last\n")
        }
        _ => answer::plain("404 Not Found", "there is no such thing\n"),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let listener = reactor.listen(request::address(), |_| Client::default())?;
    println!("http://{}/", reactor.listening_on(listener).ok_or("the listener has ended")?);
    reactor.run()?;
    Ok(())
}
