//! One guest: what it types, and what it is told.

use pelton::{Chunk, Connection, Io, Reactor, Reason};

use super::lines::{LONGEST, Line, Lines};
use super::room::{self, Answer, Busy};
use super::{Door, Place};

/// Longer names would leave no room for what is said.
const LONGEST_NAME: usize = 20;

const HELP: &str = "\
What you type, everybody else reads. And there are:\r
  /who        who is here\r
  /me TEXT    say what you do: /me waves\r
  /quit       leave\r
";

pub struct Guest {
    door: Door,
    worker: usize,
    lines: Lines,
    stage: Stage,
    /// Known as soon as it is open.
    place: Option<Place>,
}

#[derive(PartialEq)]
enum Stage {
    /// To be asked for its name.
    Nameless,
    /// The room has yet to say whether it may have its name. What it types meanwhile has to wait.
    Asking,
    In,
}

impl Guest {
    pub fn new(door: Door, worker: usize) -> Guest {
        Guest { door, worker, lines: Lines::default(), stage: Stage::Nameless, place: None }
    }

    /// The room lets it know something.
    pub fn told(&mut self, io: &mut Io<'_>, answer: Answer) {
        let text = match answer {
            Answer::Welcome { others } => {
                self.stage = Stage::In;
                match &others[..] {
                    [] => "Nobody else is here yet. /help shows what you can do.".to_owned(),
                    _ => format!("Here already: {}. /help shows what you can do.", others.join(", ")),
                }
            }
            Answer::Taken { name } => {
                self.stage = Stage::Nameless;
                format!("There is a {name} already. Which other name would you like?")
            }
            Answer::Who { names } => format!("Here are: {}.", names.join(", ")),
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
                Line::TooLong => say(io, &format!("That was too long: a line has {LONGEST} bytes at most.")),
                Line::Text(line) if self.stage == Stage::Nameless => self.ask_for_name(io, line.trim()),
                Line::Text(line) => self.act_on(io, line.trim()),
            }
        }
    }

    fn ask_for_name(&mut self, io: &mut Io<'_>, name: &str) {
        let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_');
        match self.place {
            _ if name == "/quit" => quit(io),
            Some(place) if (1..=LONGEST_NAME).contains(&name.chars().count()) && name.chars().all(fits) => {
                self.stage = Stage::Asking;
                io.pause();
                self.door.enter(place, name.to_owned());
            }
            _ => say(io, &format!("A name has up to {LONGEST_NAME} letters, digits, - or _. Which would you like?")),
        }
    }

    fn act_on(&mut self, io: &mut Io<'_>, line: &str) {
        let Some(place) = self.place else { return };
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = rest.trim().to_owned();
        let said = match command {
            "" => Ok(()),
            "/quit" => {
                quit(io);
                Ok(())
            }
            "/who" => {
                self.door.who(place);
                Ok(())
            }
            "/help" => {
                send(io, HELP);
                Ok(())
            }
            "/me" if !text.is_empty() => self.door.say(place, move |name| format!("* {name} {text}")),
            _ if command.starts_with('/') => {
                say(io, &format!("There is no {command}; /help shows what there is."));
                Ok(())
            }
            _ => {
                let line = line.to_owned();
                self.door.say(place, move |name| format!("{name}: {line}"))
            }
        };
        if let Err(Busy) = said {
            say(io, "Too much is being said at once: nobody has heard that.");
        }
    }
}

impl Connection for Guest {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.place = Some(Place { worker: self.worker, id: io.id() });
        say(io, "Welcome. Which name would you like to go by?");
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
        tracing::debug!(%reason, "a guest is gone");
        if let Some(place) = self.place {
            room::forget(reactor, place.id);
            if self.stage != Stage::Nameless {
                self.door.leave(place);
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
    // Either it is being closed, or so much waits for it that the room is about to drop it.
    if let Err(error) = io.send(text.as_bytes()) {
        tracing::debug!(%error, "a guest was not told something");
    }
}
