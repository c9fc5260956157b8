//! Three pages fetched at once, as a chain of promises.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin fetch-promises
//! http://127.0.0.1:43175/one: 200, 3 bytes
//! http://127.0.0.1:43175/two: 200, 3 bytes
//! http://127.0.0.1:43175/three: 200, 5 bytes
//! all pages: 11 bytes
//! ```
//!
//! Compared to `fetch-callbacks`: `Promise::all` counts, keeps the order, and the first error ends the chain, which has one place
//! that handles it.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::{Promise, Reactor};
use pelton_examples::urls_or_local;
use pelton_http::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let urls = urls_or_local(&mut reactor)?;
    let client = Client::new();
    let pages: Vec<_> = urls.iter().map(|url| client.get(url).promise(&mut reactor)).collect();
    Promise::all(&reactor, pages)
        .map(|pages| {
            for page in &pages {
                println!("{}: {}, {} bytes", page.url(), page.status(), page.body().len());
            }
            pages.iter().map(|page| page.body().len()).sum::<usize>()
        })
        .done(|reactor, outcome| {
            match outcome {
                Ok(bytes) => println!("all pages: {bytes} bytes"),
                Err(error) => println!("{error}"),
            }
            reactor.stop();
        });
    reactor.run()?;
    Ok(())
}
