//! A chain of promises inside an HTTP handler: a file that lists others, which are read together and sent as one page.
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
//! Nothing blocks the loop: files are read on threads. A client that goes away takes its chain with it.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io;

use pelton::fs::Directory;
use pelton::{Promise, Reactor, Rejected};
use pelton_http::{Response, Router, Server, promised};

/// The parts that the file `name` lists, one after the other.
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
    // Names come from clients: a `Directory` lets none of them lead out.
    let parts = Directory::open(path).now()?;
    let pages = promised(move |reactor: &mut Reactor, request| {
        let name = request.parameter("name").unwrap_or_default();
        page(reactor, &parts, &name).map(Response::text).or_else(|_, rejected| match rejected {
            Rejected::Failed(error) if error.kind() == io::ErrorKind::NotFound => Ok(Response::new(404)),
            // Anything else is a 500, and reported.
            other => Err(other),
        })
    });
    let server = Server::new(Router::new().get("/pages/{name}", pages));
    let mut reactor = Reactor::new()?;
    let listener = server.listen(&mut reactor, &"127.0.0.1:0".parse()?)?;
    println!("http://{}/pages/index", reactor.listening_on(listener).expect("it was just begun"));
    reactor.run()?;
    Ok(())
}
