//! The part of Pelton's Python front end that touches CPython's memory.
//!
//! | file | contents |
//! |---|---|
//! | `object.rs` | references, and the error of a call that has raised |
//! | `types.rs`, `methods.rs`, `fields.rs`, `hidden.rs` | classes made at run time: methods, attributes, Rust state |
//! | `arguments.rs`, `interned.rs` | parsing of arguments, and strings compared by address |
//! | `panic.rs`, `thread_exit.rs` | panics and terminated threads at the boundary to C |
//! | `reserve.rs` | heap space for large messages |

#![cfg(feature = "python")]
// Pointers are checked by the callers until references with types replace them.
#![allow(clippy::not_unsafe_ptr_arg_deref, clippy::new_without_default)]

pub mod arguments;
pub mod fields;
pub mod hidden;
pub mod interned;
pub mod methods;
pub mod object;
pub mod panic;
pub mod reserve;
pub mod thread_exit;
pub mod types;
