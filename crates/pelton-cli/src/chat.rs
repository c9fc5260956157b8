//! `pelton chat`: a chat room for telnet.
//!
//! `lines.rs` splits bytes into lines, `guest.rs` is one connection, and `room.rs` knows who is present and delivers lines.
//! `wall.rs` connects the rooms of several servers.

mod guest;
mod lines;
mod room;
mod wall;

use std::io;
use std::sync::Arc;

use clap::Args;
use pelton::{Address, Builder, Error, Sharing, WaterMarks};

use crate::serving::{self, ServerOptions, Worker};
use guest::Guest;
use room::{Door, GuestId};
use wall::Wall;

#[derive(Args)]
pub struct Options {
    /// Address to listen on: 127.0.0.1:7008, [::1]:7008, unix:/path, unix:@name; port 0 picks a free one. May be repeated
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7008")]
    listen: Vec<Address>,

    /// Redis server that connects the rooms of several chat servers: redis://host, rediss://host, unix:///path
    #[arg(long, value_name = "URL")]
    broker: Option<String>,

    /// Name of the room on the broker: servers with the same name are one room
    #[arg(long, value_name = "NAME", default_value = "lobby", requires = "broker")]
    room: String,

    #[command(flatten)]
    server: ServerOptions,
}

/// Why the chat ended.
pub enum Failure {
    /// The broker's URL is malformed. It is not shown, because it may contain a password.
    Usage(String),
    Other(Error),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Other(error.into())
    }
}

/// A guest with this much queued output does not read: about a hundred lines, on top of the kernel's buffers.
const MOST_WAITING: usize = 128 * 1024;

fn tune(builder: Builder) -> Builder {
    builder.water_marks(WaterMarks { most: MOST_WAITING, ..WaterMarks::default() })
}

/// Runs until a signal stops it. Calls `say` with each address as soon as it accepts connections.
pub fn run(options: &Options, say: impl Fn(&str) -> io::Result<()>) -> Result<(), Failure> {
    // Parsed here and not with the command line, whose errors show the value.
    let broker = options.broker.as_ref().map(|url| url.parse::<pelton_redis::Options>()).transpose();
    let broker = broker.map_err(|error| Failure::Usage(format!("--broker: {error}")))?.map(Arc::new);
    let reactors = options.server.start(tune)?;
    let wall = match &broker {
        Some(broker) => Some(Wall::open(&reactors.handles()[0], broker, &options.room)?),
        None => None,
    };
    let door = Door::new(reactors.handles(), wall);
    door.open();
    let serve = move |reactor: &mut pelton::Reactor| {
        let worker = reactor.try_state().map_or(0, |Worker(number)| *number);
        Guest::new(door.clone(), worker)
    };
    // Connections are handed over from one listener, so the port belongs to this process alone: a second process on the same port
    // would be a second room.
    Ok(serving::serve(reactors, "chatting", &options.listen, Sharing::HandOver, serve, say)?)
}
