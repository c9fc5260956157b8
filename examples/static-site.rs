//! Serves the files below a directory over HTTP, with directory listings, next to other handlers.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin static-site docs
//! serving docs on http://127.0.0.1:43175/files/
//! $ curl http://127.0.0.1:43175/api/teams/red/greet/ann
//! hello ann, of team red
//! ```
//!
//! Each handler is mounted below a prefix and sees the rest of the path. Threads look files up, so the loop does not wait
//! for the disk, and results are cached for a second.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::Reactor;
use pelton_http::{FileSettings, Files, Request, Response, Router, Server, plain};

/// A router that does not know where it is mounted, except for the parameters of the prefix.
fn team() -> Router {
    let of = |request: &Request<'_>, name: &str| request.parameter(name).unwrap_or_default().into_owned();
    Router::new().get("/", plain(move |request| format!("team {}\n", of(request, "team")))).get(
        "/greet/{name}",
        plain(move |request| format!("hello {}, of team {}\n", of(request, "name"), of(request, "team"))),
    )
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let files = Files::with_settings(&directory, FileSettings { listing: true, ..FileSettings::default() })?;
    let router = Router::new()
        .get("/", plain(|_| Response::redirect(302, "/files/")))
        .mount("/files", files)
        .mount("/api/teams/{team}", team());
    let mut reactor = Reactor::new()?;
    let listener = Server::new(router).listen(&mut reactor, address)?;
    println!(
        "serving {directory} on http://{}/files/",
        reactor.listening_on(listener).expect("the listener was just started")
    );
    reactor.run()?;
    Ok(())
}
