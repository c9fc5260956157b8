//! The part of Pelton's Python front end that touches CPython's memory. Most of its `unsafe` code is here, the rest in `pelton-pyhost`.
//!
//! References are PyO3's: a `Bound` or `Borrowed` shows that its object is alive and that the interpreter lock is held.
//! What the crates above keep in an object is made of slots and cells, which lend nothing: any Python code may run, and use
//! the same object, between two lines. So they need no `unsafe`, and no rule about what may be called when.
//!
//! | file | contents |
//! |---|---|
//! | `slot.rs` | fields that own references, and how the garbage collector visits them |
//! | `class.rs`, `macros.rs`, `types.rs` | classes made at run time: state in Rust, methods, attributes |
//! | `arguments.rs`, `interned.rs` | parsing of arguments, and strings compared by address |
//! | `call.rs`, `object.rs` | fast calls into Python, and the error of a call that has raised |
//! | `handles/` | the objects that `call_soon` and similar methods return, their memory and contexts |
//! | `buffer.rs`, `reserve.rs` | the memory of `bytes`, buffers and messages |
//! | `descriptor.rs` | descriptors that Python code names or owns |
//! | `lock.rs`, `audit.rs` | the interpreter lock; whether Python code watches |
//! | `panic.rs`, `thread_exit.rs` | panics and terminated threads at the boundary to C |

#![cfg(feature = "python")]

#[macro_use]
mod macros;
#[macro_use]
pub mod slot;
#[macro_use]
pub mod class;

pub mod arguments;
pub mod audit;
pub mod buffer;
pub mod call;
pub mod descriptor;
pub mod handles;
pub mod interned;
pub mod lock;
pub mod object;
pub mod panic;
pub mod reserve;
pub mod thread_exit;
pub mod types;

// The macros use these names.
pub use pyo3::{Borrowed, PyAny, Python};
