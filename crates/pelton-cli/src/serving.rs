//! The common part of the servers: workers, start-up messages and shutdown.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use pelton::{Address, Builder, Connection, EngineKind, Error, Exit, ListenOptions, Reactor, Reactors, Sharing};
use signal_hook::consts::{SIGINT, SIGTERM};

/// How long connections may take to send queued output after the first signal.
const GRACE: Duration = Duration::from_secs(10);

/// The maximum number of workers: far more than any machine has processors, and far fewer than it can have threads.
const MOST_WORKERS: usize = 1024;

/// The maximum spin time, in microseconds. Spinning for more than a second would amount to spinning constantly.
const MOST_SPIN: u64 = 1_000_000;

/// The options that all servers have.
#[derive(Args)]
pub struct ServerOptions {
    /// Engine to run on, by name; see `pelton engines`
    #[arg(long, value_name = "NAME")]
    engine: Option<EngineKind>,

    /// Number of threads that serve, each with its own reactor; `auto`: one per processor
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = workers)]
    workers: usize,

    /// Polls this long before sleeping while events arrive in quick succession: lower latency for more processor time
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MOST_SPIN))]
    spin: u64,
}

fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        _ if text == "auto" => std::thread::available_parallelism().map(usize::from).map_err(|error| error.to_string()),
        Ok(number @ 1..=MOST_WORKERS) => Ok(number),
        _ => Err(format!("give a number from 1 to {MOST_WORKERS}, or auto")),
    }
}

/// The worker's number, stored in its reactor's state.
pub struct Worker(pub usize);

impl ServerOptions {
    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Sets the engine, if the options name one.
    pub fn tuned(&self, builder: Builder) -> Builder {
        match self.engine {
            Some(engine) => builder.engine(engine),
            None => builder,
        }
    }

    /// Starts the workers, each configured by `tune`.
    pub fn start(&self, tune: fn(Builder) -> Builder) -> Result<Reactors, Error> {
        self.start_as(tune, |index, reactor| {
            reactor.put_state(Worker(index));
            Ok(())
        })
    }

    /// Starts the workers, each configured by `tune` and set up by `setup`, which receives the worker's number.
    pub fn start_as(
        &self,
        tune: impl Fn(Builder) -> Builder + Send + Sync + 'static,
        setup: impl Fn(usize, &mut Reactor) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Result<Reactors, Error> {
        let (engine, spin) = (self.engine, Duration::from_micros(self.spin));
        let build = move |_| {
            let builder = tune(Reactor::builder().spin(spin));
            match engine {
                Some(engine) => builder.engine(engine),
                None => builder,
            }
        };
        Reactors::start(self.workers, build, setup)
    }
}

/// Serves on all `addresses` until a signal stops it. Calls `say` with a line for each address as soon as it accepts connections;
/// the line begins with `done`, a verb such as "echoing".
pub fn serve<C: Connection>(
    reactors: Reactors,
    done: &str,
    addresses: &[Address],
    sharing: Sharing,
    serve: impl Fn(&mut Reactor) -> C + Send + Sync + 'static,
    say: impl Fn(&str) -> io::Result<()>,
) -> Result<(), Error> {
    reactors.drain_on_signals(&[SIGINT, SIGTERM], GRACE)?;
    let first = &reactors.handles()[0];
    let engine = first.post_with_reply(|reactor| reactor.engine_name()).wait().map_err(|_| Error::Stopped)?;
    let workers = match reactors.handles().len() {
        1 => String::new(),
        count => format!(" on {count} workers"),
    };
    let serve = Arc::new(serve);
    for address in addresses {
        let serve = serve.clone();
        let bound = reactors.listen(address, sharing, &ListenOptions::default(), move |reactor| serve(reactor))?;
        // Serve even if nobody can read this.
        let _ = say(&format!("{done} on {bound}, with {engine}{workers}; press Ctrl-C to stop\n"));
    }
    for exit in reactors.join() {
        if let Exit::DrainTimedOut { connections, .. } = exit? {
            tracing::warn!(connections, "connections were cut off at the drain deadline");
        }
    }
    Ok(())
}
