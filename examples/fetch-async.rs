//! Three pages fetched at once, with `async`.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin fetch-async
//! http://127.0.0.1:43175/one: 200, 3 bytes
//! http://127.0.0.1:43175/two: 200, 3 bytes
//! http://127.0.0.1:43175/three: 200, 5 bytes
//! all pages: 11 bytes
//! ```
//!
//! Compared to `fetch-promises`: variables live across waits, errors travel with `?`, and dropping the future cancels the requests,
//! here when five seconds have passed.

#![forbid(unsafe_code)]

use std::error::Error;
use std::future::IntoFuture;
use std::time::Duration;

use futures::future::try_join_all;
use pelton::{Reactor, task};
use pelton_examples::urls_or_local;
use pelton_http::Client;

async fn fetch_all(urls: &[String]) -> Result<usize, Box<dyn Error>> {
    let client = Client::new();
    let pages = try_join_all(urls.iter().map(|url| client.get(url).into_future())).await?;
    for page in &pages {
        println!("{}: {}, {} bytes", page.url(), page.status(), page.body().len());
    }
    Ok(pages.iter().map(|page| page.body().len()).sum())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let urls = urls_or_local(&mut reactor)?;
    let bytes = reactor.block_on(task::timeout(Duration::from_secs(5), fetch_all(&urls)))???;
    println!("all pages: {bytes} bytes");
    Ok(())
}
