//! A small chat room, and two clients that talk in it.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin chat
//! ann hears: welcome, ann; you are alone
//! bob hears: welcome, bob; here are ann
//! ann hears: bob has joined
//! bob hears: ann: hello, bob
//! ann hears: bob: hello and goodbye
//! ann hears: bob has left
//! the room is empty
//! ```
//!
//! The members are in the reactor's state, so the connections share them without locks or reference counts. To send
//! to another member, send on its connection, by id. To ask another member's handler something, visit
//! it. `pelton chat` is a larger version, on several threads.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::{Chunk, Connection, ConnectionId, Io, Reactor, Reason};

/// The members of the room.
#[derive(Default)]
struct Room(Vec<ConnectionId>);

/// The server side of one member. The first line it sends is its name.
#[derive(Default)]
struct Guest {
    name: Option<String>,
    id: Option<ConnectionId>,
    lines: Lines,
}

impl Connection for Guest {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        for line in self.lines.cut(&chunk) {
            match &self.name {
                Some(name) => tell_others(io.reactor(), self.id, &format!("{name}: {line}")),
                None => self.enter(io, line),
            }
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, _: Reason) {
        let Some(name) = &self.name else { return };
        reactor.state::<Room>().0.retain(|id| Some(*id) != self.id);
        tell_others(reactor, self.id, &format!("{name} has left"));
        if reactor.state::<Room>().0.is_empty() {
            println!("the room is empty");
            reactor.stop();
        }
    }
}

impl Guest {
    fn enter(&mut self, io: &mut Io<'_>, name: String) {
        let present = io.reactor().state::<Room>().0.clone();
        // Each handler owns its name. A visit cannot reach the handler that is running, so not the one that asks.
        let others: Vec<String> = present
            .iter()
            .filter_map(|id| io.reactor().visit(*id, |guest: &mut Guest, _| guest.name.clone()).flatten())
            .collect();
        let company =
            if others.is_empty() { "you are alone".to_owned() } else { format!("here are {}", others.join(", ")) };
        send(io, &format!("welcome, {name}; {company}"));
        let id = io.id();
        io.reactor().state::<Room>().0.push(id);
        tell_others(io.reactor(), Some(id), &format!("{name} has joined"));
        (self.name, self.id) = (Some(name), Some(id));
    }
}

fn tell_others(reactor: &mut Reactor, except: Option<ConnectionId>, line: &str) {
    let present = reactor.state::<Room>().0.clone();
    for id in present.into_iter().filter(|id| Some(*id) != except) {
        if let Some(mut io) = reactor.connection(id) {
            send(&mut io, line);
        }
    }
}

fn send(io: &mut Io<'_>, line: &str) {
    // Fails if too much is queued: a member that does not read must not exhaust the memory.
    if io.send(format!("{line}\n").as_bytes()).is_err() {
        io.close();
    }
}

/// Splits input into lines. A stream has no message boundaries: a line may arrive in parts, or several at once.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn cut(&mut self, bytes: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(bytes);
        let mut lines = Vec::new();
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        lines
    }
}

/// A client that connects, says its name, and reacts to lines.
struct Talker {
    name: &'static str,
    /// What to do after a line with this ending.
    script: &'static [(&'static str, Deed)],
    lines: Lines,
}

enum Deed {
    Say(&'static str),
    SayAndLeave(&'static str),
    Leave,
}

impl Connection for Talker {
    fn opened(&mut self, io: &mut Io<'_>) {
        send(io, self.name);
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        for line in self.lines.cut(&chunk) {
            println!("{} hears: {line}", self.name);
            match self.script.iter().find(|(cue, _)| line.ends_with(cue)) {
                Some((_, Deed::Say(answer))) => send(io, answer),
                Some((_, Deed::SayAndLeave(answer))) => {
                    send(io, answer);
                    io.close_after_writing();
                }
                Some((_, Deed::Leave)) => io.close(),
                None => {}
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let listener = reactor.listen("127.0.0.1:0", |_| Guest::default())?;
    let address = reactor.listening_on(listener).expect("the listener was just started").clone();
    let talk = |reactor: &mut Reactor, name, script| {
        reactor.connect(&address, Talker { name, script, lines: Lines::default() })
    };
    talk(&mut reactor, "ann", &[("bob has joined", Deed::Say("hello, bob")), ("bob has left", Deed::Leave)])?;
    reactor.run_until(|reactor| reactor.state::<Room>().0.len() == 1)?;
    talk(&mut reactor, "bob", &[("hello, bob", Deed::SayAndLeave("hello and goodbye"))])?;
    reactor.run()?;
    Ok(())
}
