//! Small programs on Pelton, one per file, each about one thing. `tests/run` runs them all.
//!
//! The library itself is empty. It only makes `cargo test` compile the code in the project's README and guides.

#![forbid(unsafe_code)]

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
#[doc = include_str!("../../docs/many-machines.md")]
struct ManyMachines;
