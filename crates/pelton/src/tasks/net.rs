//! Streams, listeners and datagrams for `async` code.
//!
//! They are built on the same [connections](crate::Connection) as handlers. They therefore run on every engine, with
//! the same limits and back-pressure. They buffer the events that a handler would receive until the code asks for them.
//!
//! ```
//! use futures::{AsyncReadExt, AsyncWriteExt};
//! use pelton::net::{Listener, Stream};
//! use pelton::{Reactor, task};
//!
//! let mut reactor = Reactor::new()?;
//! reactor.block_on(async {
//!     let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap())?;
//!     let address = listener.local_address()?;
//!     task::spawn(async move {
//!         let mut stream = listener.accept().await?;
//!         stream.write_all(b"hello").await?;
//!         stream.close().await
//!     });
//!     let mut stream = Stream::connect(&address).await?;
//!     let mut greeting = String::new();
//!     stream.read_to_string(&mut greeting).await?;
//!     assert_eq!(greeting, "hello");
//!     Ok::<(), std::io::Error>(())
//! })??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All of them belong to the thread and the reactor that they were created on. Create them, write to them and ask for
//! addresses inside the reactor's tasks. Reading and dropping work anywhere on the thread.

mod datagrams;
mod listener;
mod pipe;
mod stream;
#[cfg(feature = "tokio")]
mod tokio;

use std::io;
use std::rc::Rc;
use std::sync::Arc;

pub use datagrams::Datagrams;
pub use listener::Listener;
pub use stream::Stream;

use crate::tasks::task::Local;
use crate::{LookupFailure, Reactor, Reason};

/// Calls `f` with the current reactor.
fn current<T>(f: impl FnOnce(&mut Reactor) -> io::Result<T>) -> io::Result<T> {
    Reactor::with_current(f).unwrap_or_else(|| {
        Err(io::Error::other("there is no current reactor: call this inside one of its tasks, or in Reactor::enter"))
    })
}

/// Calls `f` with the current reactor, if `local` belongs to it.
fn current_of<T>(local: &Rc<Local>, f: impl FnOnce(&mut Reactor) -> io::Result<T>) -> io::Result<T> {
    current(|reactor| {
        if Rc::ptr_eq(&reactor.local, local) {
            f(reactor)
        } else {
            Err(io::Error::other("this belongs to a reactor other than the current one"))
        }
    })
}

/// Returns the error for using something that has ended for this reason, which it contains.
fn error_of(reason: &Arc<Reason>) -> io::Error {
    let kind = match &**reason {
        Reason::Local | Reason::Finished => io::ErrorKind::BrokenPipe,
        Reason::Reset => io::ErrorKind::ConnectionReset,
        Reason::Refused { .. } => io::ErrorKind::ConnectionRefused,
        Reason::Unreachable { error, .. } | Reason::Failed(error) => error.kind(),
        Reason::Unresolved(error) => match &error.failure {
            LookupFailure::Failed(error) => error.kind(),
            _ => io::ErrorKind::NotFound,
        },
        Reason::AllFailed { attempts, .. } => {
            attempts.last().map_or(io::ErrorKind::NotFound, |attempt| attempt.error.kind())
        }
        Reason::TimedOut { .. } => io::ErrorKind::TimedOut,
        Reason::Frame(_) => io::ErrorKind::InvalidData,
        Reason::Truncated => io::ErrorKind::UnexpectedEof,
        Reason::Layer(error) => error.downcast_ref().map_or(io::ErrorKind::Other, io::Error::kind),
        Reason::Overflow | Reason::Unanswered | Reason::Panicked | Reason::Detached | Reason::HandedOver => {
            io::ErrorKind::Other
        }
    };
    io::Error::new(kind, Arc::clone(reason))
}

/// Returns whether all input has arrived and all output has been sent.
fn is_clean(reason: &Reason) -> bool {
    matches!(reason, Reason::Local | Reason::Finished)
}
