//! A chain of promises in an HTTP handler: a file lists other files, which are read concurrently and sent as one page.
//!
//! ```text
//! $ mkdir pages; printf 'one\ntwo\n' > pages/index; echo the first part > pages/one; echo the second part > pages/two
//! $ cargo run -p pelton-examples --bin http-promises pages
//! http://127.0.0.1:43175/pages/index
//! $ curl http://127.0.0.1:43175/pages/index
//! == one ==
//! the first part
//! == two ==
//! the second part
//! ```
//!
//! Nothing blocks the loop: threads read the files. If the client disconnects, its chain is dropped.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{
    self,
    ErrorKind::{IsADirectory, NotADirectory, NotFound},
};

use pelton::fs::Directory;
use pelton::{Promise, Reactor, Rejected};
use pelton_http::{Response, Router, Server, promised};

/// The parts that the file `name` lists, concatenated.
fn page(reactor: &mut Reactor, parts: &Directory, name: &str) -> Promise<String, io::Error> {
    let parts = parts.clone();
    parts.clone().read_to_string(name).promise(reactor).then(move |reactor, list| {
        let read = list.lines().map(|part| {
            let title = format!("== {part} ==\n");
            parts.read_to_string(part).promise(reactor).map(move |text| title + &text)
        });
        let all: Vec<_> = read.collect();
        Promise::all(reactor, all).map(|texts| texts.concat())
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    // Names come from clients. A `Directory` does not let them lead out.
    let parts = Directory::open(path).now()?;
    let pages = promised(move |reactor: &mut Reactor, request| {
        let name = request.parameter("name").unwrap_or_default();
        page(reactor, &parts, &name).map(Response::text).or_else(|_, rejected| match rejected {
            // Errors that a client causes by the name that it chooses.
            Rejected::Failed(error) if matches!(error.kind(), NotFound | NotADirectory | IsADirectory) => {
                Ok(Response::new(404))
            }
            // Any other error becomes a 500, and is reported.
            other => Err(other),
        })
    });
    let server = Server::new(Router::new().get("/pages/{name}", pages));
    let mut reactor = Reactor::new()?;
    let listener = server.listen(&mut reactor, "127.0.0.1:0")?;
    println!("http://{}/pages/index", reactor.listening_on(listener).expect("the listener was just started"));
    reactor.run()?;
    Ok(())
}
