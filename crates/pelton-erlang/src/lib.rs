//! Python for Erlang: the native library of the application `erlang_python` in the folder `erlang`.
//!
//! Python runs on the threads of a host (`pelton-pyhost`), never on a scheduler of the virtual machine. A native
//! function copies its terms into an environment of their own, queues the call, and returns. The thread that makes the call
//! converts the terms to Python objects and the result to a term, and sends it to the caller.
//!
//! ```text
//! Erlang process ── submit: copy the terms, queue ──▶ thread of the host: lock once per batch,
//!       ▲                                             convert, call, convert
//!       └──────────────── enif_send ───────────────── {async_result, Ref, Result}
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `nifs.rs` | the functions that Erlang calls |
//! | `running.rs` | the host: starting and stopping it |
//! | `task.rs` | a call with its terms |
//! | `environment.rs`, `errands.rs` | environments of terms; work that needs Python's lock and has no thread |
//! | `to_python.rs`, `to_term.rs`, `opaque.rs`, `atoms.rs` | values in both directions |
//! | `spaces.rs` | the namespaces of processes |
//! | `callbacks.rs`, `module.rs`, `python/` | the Python package `erlang` |
//! | `times.rs` | how long native functions take |

#![cfg(feature = "nif")]

mod atoms;
mod callbacks;
mod environment;
mod errands;
mod module;
mod nifs;
mod opaque;
mod running;
mod spaces;
mod task;
mod times;
mod to_python;
mod to_term;
