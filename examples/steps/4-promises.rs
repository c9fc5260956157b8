//! Step 4: a web server whose answers take several steps.
//!
//! With callbacks, each step is nested in the previous one and handles its own errors. A promise is a value that stands for
//! a result that arrives later: steps form a flat chain, an error skips the steps that follow, and one place handles it.
//! `/order` is written as a chain, `/order-nested` with callbacks.
//!
//! ```text
//! $ cargo run --release -p pelton-examples --bin step-4 127.0.0.1:8084
//! http://127.0.0.1:8084/
//! $ curl http://127.0.0.1:8084/order http://127.0.0.1:8084/order-of-nobody
//! ann has ordered a wheel for 42
//! nobody is unknown
//! ```

#![forbid(unsafe_code)]

mod answer;
mod request;

use std::error::Error;
use std::time::Duration;

use pelton::{Chunk, Connection, Io, Promise, Reactor};

/// How long each look-up takes.
const WAIT: Duration = Duration::from_millis(50);

type Looked = Result<&'static str, String>;

/// Functions that take a callback.
fn look_up_name(reactor: &mut Reactor, number: u32, then: impl FnOnce(&mut Reactor, Looked) + 'static) {
    reactor.after(WAIT, move |reactor| {
        then(reactor, if number == 1 { Ok("ann") } else { Err("nobody is unknown".to_owned()) });
    });
}

fn look_up_order(reactor: &mut Reactor, name: &str, then: impl FnOnce(&mut Reactor, Looked) + 'static) {
    let order = if name == "ann" { Ok("a wheel for 42") } else { Err(format!("{name} has ordered nothing")) };
    reactor.after(WAIT, move |reactor| then(reactor, order));
}

/// The same, as promises: the deferred takes the place of the callback.
fn name_of(reactor: &mut Reactor, number: u32) -> Promise<&'static str, String> {
    let (deferred, name) = reactor.promise();
    // Nothing else settles it.
    look_up_name(reactor, number, move |_, name| drop(deferred.settle(name)));
    name
}

fn order_of(reactor: &mut Reactor, name: &str) -> Promise<&'static str, String> {
    let (deferred, order) = reactor.promise();
    look_up_order(reactor, name, move |_, order| drop(deferred.settle(order)));
    order
}

fn with_callbacks(
    reactor: &mut Reactor,
    number: u32,
    then: impl FnOnce(&mut Reactor, Result<String, String>) + 'static,
) {
    look_up_name(reactor, number, |reactor, name| match name {
        Err(error) => then(reactor, Err(error)),
        Ok(name) => look_up_order(reactor, name, move |reactor, order| match order {
            Err(error) => then(reactor, Err(error)),
            Ok(order) => then(reactor, Ok(format!("{name} has ordered {order}\n"))),
        }),
    });
}

fn with_promises(reactor: &mut Reactor, number: u32) -> Promise<String, String> {
    name_of(reactor, number)
        .then(|reactor, name| order_of(reactor, name).map(move |order| format!("{name} has ordered {order}\n")))
}

/// The answer to a path. It no longer matters whether it is available now or later.
fn route(reactor: &mut Reactor, path: &str) -> Promise<String, String> {
    match path {
        "/" => Promise::resolved(reactor, "hello\n".to_owned()),
        "/order" => with_promises(reactor, 1),
        "/order-of-nobody" => with_promises(reactor, 0),
        "/order-nested" => {
            let (deferred, order) = reactor.promise();
            with_callbacks(reactor, 1, move |_, order| drop(deferred.settle(order)));
            order
        }
        _ => Promise::rejected(reactor, "there is no such thing".to_owned()),
    }
}

#[derive(Default)]
struct Client {
    input: Vec<u8>,
    waits: bool,
    /// The peer has finished sending.
    finished: bool,
}

impl Client {
    fn go_on(&mut self, io: &mut Io<'_>) {
        if self.waits {
            return;
        }
        let Some(path) = request::take(&mut self.input) else {
            if self.finished {
                io.close_after_writing();
            }
            return;
        };
        self.waits = true;
        let id = io.id();
        route(io.reactor(), &path).done(move |reactor, outcome| {
            let answer = match outcome {
                Ok(text) => answer::plain("200 OK", &text),
                Err(rejected) => answer::plain("404 Not Found", &format!("{rejected}\n")),
            };
            reactor.visit(id, |client: &mut Client, io| {
                let _ = io.send(&answer);
                client.waits = false;
                client.go_on(io);
            });
        });
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

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let listener = reactor.listen(request::address(), |_| Client::default())?;
    println!("http://{}/", reactor.listening_on(listener).ok_or("the listener has ended")?);
    reactor.run()?;
    Ok(())
}
