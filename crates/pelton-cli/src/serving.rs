//! What the servers have in common: how many workers they run on, what they say, and how they end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use pelton::{Address, Builder, Connection, EngineKind, Error, Exit, ListenOptions, Reactor, Reactors, Sharing};
use signal_hook::consts::{SIGINT, SIGTERM};

/// How long connections have for what was queued, after the first signal.
const GRACE: Duration = Duration::from_secs(10);

/// Far more than any machine has processors, and far less than it can have threads.
const MOST_WORKERS: usize = 1024;

/// Polling for longer than a second, in microseconds, is polling for good.
const MOST_SPIN: u64 = 1_000_000;

/// The options that all of them have.
#[derive(Args)]
pub struct ServerOptions {
    /// The engine to run on, by its name; see `pelton engines`
    #[arg(long, value_name = "NAME")]
    engine: Option<EngineKind>,

    /// How many threads serve, each with a reactor of its own; `auto`: one per processor
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = workers)]
    workers: usize,

    /// Poll for so long before sleeping, if events come in quick succession: answers come sooner, and cost processor time
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=MOST_SPIN))]
    spin: u64,
}

fn workers(text: &str) -> Result<usize, String> {
    match text.parse() {
        _ if text == "auto" => std::thread::available_parallelism().map(usize::from).map_err(|error| error.to_string()),
        Ok(number @ 1..=MOST_WORKERS) => Ok(number),
        _ => Err(format!("write a number from 1 to {MOST_WORKERS}, or auto")),
    }
}

/// The number of a worker, which each has in its state.
pub struct Worker(pub usize);

impl ServerOptions {
    /// How many workers there are to be.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// A reactor that runs on the engine that was asked for.
    pub fn tuned(&self, builder: Builder) -> Builder {
        match self.engine {
            Some(engine) => builder.engine(engine),
            None => builder,
        }
    }

    /// Starts the workers, each as `tune` likes it.
    pub fn start(&self, tune: fn(Builder) -> Builder) -> Result<Reactors, Error> {
        self.start_as(tune, |index, reactor| {
            reactor.put_state(Worker(index));
            Ok(())
        })
    }

    /// Starts the workers, each as `tune` likes it and set up by `setup`, which is given its number.
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

/// Serves on all `addresses` until a signal ends it. `say` is given a line for each, as soon as connections are taken there;
/// it begins with what is being `done`.
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
        // Nobody may be there to read it, which is no reason not to serve.
        let _ = say(&format!("{done} on {bound}, with {engine}{workers}; ctrl-c ends it\n"));
    }
    for exit in reactors.join() {
        if let Exit::DrainTimedOut { connections, .. } = exit? {
            tracing::warn!(connections, "not everything could be sent in time");
        }
    }
    Ok(())
}
