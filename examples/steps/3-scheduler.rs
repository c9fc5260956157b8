//! Step 3: a web server that waits without blocking.
//!
//! Instead of sleeping, a callback asks to be called later. The loop knows when the next callback is due, and waits for events
//! only until then. There are three kinds here: one-off (`after`, for `/slow`), periodic (`every`, for a report once a second) and idle
//! (`when_idle`, for work with low priority).
//!
//! ```text
//! $ cargo run --release -p pelton-examples --bin step-3 127.0.0.1:8083
//! http://127.0.0.1:8083/
//! 4 requests in the last second
//! half of them took less than 100.2ms
//! ```

#![forbid(unsafe_code)]

mod answer;
mod request;

use std::error::Error;
use std::time::{Duration, Instant};

use pelton::{Chunk, Connection, Io, Reactor};

/// How long `/slow` takes.
const WAIT: Duration = Duration::from_millis(100);

/// How often a report is printed.
const REPORT: Duration = Duration::from_secs(1);

/// The requests served since the last report. All connections share it, so it is in the reactor's state.
#[derive(Default)]
struct Served {
    times: Vec<Duration>,
}

#[derive(Default)]
struct Client {
    input: Vec<u8>,
    /// When the pending request arrived. The next one is handled after it.
    waiting: Option<Instant>,
    /// The peer has finished sending.
    finished: bool,
}

impl Client {
    fn go_on(&mut self, io: &mut Io<'_>) {
        while self.waiting.is_none()
            && let Some(path) = request::take(&mut self.input)
        {
            self.waiting = Some(Instant::now());
            match path.as_str() {
                "/" => self.answer(io, "200 OK", "hello\n"),
                "/slow" => {
                    let id = io.id();
                    io.reactor().after(WAIT, move |reactor| {
                        // If the client has gone meanwhile, there is nobody to visit.
                        reactor.visit(id, |client: &mut Client, io| {
                            client.answer(io, "200 OK", "at last\n");
                            client.go_on(io);
                        });
                    });
                }
                _ => self.answer(io, "404 Not Found", "there is no such thing\n"),
            }
        }
        if self.finished && self.waiting.is_none() {
            io.close_after_writing();
        }
    }

    fn answer(&mut self, io: &mut Io<'_>, status: &str, text: &str) {
        let _ = io.send(&answer::plain(status, text));
        if let Some(since) = self.waiting.take() {
            io.reactor().state::<Served>().times.push(since.elapsed());
        }
    }
}

impl Connection for Client {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.input.extend_from_slice(&chunk);
        self.go_on(io);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        // The client sends no more requests, but still expects its answers.
        self.finished = true;
        self.go_on(io);
    }
}

/// Prints the number of requests immediately, and the median, which takes longer, when the loop is idle.
fn report(reactor: &mut Reactor) {
    let mut times = std::mem::take(&mut reactor.state::<Served>().times);
    if times.is_empty() {
        return;
    }
    println!("{} requests in the last second", times.len());
    reactor.when_idle(move |_| {
        times.sort_unstable();
        println!("half of them took less than {:.1?}", times[times.len() / 2]);
    });
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let listener = reactor.listen(request::address(), |_| Client::default())?;
    println!("http://{}/", reactor.listening_on(listener).ok_or("the listener has ended")?);
    reactor.every(REPORT, |reactor, _| report(reactor));
    reactor.run()?;
    Ok(())
}
