//! `pelton serve`: files, or a page that says welcome, over HTTP.
//!
//! The workers serve, each a reactor on a thread of its own (`worker.rs`), on sockets that are opened before them (`places.rs`). The
//! main thread runs one more reactor, which controls them: it gets the signals, answers at the admin address (`admin.rs`) and
//! hands over to a newer process (`handover.rs`). So metrics and signals are not held up by busy workers, and `/health` can be asked
//! until the last of them has ended.

mod access_log;
mod admin;
mod descriptors;
mod handover;
mod line;
mod metrics;
mod notify;
mod observe;
mod options;
mod pid_file;
mod places;
mod welcome;
mod worker;

use std::cell::{Cell, RefCell};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pelton::{
    Address, Builder, DescriptorLimit, Error, EventLoop, Exit, Handle, Lane, ListenerId, Reactor, Reactors, Socket,
};
use pelton_http::{Census, FileSettings, Files, Handler, Server, Settings};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2, SIGXFSZ};

use access_log::{Sink, Target};
use admin::{Admin, Hosts, is_loopback};
use descriptors::Budget;
pub use options::Options;
use pid_file::PidFile;
use places::{CannotListen, Inheritance, Place};

/// What the socket of the admin address is called when it is passed on.
const ADMIN: &str = "admin";

/// How it has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Everything was answered.
    Drained,
    /// Something was cut off, after the time for it, or by a second signal.
    CutShort,
}

/// Why it does not serve.
pub enum Failure {
    /// What was asked for makes no sense.
    Usage(String),
    /// It cannot listen where it should.
    Listen(String),
    /// The files cannot be served.
    Files(io::Error),
    /// Something else went wrong.
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Other(error)
    }
}

impl From<CannotListen> for Failure {
    fn from(error: CannotListen) -> Failure {
        Failure::Listen(error.to_string())
    }
}

fn failed(doing: &str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::Other(Error::System { doing: doing.to_owned(), error })
}

/// Serves until it is told to end by a signal. `say` is given each address as soon as connections are taken there.
pub fn run(options: &Options, say: impl Fn(&str) -> io::Result<()>) -> Result<Ended, Failure> {
    options.check().map_err(Failure::Usage)?;
    let limit = DescriptorLimit::raise();
    ignore_full_files();
    // Before the program on disk is replaced, after which the system could not tell.
    let program = std::env::current_exe().map_err(failed("find out which program this is"))?;
    // Whatever is wrong with these was put into the environment.
    let inherited = pelton::inherited_listeners().map_err(|error| Failure::Usage(error.to_string()))?;
    places::check(&inherited, handover::READY).map_err(Failure::Usage)?;
    let is_known = |name: &str| name.starts_with("listen.") || matches!(name, ADMIN | handover::READY);
    let mut inheritance = Inheritance::new(inherited, is_known);

    let workers = options.server.workers();
    let places = open_places(options, workers, &mut inheritance)?;
    let admin_place = match &options.admin {
        Some(address) => {
            let mode = Some(options.admin_socket_mode);
            Some(Place::open(ADMIN.to_owned(), address, &mut inheritance, 1, mode)?)
        }
        None => None,
    };
    let log = match &options.access_log {
        Some(path) => Some(access_log::start(Target::new(path)).map_err(failed("log requests"))?),
        None => None,
    };
    let (sink, writer) = log.map_or((None, None), |(sink, writer)| (Some(sink), Some(writer)));

    let mut control = options.server.tuned(Reactor::builder()).build()?;
    let budget = descriptors::divide(options, &limit, &control, (&places, admin_place.as_ref()));
    let budget = budget.map_err(Failure::Usage)?;
    let reactors = start_workers(options, &budget, &places, sink.clone())?;
    let mut controls = Control {
        drain_time: options.drain_time,
        program,
        limit,
        places,
        admin: None,
        workers: reactors.handles().to_vec(),
        log: sink,
        draining: Rc::default(),
        handing_over: false,
    };
    if let Some(place) = admin_place {
        controls.serve_admin(&mut control, place, options, &budget)?;
    }
    let lines: Vec<String> = controls.lines(&control, options).collect();
    let controls = Rc::new(RefCell::new(controls));
    listen_for_signals(&mut control, &controls)?;
    let pid_file = options.pid_file.as_deref().map(PidFile::write).transpose().map_err(failed("start"))?;
    for line in lines {
        // Nobody may be there to read it, which is no reason not to serve.
        let _ = say(&line);
    }
    controls.borrow_mut().take_over();
    notify::serving();
    handover::report(inheritance.take(handover::READY).into_iter().map(|(socket, _)| socket));

    let exits = run_to_end(&mut control, reactors)?;
    drop(control);
    drop(controls);
    drop(pid_file);
    if let Some(writer) = writer {
        writer.finish();
    }
    how_it_ended(exits)
}

/// Has writing to a file that has reached the size which the process may give it fail, instead of ending the process. It is the log that
/// is full then, and no reason not to serve.
fn ignore_full_files() {
    // Nobody asks whether it was raised. Where this is not possible, it is as if it had not been tried.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
}

fn open_places(options: &Options, workers: usize, inheritance: &mut Inheritance) -> Result<Vec<Place>, CannotListen> {
    let mut places = inheritance.activated()?;
    let default = [Options::default_address()];
    let addresses = match &options.listen[..] {
        [] if places.is_empty() => &default[..],
        addresses => addresses,
    };
    for (number, address) in addresses.iter().enumerate() {
        places.push(Place::open(places::name_of(number), address, inheritance, workers, options.socket_mode)?);
    }
    Ok(places)
}

fn start_workers(options: &Options, budget: &Budget, places: &[Place], log: Option<Sink>) -> Result<Reactors, Failure> {
    let workers = options.server.workers();
    let share = |worker| -> io::Result<Vec<Socket>> {
        let shares = places.iter().map(|place| place.share_of(worker, workers));
        Ok(shares.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    };
    // Taken by each worker on its own thread.
    let shares: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new((0..workers).map(|worker| Some(share(worker))).collect()));
    let (settings, format, queued) = (options.settings(budget), options.log_format, options.queued());
    let (content, census) = (Content::of(options, budget)?, Census::default());
    let lane = options.files.lane(budget);
    let tune = move |builder: Builder| builder.byte_budget(queued).serve_over_budget(true).lane(Lane::Files, lane);
    let started = options.server.start_as(tune, move |number, reactor| {
        let sockets = shares.lock().unwrap_or_else(PoisonError::into_inner)[number].take();
        let handler = content.handler(reactor, workers)?;
        let log = log.clone().map(|sink| (sink, format));
        worker::set_up(reactor, handler, (settings.clone(), &census), sockets.unwrap_or_else(|| Ok(Vec::new())), log)
    });
    Ok(started?)
}

/// What is served.
enum Content {
    Welcome,
    Files(PathBuf, FileSettings),
}

impl Content {
    fn of(options: &Options, budget: &Budget) -> Result<Content, Failure> {
        match &options.dir {
            None => Ok(Content::Welcome),
            Some(dir) => {
                let settings = options.files.settings(budget);
                // Each worker opens it for itself; whether it can is better known before there are any.
                Files::with_settings(dir, settings.clone()).map_err(Failure::Files)?;
                // All workers pin the same one, also if a link is turned between their starts.
                let dir = if settings.pinned { dir.canonicalize().map_err(Failure::Files)? } else { dir.clone() };
                Ok(Content::Files(dir, settings))
            }
        }
    }

    fn handler(&self, reactor: &mut Reactor, workers: usize) -> Result<Box<dyn Handler>, Error> {
        match self {
            Content::Welcome => Ok(Box::new(welcome::handler(reactor.engine_name(), workers))),
            Content::Files(dir, settings) => {
                let failed = |error| Error::System { doing: "set up a worker".to_owned(), error };
                Ok(Box::new(Files::with_settings(dir, settings.clone()).map_err(failed)?))
            }
        }
    }
}

/// What the main thread controls.
struct Control {
    drain_time: Duration,
    program: PathBuf,
    limit: DescriptorLimit,
    places: Vec<Place>,
    admin: Option<(Place, ListenerId)>,
    workers: Vec<Handle>,
    log: Option<Sink>,
    draining: Rc<Cell<bool>>,
    handing_over: bool,
}

impl Control {
    fn serve_admin(
        &mut self,
        reactor: &mut Reactor,
        place: Place,
        options: &Options,
        budget: &Budget,
    ) -> Result<(), Failure> {
        let (workers, log, draining) = (self.workers.clone(), self.log.clone(), self.draining.clone());
        let hosts = match &place.address {
            Address::Tcp(address) => {
                if options.admin_host.is_empty() && !is_loopback(address.ip()) {
                    tracing::warn!(%address, "without --admin-host, the admin address answers requests for this machine itself only");
                }
                Hosts::LoopbackAnd(options.admin_host.clone())
            }
            _ => Hosts::Any,
        };
        let settings = Settings { connections: budget.admin, turned_away: 1, ..Settings::default() };
        let server = Server::with_settings(Admin { workers, log, draining, hosts }.handler(), settings);
        let mut sockets = place.share_of(0, 1).map_err(failed("copy the listener of the admin address"))?;
        let Some(socket) = sockets.pop() else { return Ok(()) };
        let listener = reactor.adopt_listener(socket, move |_| server.connection())?;
        self.admin = Some((place, listener));
        Ok(())
    }

    /// What is said about each address when it is served.
    fn lines(&self, reactor: &Reactor, options: &Options) -> impl Iterator<Item = String> {
        let engine = reactor.engine_name();
        let workers = match self.workers.len() {
            1 => String::new(),
            count => format!(" on {count} workers"),
        };
        let what = match &options.dir {
            Some(dir) => dir.display().to_string(),
            None => "the welcome page".to_owned(),
        };
        let served = self
            .places
            .iter()
            .map(move |place| format!("serving {what} on {}, with {engine}{workers}; ctrl-c ends it\n", place.url()));
        let admin = self.admin.iter().map(|(place, _)| format!("metrics and health on {}\n", place.url()));
        served.chain(admin)
    }

    /// It serves: what was another process's is this one's.
    fn take_over(&mut self) {
        let of_admin = self.admin.iter_mut().map(|(place, _)| place);
        self.places.iter_mut().chain(of_admin).for_each(Place::take_over);
    }

    /// The first time everything is finished, the second time it ends at once.
    fn told_to_end(&mut self) {
        if self.draining.get() {
            tracing::info!("told to end again: it ends at once");
            self.workers.iter().for_each(Handle::stop);
        } else {
            tracing::info!("told to end: what is in progress is finished");
            notify::ending();
            self.drain(false);
        }
    }

    fn drain(&mut self, handed_over: bool) {
        self.draining.set(true);
        self.places.iter_mut().for_each(|place| place.close(handed_over));
        for worker in &self.workers {
            let deadline = self.drain_time;
            // One that is gone has nothing to finish.
            let _ = worker.post(move |reactor| reactor.drain(deadline));
        }
    }

    fn reopen_logs(&self) {
        if let Some(log) = &self.log {
            log.reopen();
        }
    }
}

fn listen_for_signals(reactor: &mut Reactor, control: &Rc<RefCell<Control>>) -> Result<(), Error> {
    for signal in [SIGINT, SIGTERM] {
        let control = control.clone();
        reactor.on_signal(signal, move |_, _| control.borrow_mut().told_to_end())?;
    }
    let logs = control.clone();
    reactor.on_signal(SIGHUP, move |_, _| logs.borrow().reopen_logs())?;
    let control = control.clone();
    reactor.on_signal(SIGUSR2, move |reactor, _| hand_over(reactor, &control))?;
    Ok(())
}

/// Starts a new process in place of this one, and drains when it serves.
fn hand_over(reactor: &mut Reactor, control: &Rc<RefCell<Control>>) {
    let mut controls = control.borrow_mut();
    if controls.draining.get() || controls.handing_over {
        tracing::warn!("told to hand over, but it is ending already, or a new process is about to take over");
        return;
    }
    let of_admin = controls.admin.iter().map(|(place, _)| place);
    let sockets: Vec<_> = controls.places.iter().chain(of_admin).flat_map(Place::to_pass_on).collect();
    let then = {
        let control = control.clone();
        move |reactor: &mut Reactor, outcome| handed_over(reactor, &control, outcome)
    };
    match handover::begin(reactor, &controls.program, &controls.limit, sockets, then) {
        Ok(()) => controls.handing_over = true,
        Err(error) => {
            let program = controls.program.display();
            tracing::error!(%error, %program, "could not start a new process; this one goes on");
        }
    }
}

fn handed_over(reactor: &mut Reactor, control: &Rc<RefCell<Control>>, outcome: Result<u32, String>) {
    let mut controls = control.borrow_mut();
    controls.handing_over = false;
    match outcome {
        Ok(process) => {
            tracing::info!(process, "a new process serves; this one finishes what it has begun");
            if let Some((mut place, listener)) = controls.admin.take() {
                reactor.unlisten(listener);
                place.close(true);
            }
            controls.drain(true);
        }
        Err(why) => tracing::error!(why, "the new process did not take over; this one goes on"),
    }
}

/// Runs the control until the last worker has ended.
fn run_to_end(control: &mut EventLoop, reactors: Reactors) -> Result<Vec<Result<Exit, Error>>, Failure> {
    struct Exits(Vec<Result<Exit, Error>>);
    let handle = control.handle();
    let wait = move || {
        let exits = reactors.join();
        let _ = handle.post(move |reactor| {
            reactor.put_state(Exits(exits));
            reactor.stop();
        });
    };
    let thread = std::thread::Builder::new().name("pelton-join".to_owned()).spawn(wait);
    let thread = thread.map_err(failed("start a thread"))?;
    let exits: Rc<RefCell<Option<Exits>>> = Rc::default();
    let found = exits.clone();
    control.on_shutdown(move |reactor| *found.borrow_mut() = reactor.take_state());
    control.run()?;
    let _ = thread.join();
    let exits = exits.take();
    Ok(exits.map(|Exits(exits)| exits).unwrap_or_default())
}

fn how_it_ended(exits: Vec<Result<Exit, Error>>) -> Result<Ended, Failure> {
    let mut ended = Ended::Drained;
    for exit in exits {
        match exit? {
            Exit::Drained => {}
            Exit::DrainTimedOut { connections, .. } => {
                tracing::warn!(connections, "not everything could be answered in time");
                ended = Ended::CutShort;
            }
            _ => ended = Ended::CutShort,
        }
    }
    Ok(ended)
}
