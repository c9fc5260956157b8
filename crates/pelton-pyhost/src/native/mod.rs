//! Rust functions, channels and state for use from Python.
//!
//! - [`Module`]: Rust functions, including asynchronous ones, as a module that Python imports. [`call`] calls back
//!   into Python from such a function, on the same thread.
//! - [`channel`]: bounded queues between the two, with blocking and asynchronous methods on both sides.
//! - [`State`]: a dictionary shared by both, with atomic counters.
//! - [`forward_logging`]: forwards Python's logging to `tracing`.
//! - [`refuse_processes`]: keeps Python code from forking or executing programs.
//!
//! None of it holds the interpreter lock while it runs a program's Rust code or while it waits. So such code may
//! take its own locks, wait for other threads, and call back into Python. Two threads never deadlock because one
//! holds the interpreter lock and the other a lock of the program.
//!
//! | file | contents |
//! |---|---|
//! | `module.rs`, `function.rs`, `arguments.rs`, `raise.rs` | modules, functions, arguments, exceptions |
//! | `coroutine.rs`, `outside.rs` | Rust futures that Python awaits, and how their wakers reach the loop |
//! | `call.rs`, `nesting.rs` | calling Python on the current thread, also while it waits |
//! | `channel.rs`, `channel_ends.rs`, `blocking.rs` | channels, their Python classes, blocking waits |
//! | `state.rs`, `state_dict.rs` | shared state, and its Python class |
//! | `logging.rs`, `callsites.rs` | forwarding of log records, and their callsites |
//! | `guard.rs` | refusing child processes |

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
pub mod nesting;
pub(crate) mod outside;
mod raise;
mod state;
mod state_dict;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::host::{Exception, RefusalKind};

pub use self::arguments::Args;
pub use self::call::call;
pub use self::channel::{ReceiveError, Receiver, SendError, Sender, channel};
pub use self::guard::refuse_processes;
pub use self::logging::forward_logging;
pub use self::module::Module;
pub use self::raise::Raise;
pub use self::state::{Counter, State, StateError};

/// A Rust object with a Python wrapper, as held by [`Value::Native`](crate::Value::Native).
///
/// A task drops its arguments of this kind when it starts, because Python owns them then. So a channel is closed
/// when Python code drops its end, even while the task's reply is kept.
pub struct Native {
    kind: &'static str,
    /// `None` after it was handed over.
    thing: Mutex<Option<Thing>>,
}

#[derive(Clone, PartialEq)]
enum Thing {
    Sender(Sender),
    Receiver(Receiver),
    State(State),
}

impl Native {
    fn new(thing: Thing) -> Native {
        let kind = match thing {
            Thing::Sender(_) => "Sender",
            Thing::Receiver(_) => "Receiver",
            Thing::State(_) => "State",
        };
        Native { kind, thing: Mutex::new(Some(thing)) }
    }

    /// Returns Python's name of the type.
    pub fn type_name(&self) -> &'static str {
        self.kind
    }

    /// Locks. Code under this lock never panics.
    fn thing(&self) -> MutexGuard<'_, Option<Thing>> {
        self.thing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops it, because Python now owns it.
    pub(crate) fn hand_over(&self) {
        let thing = self.thing().take();
        drop(thing);
    }

    pub(crate) fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let thing = self.thing().clone();
        Ok(match thing {
            Some(Thing::Sender(sender)) => Bound::new(py, channel_ends::SenderEnd(sender))?.into_any(),
            Some(Thing::Receiver(receiver)) => Bound::new(py, channel_ends::ReceiverEnd(receiver))?.into_any(),
            Some(Thing::State(state)) => Bound::new(py, state_dict::StateDict(state))?.into_any(),
            None => return Err(PyRuntimeError::new_err(format!("the {} has already been handed over", self.kind))),
        })
    }

    /// Returns the Rust object behind a Python object, if it wraps one.
    pub(crate) fn from_python(object: &Bound<'_, PyAny>) -> Option<Native> {
        if let Ok(end) = object.cast::<channel_ends::SenderEnd>() {
            return Some(Native::new(Thing::Sender(end.get().0.clone())));
        }
        if let Ok(end) = object.cast::<channel_ends::ReceiverEnd>() {
            return Some(Native::new(Thing::Receiver(end.get().0.clone())));
        }
        let state = object.cast::<state_dict::StateDict>().ok()?;
        Some(Native::new(Thing::State(state.get().0.clone())))
    }
}

/// Acquires the interpreter lock. Errors name the operation `doing`.
fn attached<T>(doing: &str, f: impl FnOnce(Python<'_>) -> PyResult<T>) -> Result<T, Exception> {
    let error = |type_name, message| Exception {
        type_name,
        message: format!("{doing}: {message}"),
        traceback: String::new(),
        object: None,
    };
    let outcome = Python::try_attach(|py| {
        f(py).map_err(|raised| {
            let type_name = raised.get_type(py).name().map(|name| name.to_string()).unwrap_or_default();
            error(type_name, raised.value(py).to_string())
        })
    });
    outcome.unwrap_or_else(|| Err(error("RuntimeError".to_owned(), RefusalKind::NotRunning.to_string())))
}

/// Adds the types that Python code refers to by name to the package `pelton`.
pub(crate) fn install(py: Python<'_>) -> PyResult<()> {
    let package = py.import("pelton")?;
    package.setattr("Sender", py.get_type::<channel_ends::SenderEnd>())?;
    package.setattr("Receiver", py.get_type::<channel_ends::ReceiverEnd>())?;
    package.setattr("ChannelClosed", py.get_type::<channel_ends::ChannelClosed>())?;
    package.setattr("channel", pyo3::wrap_pyfunction!(channel_ends::make_channel, &package)?)?;
    package.setattr("State", py.get_type::<state_dict::StateDict>())
}

impl Clone for Native {
    fn clone(&self) -> Native {
        Native { kind: self.kind, thing: Mutex::new(self.thing().clone()) }
    }
}

impl PartialEq for Native {
    /// Returns whether both are the same object.
    fn eq(&self, other: &Native) -> bool {
        let thing = self.thing().clone();
        let other = other.thing().clone();
        thing == other
    }
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
                    crate::Value::Native(Box::new(Native::new(Thing::$type(native))))
                }
            }

            impl TryFrom<crate::Value> for $type {
                type Error = crate::ConversionError;

                fn try_from(value: crate::Value) -> Result<$type, crate::ConversionError> {
                    if let crate::Value::Native(native) = &value
                        && let Some(Thing::$type(thing)) = native.thing().clone()
                    {
                        return Ok(thing);
                    }
                    Err(crate::ConversionError::wrong_type(stringify!($type), &value))
                }
            }
        )*
    };
}

natives!(Sender, Receiver, State);
