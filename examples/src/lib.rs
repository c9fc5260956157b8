//! Small programs on Pelton, one per file, each about one thing. `tests/run` runs them all.
//!
//! The library makes `cargo test` compile the code in the project's README and guides, and has what several examples share.

#![forbid(unsafe_code)]

use pelton::Reactor;
use pelton_http::{Server, plain};

/// Returns the URLs on the command line, or those of three pages that the program itself serves.
pub fn urls_or_local(reactor: &mut Reactor) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    if !urls.is_empty() {
        return Ok(urls);
    }
    let pages = Server::new(plain(|request| request.path().trim_start_matches('/').to_owned()));
    let listener = pages.listen(reactor, "127.0.0.1:0")?;
    let address = reactor.listening_on(listener).expect("the listener was just started");
    Ok(["one", "two", "three"].iter().map(|page| format!("http://{address}/{page}")).collect())
}

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../docs/async.md")]
struct FromCallbacksToAsync;

#[cfg(doctest)]
#[doc = include_str!("../../docs/connections.md")]
struct Connections;

#[cfg(doctest)]
#[doc = include_str!("../../docs/eventmachine.md")]
struct ComingFromEventMachine;

#[cfg(doctest)]
#[doc = include_str!("../../docs/watching.md")]
struct Watching;

#[cfg(doctest)]
#[doc = include_str!("../../docs/processes.md")]
struct Processes;

#[cfg(doctest)]
#[doc = include_str!("../../docs/promises.md")]
struct Promises;

#[cfg(doctest)]
#[doc = include_str!("../../docs/composers.md")]
struct Composers;

#[cfg(doctest)]
#[doc = include_str!("../../docs/static-files.md")]
struct StaticFiles;

#[cfg(doctest)]
#[doc = include_str!("../../docs/http.md")]
struct Http;

#[cfg(doctest)]
#[doc = include_str!("../../docs/protocols.md")]
struct Protocols;

#[cfg(doctest)]
#[doc = include_str!("../../docs/coming-from/eventmachine.md")]
struct FromEventMachine;

#[cfg(doctest)]
#[doc = include_str!("../../docs/coming-from/node.md")]
struct FromNode;

#[cfg(doctest)]
#[doc = include_str!("../../docs/coming-from/java-nio.md")]
struct FromJava;

#[cfg(doctest)]
#[doc = include_str!("../../docs/coming-from/asyncio.md")]
struct FromAsyncio;

#[cfg(doctest)]
#[doc = include_str!("../../docs/embedding.md")]
struct Embedding;

#[cfg(doctest)]
#[doc = include_str!("../../docs/client.md")]
struct HttpClient;

#[cfg(doctest)]
#[doc = include_str!("../../docs/many-machines.md")]
struct ManyMachines;
