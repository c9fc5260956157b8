//! One guest: its input, and the replies it gets.

use pelton::{Chunk, Connection, Io, Reactor, Reason};

use super::lines::{LONGEST, Line, Lines};
use super::room::{self, Answer, Busy};
use super::{Door, GuestId};

/// The maximum length of a name, in characters. Longer names would leave too little room for the text.
const LONGEST_NAME: usize = 20;

const UNDELIVERED: &str = "The room is overloaded: your line was not delivered.";

const HELP: &str = "\
Everybody else reads what you type. Commands:\r
  /who        list the guests\r
  /me TEXT    describe an action: /me waves\r
  /quit       leave\r
";

pub struct Guest {
    door: Door,
    worker: usize,
    lines: Lines,
    stage: Stage,
    /// Set as soon as the connection is open.
    id: Option<GuestId>,
}

#[derive(PartialEq)]
enum Stage {
    /// Not yet asked for a name.
    Nameless,
    /// Waiting for the room to accept the name. Further input is held back until then.
    Asking,
    In,
}

impl Guest {
    pub fn new(door: Door, worker: usize) -> Guest {
        Guest { door, worker, lines: Lines::default(), stage: Stage::Nameless, id: None }
    }

    /// Handles an answer of the room.
    pub fn told(&mut self, io: &mut Io<'_>, answer: Answer) {
        let text = match answer {
            Answer::Welcome { others } => {
                self.stage = Stage::In;
                match &others[..] {
                    [] => "Nobody else is here yet. Type /help for the commands.".to_owned(),
                    _ => format!("Also here: {}. Type /help for the commands.", others.join(", ")),
                }
            }
            Answer::Taken { name } => {
                self.stage = Stage::Nameless;
                format!("{name} is taken. Please choose another name:")
            }
            Answer::Who { names } => format!("Here: {}.", names.join(", ")),
            Answer::Undelivered => UNDELIVERED.to_owned(),
        };
        say(io, &text);
        if io.is_paused() {
            io.resume();
            self.read_lines(io);
        }
    }

    fn read_lines(&mut self, io: &mut Io<'_>) {
        while self.stage != Stage::Asking
            && io.is_open()
            && let Some(line) = self.lines.next()
        {
            match line {
                Line::TooLong => say(io, &format!("Line too long: the limit is {LONGEST} bytes.")),
                Line::Text(line) if self.stage == Stage::Nameless => self.ask_for_name(io, line.trim()),
                Line::Text(line) => self.act_on(io, line.trim()),
            }
        }
    }

    fn ask_for_name(&mut self, io: &mut Io<'_>, name: &str) {
        let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_');
        match self.id {
            _ if name == "/quit" => quit(io),
            Some(guest) if (1..=LONGEST_NAME).contains(&name.chars().count()) && name.chars().all(fits) => {
                self.stage = Stage::Asking;
                io.pause();
                self.door.enter(guest, name.to_owned());
            }
            _ => say(io, &format!("A name has up to {LONGEST_NAME} letters, digits, - or _. Please choose one:")),
        }
    }

    fn act_on(&mut self, io: &mut Io<'_>, line: &str) {
        let Some(guest) = self.id else { return };
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = rest.trim().to_owned();
        let said = match command {
            "" => Ok(()),
            "/quit" => {
                quit(io);
                Ok(())
            }
            "/who" => {
                self.door.who(guest);
                Ok(())
            }
            "/help" => {
                send(io, HELP);
                Ok(())
            }
            "/me" if !text.is_empty() => self.door.say(guest, move |name| format!("* {name} {text}")),
            _ if command.starts_with('/') => {
                say(io, &format!("Unknown command {command}; type /help for the commands."));
                Ok(())
            }
            _ => {
                let line = line.to_owned();
                self.door.say(guest, move |name| format!("{name}: {line}"))
            }
        };
        if let Err(Busy) = said {
            say(io, UNDELIVERED);
        }
    }
}

impl Connection for Guest {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.id = Some(GuestId { worker: self.worker, id: io.id() });
        say(io, "Welcome. What is your name?");
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.lines.push(&chunk);
        self.read_lines(io);
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        say(io, "* The room is closing.");
        io.close_after_writing();
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        tracing::debug!(%reason, "a guest has left");
        if let Some(guest) = self.id {
            room::forget(reactor, guest.id);
            if self.stage != Stage::Nameless {
                self.door.leave(guest);
            }
        }
    }
}

fn quit(io: &mut Io<'_>) {
    say(io, "Goodbye.");
    io.close_after_writing();
}

fn say(io: &mut Io<'_>, line: &str) {
    send(io, &format!("{line}\r\n"));
}

fn send(io: &mut Io<'_>, text: &str) {
    // Either the connection is closing, or so much is queued for this guest that the room is about to drop it.
    if let Err(error) = io.send(text.as_bytes()) {
        tracing::debug!(%error, "a line was not sent to a guest");
    }
}
