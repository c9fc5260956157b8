//! Serves the files below a directory over HTTP, with listings of directories.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin static-site docs
//! serving docs on http://127.0.0.1:43175/
//! ```
//!
//! Files are looked up on threads, so that the loop waits for no disk, and kept for a second.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::Reactor;
use pelton_http::{FileSettings, Files, Server};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| ".".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let files = Files::with_settings(&directory, FileSettings { listing: true, ..FileSettings::default() })?;
    let mut reactor = Reactor::new()?;
    let listener = Server::new(files).listen(&mut reactor, &address.parse()?)?;
    println!("serving {directory} on http://{}/", reactor.listening_on(listener).expect("it was just begun"));
    reactor.run()?;
    Ok(())
}
