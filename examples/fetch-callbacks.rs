//! Three pages fetched at once, with callbacks.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin fetch-callbacks
//! http://127.0.0.1:43175/one: 200, 3 bytes
//! http://127.0.0.1:43175/three: 200, 5 bytes
//! http://127.0.0.1:43175/two: 200, 3 bytes
//! all pages: 11 bytes
//! ```
//!
//! Each callback runs as soon as its page has arrived. To know when all of them have, the program has to count, and an error has to
//! be handled in each. `fetch-promises` and `fetch-async` do the same.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;

use pelton::Reactor;
use pelton_examples::urls_or_local;
use pelton_http::Client;

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let urls = urls_or_local(&mut reactor)?;
    let client = Client::new();
    let left = Rc::new(Cell::new(urls.len()));
    let bytes = Rc::new(Cell::new(0));
    for url in urls {
        let (left, bytes) = (left.clone(), bytes.clone());
        client.get(&url).send(&mut reactor, move |reactor, response| {
            match response {
                Ok(response) => {
                    println!("{url}: {}, {} bytes", response.status(), response.body().len());
                    bytes.set(bytes.get() + response.body().len());
                }
                Err(error) => println!("{error}"),
            }
            left.set(left.get() - 1);
            if left.get() == 0 {
                println!("all pages: {} bytes", bytes.get());
                reactor.stop();
            }
        });
    }
    reactor.run()?;
    Ok(())
}
