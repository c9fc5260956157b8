//! What Rust offers to Python.
//!
//! - [`Module`]: Rust functions, also asynchronous ones, as a module that Python imports. [`call`] is the way from such a
//!   function back into Python, on the same thread.
//! - [`channel`]: bounded queues between the two, with an end that waits and one that is awaited on either side.
//! - [`State`]: a dictionary that both see, with atomic counters.
//! - [`forward_logging`]: what Python logs goes to `tracing`.
//! - [`refuse_processes`]: Python code must not fork or execute programs.
//!
//! None of it holds the interpreter lock while it runs a program's Rust code, or while it waits. So such code may take locks
//! of its own, wait for other threads, and call back into Python; two threads never wait for each other because one has the
//! interpreter lock and wants a lock, and the other the opposite.
//!
//! | file | what is in it |
//! |---|---|
//! | `module.rs`, `function.rs`, `arguments.rs`, `raise.rs` | modules, their functions, what these get and what they may raise |
//! | `coroutine.rs`, `outside.rs` | a Rust future that Python awaits, and how its waker reaches the loop |
//! | `call.rs` | calling Python, right here |
//! | `channel.rs`, `channel_ends.rs`, `blocking.rs` | channels, their ends in Python, waiting in a thread |
//! | `state.rs`, `state_dict.rs` | shared state, and what Python sees of it |
//! | `logging.rs`, `callsites.rs` | log records, and making of them what `tracing` asks for |
//! | `guard.rs` | no processes |

mod arguments;
mod blocking;
mod call;
mod callsites;
mod channel;
mod channel_ends;
mod coroutine;
mod function;
mod guard;
mod logging;
mod module;
pub(crate) mod outside;
mod raise;
mod state;
mod state_dict;

use std::fmt;

use pyo3::ffi::PyObject;
use pyo3::prelude::*;

pub use self::arguments::Args;
pub use self::call::call;
pub use self::channel::{ReceiveError, Receiver, SendError, Sender, channel};
pub use self::guard::refuse_processes;
pub use self::logging::forward_logging;
pub use self::module::Module;
pub use self::raise::Raise;
pub use self::state::{Counter, State, StateError};

/// Something of Rust's that Python has an object for: what [`Value::Native`](crate::Value::Native) holds.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub enum Native {
    /// `pelton.Sender`
    Sender(Sender),
    /// `pelton.Receiver`
    Receiver(Receiver),
    /// `pelton.State`
    State(State),
}

impl Native {
    /// What Python calls the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Native::Sender(_) => "Sender",
            Native::Receiver(_) => "Receiver",
            Native::State(_) => "State",
        }
    }

    pub(crate) fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Native::Sender(sender) => Bound::new(py, channel_ends::SenderEnd(sender.clone()))?.into_any(),
            Native::Receiver(receiver) => Bound::new(py, channel_ends::ReceiverEnd(receiver.clone()))?.into_any(),
            Native::State(state) => Bound::new(py, state_dict::StateDict(state.clone()))?.into_any(),
        })
    }

    /// What an object is of these, if it is any.
    ///
    /// # Safety
    /// It is alive, and the interpreter lock is held.
    pub(crate) unsafe fn from_python(object: *mut PyObject) -> Option<Native> {
        // SAFETY: as the caller says.
        let object = unsafe { Bound::<PyAny>::from_borrowed_ptr(Python::assume_attached(), object) };
        if let Ok(end) = object.cast::<channel_ends::SenderEnd>() {
            return Some(Native::Sender(end.get().0.clone()));
        }
        if let Ok(end) = object.cast::<channel_ends::ReceiverEnd>() {
            return Some(Native::Receiver(end.get().0.clone()));
        }
        object.cast::<state_dict::StateDict>().ok().map(|state| Native::State(state.get().0.clone()))
    }
}

/// Puts the types that Python code needs by name into the package `pelton`.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
    let package = py.import("pelton")?;
    package.setattr("Sender", py.get_type::<channel_ends::SenderEnd>())?;
    package.setattr("Receiver", py.get_type::<channel_ends::ReceiverEnd>())?;
    package.setattr("ChannelClosed", py.get_type::<channel_ends::ChannelClosed>())?;
    package.setattr("channel", pyo3::wrap_pyfunction!(channel_ends::make_channel, &package)?)?;
    package.setattr("State", py.get_type::<state_dict::StateDict>())
}

impl fmt::Debug for Native {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

macro_rules! natives {
    ($($type:ident),*) => {
        $(
            impl From<$type> for crate::Value {
                fn from(native: $type) -> crate::Value {
                    crate::Value::Native(Native::$type(native))
                }
            }

            impl TryFrom<crate::Value> for $type {
                type Error = crate::ConversionError;

                fn try_from(value: crate::Value) -> Result<$type, crate::ConversionError> {
                    match value {
                        crate::Value::Native(Native::$type(native)) => Ok(native),
                        other => Err(crate::ConversionError::wrong_type(stringify!($type), &other)),
                    }
                }
            }
        )*
    };
}

natives!(Sender, Receiver, State);
