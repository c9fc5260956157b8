//! `pelton chat`: a room to talk in, by telnet.
//!
//! `lines.rs` turns bytes into lines, `guest.rs` is one connection, and `room.rs` is who is there and who hears what.

mod guest;
mod lines;
mod room;

use std::io;

use clap::Args;
use pelton::{Address, Builder, Error, Sharing, WaterMarks};

use crate::serving::{self, ServerOptions, Worker};
use guest::Guest;
use room::{Door, Place};

#[derive(Args)]
pub struct Options {
    /// Where to listen: 127.0.0.1:7008, [::1]:7008, unix:/path, unix:@name; port 0 picks a free one. May be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7008")]
    listen: Vec<Address>,

    #[command(flatten)]
    server: ServerOptions,
}

/// A guest who has this much waiting does not read: some hundred lines, beside what the kernel holds.
const MOST_WAITING: usize = 128 * 1024;

fn tune(builder: Builder) -> Builder {
    builder.water_marks(WaterMarks { most: MOST_WAITING, ..WaterMarks::default() })
}

/// Runs until it is told to stop by a signal. `say` is given each address as soon as connections are taken there.
pub fn run(options: &Options, say: impl Fn(&str) -> io::Result<()>) -> Result<(), Error> {
    let reactors = options.server.start(tune)?;
    let door = Door::new(reactors.handles());
    let serve = move |reactor: &mut pelton::Reactor| {
        let worker = reactor.try_state().map_or(0, |Worker(number)| *number);
        Guest::new(door.clone(), worker)
    };
    // Handed over, so that the port is this program's alone: a second one on the same port would be a second room.
    serving::serve(reactors, "chatting", &options.listen, Sharing::HandOver, serve, say)
}
