//! Runs child processes: collects the output of one, talks to another, and ends a third that takes too long.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin run-children
//! sort: exit status: 0, "apple\\npear\\n"
//! sleep: run "sleep": it took longer than 100ms
//! child says: HELLO
//! child says: GOODBYE
//! child: exit status: 0
//! ```

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use pelton::codec::Lines;
use pelton::process::{Command, Stdio};
use pelton::{Chunk, Connection, Framed, Io, Protocol, Reactor, Replies};

/// Writes two lines to the standard input of a child, and ends it.
struct Greet;

impl Connection for Greet {
    fn opened(&mut self, io: &mut Io<'_>) {
        if io.send(b"hello\ngoodbye\n").is_ok() {
            io.finish();
        }
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

/// Prints the lines that a child writes.
struct Print;

impl Protocol for Print {
    type Message = String;

    fn process(&mut self, line: String, _: &mut Replies<'_, String>) {
        println!("child says: {line}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;

    Command::new("sort").input("pear\napple\n").output(&mut reactor).done(|_, output| match output {
        Ok(output) => println!("sort: {}, {:?}", output.status, String::from_utf8_lossy(&output.stdout)),
        Err(error) => println!("sort: {error}"),
    });

    let limit = Duration::from_millis(100);
    Command::new("sleep").arg("60").time_limit(limit).output(&mut reactor).done(|reactor, output| {
        match output {
            Ok(output) => println!("sleep: {}", output.status),
            Err(error) => println!("sleep: {error}"),
        }
        if let Err(error) = converse(reactor) {
            println!("child: {error}");
            reactor.state::<Exited>().0 = true;
        }
    });

    // The exit of a child may come before its last output is read: wait for both.
    reactor.run_until(|reactor| reactor.state::<Exited>().0 && reactor.connection_count() == 0)?;
    Ok(())
}

/// Whether the last child has exited.
#[derive(Default)]
struct Exited(bool);

fn converse(reactor: &mut Reactor) -> Result<(), pelton::Error> {
    let upper = Command::new("tr").args(["a-z", "A-Z"]);
    let mut child = upper.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn(reactor)?;
    if let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) {
        reactor.adopt(stdin, Greet)?;
        reactor.adopt(stdout, Framed::new(Lines::default(), Print))?;
    }
    child.on_exit(reactor, |reactor, status| {
        match status {
            Ok(status) => println!("child: {status}"),
            Err(error) => println!("child: {error}"),
        }
        reactor.state::<Exited>().0 = true;
    });
    Ok(())
}
