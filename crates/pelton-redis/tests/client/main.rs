//! The client against a real server, and against servers that lie.

mod commands;
mod connecting;
mod faults;
mod liars;
mod sentinel;
#[cfg(target_os = "linux")]
mod syscalls;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Backoff, EventLoop, Promise, Reactor, Rejected};
use pelton_redis::{Client, Command, Error, Options};
use pelton_testing::{RedisServer, run_until};

/// The options for a server, with limits that suit tests: long, because the machine may be busy.
fn options(server: &RedisServer) -> Options {
    quick(server.url().parse().unwrap())
}

/// Waits between attempts are short.
fn quick(options: Options) -> Options {
    let backoff = Backoff::default().start(Duration::from_millis(1)).most(Duration::from_millis(20));
    options.backoff(backoff).time_limit(Duration::from_secs(15)).connect_limit(Duration::from_secs(15))
}

fn open(reactor: &mut Reactor, options: Options) -> Client {
    Client::open(reactor, options).unwrap()
}

/// Runs the loop until the promise is settled.
fn settled<T: 'static>(reactor: &mut EventLoop, promise: Promise<T, Error>) -> Result<T, Error> {
    let outcome = Rc::new(RefCell::new(None));
    let filled = outcome.clone();
    promise.done(move |_, result| *filled.borrow_mut() = Some(result));
    run_until(reactor, |_| outcome.borrow().is_some());
    let outcome = outcome.borrow_mut().take().unwrap();
    outcome.map_err(|rejected| match rejected {
        Rejected::Failed(error) => error,
        other => panic!("{other}"),
    })
}

/// Sends a command and waits for its answer.
fn ask<T: pelton_redis::FromValue + 'static>(
    reactor: &mut EventLoop,
    client: &Client,
    command: Command,
) -> Result<T, Error> {
    let promise = client.ask(reactor, command);
    settled(reactor, promise)
}

fn ping() -> Command {
    Command::new("PING")
}
