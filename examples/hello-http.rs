//! A web server in ten lines.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin hello-http
//! http://127.0.0.1:43175/
//! $ curl http://127.0.0.1:43175/ann
//! hello, ann
//! ```
//!
//! `pelton_http::Router` can do more than this, and `docs/http.md` describes what the server does by default.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::Reactor;
use pelton_http::{Router, Server, plain};

fn main() -> Result<(), Box<dyn Error>> {
    let hello = plain(|request| format!("hello, {}\n", request.parameter("name").unwrap_or_default()));
    let server = Server::new(Router::new().get("/", plain(|_| "hello\n")).get("/{name}", hello));
    let mut reactor = Reactor::new()?;
    let listener = server.listen(&mut reactor, "127.0.0.1:0")?;
    println!("http://{}/", reactor.listening_on(listener).expect("the listener was just started"));
    reactor.run()?;
    Ok(())
}
