//! Watches a descriptor that the reactor does not own: standard input.
//!
//! ```text
//! $ (echo one; sleep 1; echo two; echo three) | cargo run -p pelton-examples --bin watch-stdin
//! 1 line so far
//! 3 lines so far
//! the end, after 3 lines
//! ```
//!
//! It also works in a terminal: type lines, and end with ctrl-d.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;

use pelton::{Interest, Reactor};

/// A descriptor that is always ready, such as a file on disk, cannot be polled: epoll refuses it (EPERM), and kqueue reports nothing at
/// the end of the file.
const NOT_WATCHABLE: &str = "standard input is a file or the like, which is always ready: there is nothing to watch. Try: cat FILE | watch-stdin";

fn main() -> Result<(), Box<dyn Error>> {
    // Rust's own `Stdin` reads ahead into a buffer that the kernel cannot see. A `File` has no buffer.
    let stdin = io::stdin();
    let mut input = File::from(stdin.as_fd().try_clone_to_owned()?);
    if input.metadata()?.is_file() {
        return Err(NOT_WATCHABLE.into());
    }

    let mut reactor = Reactor::new()?;
    let (mut bytes, mut lines) = ([0; 4096], 0);
    let watching = reactor.watch(&stdin, Interest::READABLE, move |reactor, _| {
        // It is readable, so one read does not block. A second one might; any remaining input makes it readable again next turn.
        match input.read(&mut bytes) {
            Ok(0) => {
                println!("the end, after {}", count(lines));
                reactor.stop();
            }
            Ok(length) => {
                lines += bytes[..length].iter().filter(|byte| **byte == b'\n').count();
                println!("{} so far", count(lines));
            }
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => {
                eprintln!("read standard input: {error}");
                reactor.stop();
            }
        }
    });
    watching.map_err(|error| match io::Error::from(error) {
        error if error.kind() == ErrorKind::PermissionDenied => NOT_WATCHABLE.into(),
        error => error.to_string(),
    })?;

    reactor.run()?;
    Ok(())
}

fn count(lines: usize) -> String {
    if lines == 1 { "1 line".into() } else { format!("{lines} lines") }
}
