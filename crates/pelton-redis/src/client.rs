//! Commands and their answers.
//!
//! `requests.rs` has the queues of commands and matches answers to them; `sender.rs` is the way in from other threads.

mod requests;
mod sender;

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use pelton::{Promise, Reactor};

use self::requests::{Answer, Requests};
pub use self::sender::Sender;
use self::sender::Shared;
use crate::link::Link;
use crate::{Command, ConfigError, Error, FromValue, Options, Value};

/// A client of one server, on one loop. Clones share the connection; when the last one is dropped, and the last
/// [`Sender`], the connection is closed.
///
/// Commands are sent in the order in which they were asked for. Those of one turn go out together, in one write. Answers
/// come in the same order, from the tick queue.
///
/// The client connects by itself, and again when the connection ends. Commands wait for it, up to their
/// [time limit](Options::time_limit). A command whose connection ends before its answer has arrived fails as
/// [interrupted](Error::Interrupted), because it may have run, unless it is [idempotent](Command::idempotent).
///
/// Dropping the last clone does not wait: commands without an answer fail. Redis Cluster is not supported; its redirections
/// are [errors](Error::Server).
///
/// All commands share a connection. One that blocks, such as `BLPOP`, blocks those after it: open another client for it.
///
/// ```no_run
/// use pelton::Reactor;
/// use pelton_redis::{Client, Command};
///
/// let mut reactor = Reactor::new()?;
/// let redis = Client::open(&mut reactor, "redis://localhost")?;
/// let value = reactor.block_on(async move {
///     redis.query::<()>(Command::new("SET").arg("key").arg("value")).await?;
///     redis.query::<Option<String>>(Command::new("GET").arg("key")).await
/// })??;
/// assert_eq!(value.as_deref(), Some("value"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    link: Rc<Link<Requests>>,
    shared: Arc<Shared>,
}

/// The statistics of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ClientStats {
    /// Whether there is a connection that is ready for commands.
    pub connected: bool,
    /// Connections that became ready.
    pub connects: u64,
    /// Connections that ended, and attempts that failed.
    pub outages: u64,
    /// Commands sent, including those sent again.
    pub sent: u64,
    /// Answers, including errors of the server.
    pub answered: u64,
    /// Errors among the answers.
    pub server_errors: u64,
    /// Commands that got no answer in time.
    pub timed_out: u64,
    /// Commands that lost their connection.
    pub interrupted: u64,
    /// Commands that were refused because too many, or too large ones, were waiting.
    pub refused: u64,
    /// Messages that were not answers.
    pub pushed: u64,
    /// Commands that wait for an answer or a connection now, and answers that wait for their callbacks.
    pub in_flight: usize,
}

/// The clients of a loop, in the loop's state. Other threads find them by number.
#[derive(Default)]
struct Clients(HashMap<u64, Rc<Link<Requests>>>);

impl Client {
    /// Opens a client for this URL, or these [`Options`]. It connects in the background.
    pub fn open(
        reactor: &mut Reactor,
        options: impl TryInto<Options, Error: Into<ConfigError>>,
    ) -> Result<Client, ConfigError> {
        let options = options.try_into().map_err(Into::into)?;
        let shared = Shared::new(reactor.handle(), options.in_flight);
        let link = Rc::new(Link::new(Requests::default(), options)?);
        reactor.state::<Clients>().0.insert(shared.id, link.clone());
        link.connect(reactor);
        Ok(Client { link, shared: Arc::new(shared) })
    }

    /// Sends a command, and calls `then` with its answer.
    pub fn call<T: FromValue>(
        &self,
        reactor: &mut Reactor,
        command: Command,
        then: impl FnOnce(&mut Reactor, Result<T, Error>) + 'static,
    ) {
        let then =
            move |reactor: &mut Reactor, answer: Result<Value, Error>| then(reactor, answer.and_then(T::from_value));
        requests::start(&self.link, reactor, command, 1, Answer::Call(Box::new(then)));
    }

    /// Sends a command, and returns a promise of its answer.
    #[track_caller]
    pub fn ask<T: FromValue + 'static>(&self, reactor: &mut Reactor, command: Command) -> Promise<T, Error> {
        let (answer, promise) = promised(reactor);
        requests::start(&self.link, reactor, command, 1, answer);
        promise
    }

    /// Sends a command whose answer does not matter. Errors are counted in the [statistics](Client::stats).
    pub fn tell(&self, reactor: &mut Reactor, command: Command) {
        requests::start(&self.link, reactor, command, 1, Answer::Drop);
    }

    /// Sends a command, and calls `settle` with its answer, at any time and without the loop. It must not call back.
    pub(crate) fn settle(
        &self,
        reactor: &mut Reactor,
        command: Command,
        settle: impl FnOnce(Result<Value, Error>) + 'static,
    ) {
        requests::start(&self.link, reactor, command, 1, Answer::Settle(Box::new(settle)));
    }

    /// Sends a command from a task of this loop, and waits for its answer. The command is sent when the future is polled
    /// first. If the future is dropped, the answer is dropped when it arrives.
    pub async fn query<T: FromValue + 'static>(&self, command: Command) -> Result<T, Error> {
        let name = command.name();
        match self.shared.handle.with_reactor(|reactor| self.ask::<T>(reactor, command)) {
            Some(promise) => promise.await.map_err(|rejected| Error::of(rejected, name)),
            None => Err(Error::Closed { command: name }),
        }
    }

    /// Runs commands as a transaction (`MULTI`, `EXEC`): no command of another client runs in between. Returns a promise of
    /// their answers. A command that fails is a [`Value::Error`] among them, and the others run. If the server refuses one
    /// beforehand, such as one that does not exist, none runs.
    #[track_caller]
    pub fn transaction(&self, reactor: &mut Reactor, commands: Vec<Command>) -> Promise<Vec<Value>, Error> {
        let (answer, promise) = promised::<Elements>(reactor);
        let promise = promise.map(|elements| elements.0);
        if let Some((command, instead)) =
            commands.iter().find_map(|command| Some((command.name(), command.misplaced()?)))
        {
            requests::fail(&self.link, reactor, answer, Error::Misplaced { command, instead });
            return promise;
        }
        let limit = commands.iter().filter_map(|command| command.limit).max();
        let mut all = vec![Command::new("MULTI")];
        all.extend(commands);
        all.push(Command::new("EXEC"));
        let replies = all.len();
        let mut batch = Command::batch("MULTI", &all);
        batch.limit = limit;
        requests::start_unchecked(&self.link, reactor, batch, replies, answer);
        promise
    }

    /// Returns a handle that sends commands from any thread.
    pub fn sender(&self) -> Sender {
        Sender::new(self.shared.clone())
    }

    /// Closes the connection, for all clones. Commands that wait for an answer fail.
    pub fn close(&self, reactor: &mut Reactor) {
        reactor.state::<Clients>().0.remove(&self.shared.id);
        self.link.close(reactor);
    }

    /// Returns the statistics.
    pub fn stats(&self) -> ClientStats {
        requests::stats(&self.link)
    }

    /// Returns why there was no connection the last time, such as `connect to 127.0.0.1:6379: refused`.
    pub fn last_outage(&self) -> Arc<str> {
        self.link.last_reason()
    }
}

/// The answers of a transaction, errors included.
struct Elements(Vec<Value>);

impl FromValue for Elements {
    fn from_value(value: Value) -> Result<Elements, Error> {
        let found = value.kind();
        match value {
            Value::Error(error) => Err(Error::Server(error)),
            Value::Array(elements) => Ok(Elements(elements)),
            _ => Err(Error::WrongType { expected: "the answers of a transaction", found }),
        }
    }
}

/// Makes a promise, and the answer that settles it.
#[track_caller]
fn promised<T: FromValue + 'static>(reactor: &Reactor) -> (Answer, Promise<T, Error>) {
    let (deferred, promise) = reactor.promise();
    // Nothing else settles it.
    let settle = move |answer: Result<Value, Error>| drop(deferred.settle(answer.and_then(T::from_value)));
    (Answer::Settle(Box::new(settle)), promise)
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("options", &self.link.options).field("stats", &self.stats()).finish()
    }
}
