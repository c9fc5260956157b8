//! Child processes.
//!
//! A [`Command`] describes a process, as [`std::process::Command`] does. [`spawn`](Command::spawn) starts it: its standard
//! input and outputs can be connections, with handlers, codecs, back-pressure and half-close. [`output`](Command::output) runs
//! it and collects what it writes.
//!
//! ```
//! use pelton::process::Command;
//! use pelton::Reactor;
//!
//! let mut reactor = Reactor::new()?;
//! let output = Command::new("echo").arg("hello").output(&mut reactor);
//! let output = reactor.block_on(output)??;
//! assert!(output.status.success());
//! assert_eq!(output.stdout, b"hello\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The end of a child
//!
//! The reactor learns about the exit of a child from the system, on Linux through a pidfd, and waits for it then. It never
//! blocks, and no child remains as a zombie: neither if nobody asks for the status, nor if the [`Child`] is dropped, nor if
//! the reactor is stopped or dropped. In the last case, a thread of the process waits for the remaining children.
//!
//! A child that is alive when its `Child` or the reactor is dropped keeps running, unless its command says
//! [`kill_on_drop`](Command::kill_on_drop). [Draining](crate::Reactor::drain) waits for connections to children and for
//! [`output`](Command::output), but not for other children: take a [`Hold`](crate::Hold) for these.
//!
//! # Files
//!
//! A child inherits the files that it is given as its standard input, output and error, and no others: all descriptors of
//! the reactor are closed when a program is executed.

mod child;
mod command;
mod output;
mod reaper;
pub(crate) mod watch;

pub(crate) use child::ChildProcess;
pub use child::{Child, ChildId};
pub use command::Command;
pub use output::{OutputStream, ProcessError};
pub use std::process::{ExitStatus, Output, Stdio};
pub use watch::{Exited, ProcessWatchId};
