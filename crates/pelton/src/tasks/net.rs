//! Streams, listeners and datagrams for `async` code.
//!
//! They stand on the same [connections](crate::Connection) as handlers do, so they run on every engine, with the same limits
//! and the same back-pressure; what a handler would be told, they keep until it is asked for.
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
//! All of them belong to the thread and the reactor they were made on. They are made, written to and asked for addresses inside
//! its tasks; reading and dropping may be done anywhere on the thread.

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
        Err(io::Error::other(
            "there is no current reactor: this has to be done inside a task of one, or in Reactor::enter",
        ))
    })
}

/// Calls `f` with the current reactor, if that is the one that something belongs to.
fn current_of<T>(local: &Rc<Local>, f: impl FnOnce(&mut Reactor) -> io::Result<T>) -> io::Result<T> {
    current(|reactor| {
        if Rc::ptr_eq(&reactor.local, local) {
            f(reactor)
        } else {
            Err(io::Error::other("this belongs to another reactor than the current one"))
        }
    })
}

/// The error that it is to use something which is over for this reason. The reason is inside.
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
        Reason::Overflow | Reason::Unanswered | Reason::Panicked | Reason::Detached | Reason::HandedOver => {
            io::ErrorKind::Other
        }
    };
    io::Error::new(kind, Arc::clone(reason))
}

/// Whether everything that was to come has come, and what was sent has been sent.
fn is_clean(reason: &Reason) -> bool {
    matches!(reason, Reason::Local | Reason::Finished)
}
