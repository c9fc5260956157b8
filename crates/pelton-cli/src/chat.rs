//! `pelton chat`: a chat room for telnet.
//!
//! `lines.rs` splits bytes into lines, `guest.rs` is one connection, and `room.rs` knows who is present and delivers lines.

mod guest;
mod lines;
mod room;

use std::io;

use clap::Args;
use pelton::{Address, Builder, Error, Sharing, WaterMarks};

use crate::serving::{self, ServerOptions, Worker};
use guest::Guest;
use room::{Door, GuestId};

#[derive(Args)]
pub struct Options {
    /// Address to listen on: 127.0.0.1:7008, [::1]:7008, unix:/path, unix:@name; port 0 picks a free one. May be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7008")]
    listen: Vec<Address>,

    #[command(flatten)]
    server: ServerOptions,
}

/// A guest with this much queued output does not read: about a hundred lines, on top of the kernel's buffers.
const MOST_WAITING: usize = 128 * 1024;

fn tune(builder: Builder) -> Builder {
    builder.water_marks(WaterMarks { most: MOST_WAITING, ..WaterMarks::default() })
}

/// Runs until a signal stops it. Calls `say` with each address as soon as it accepts connections.
pub fn run(options: &Options, say: impl Fn(&str) -> io::Result<()>) -> Result<(), Error> {
    let reactors = options.server.start(tune)?;
    let door = Door::new(reactors.handles());
    let serve = move |reactor: &mut pelton::Reactor| {
        let worker = reactor.try_state().map_or(0, |Worker(number)| *number);
        Guest::new(door.clone(), worker)
    };
    // Connections are handed over from one listener, so the port belongs to this process alone: a second process on the same port
    // would be a second room.
    serving::serve(reactors, "chatting", &options.listen, Sharing::HandOver, serve, say)
}
