//! `pelton serve`: serves files, or a welcome page, over HTTP.
//!
//! The workers serve. Each is a reactor on its own thread (`worker.rs`), on sockets that are opened before it starts
//! (`places.rs`). The main thread runs one more reactor that controls them: it receives signals, answers at the admin address
//! (`admin.rs`) and hands over to a newer process (`handover.rs`). So busy workers do not delay metrics and signals, and
//! `/health` answers until the last worker has ended.

pub mod admin;
mod descriptors;
mod line;
mod metrics;
mod observe;
pub mod options;
mod redirect;
pub mod tls;
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
use pelton_tls::ConfigError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2, SIGXFSZ};

use admin::{Admin, Hosts, is_loopback};
use descriptors::Budget;
pub use options::Options;
use redirect::Strict;
use worker::Sockets;

use crate::service::access_log::{self, Sink, Target};
use crate::service::pid_file::PidFile;
use crate::service::places::{self, CannotListen, Inheritance, Place};
use crate::service::{handover, notify, privileges};

/// The name under which the admin address's socket is passed on.
const ADMIN: &str = "admin";

/// The name under which the sockets of --redirect-http are passed on.
pub const REDIRECT: &str = "redirect";

/// How the server ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Everything was answered.
    Drained,
    /// Requests were cut off, by the drain deadline or by a second signal.
    CutShort,
}

/// Why the server does not serve.
pub enum Failure {
    /// The options make no sense.
    Usage(String),
    /// It cannot listen on an address.
    Listen(String),
    /// The files cannot be served.
    Files(io::Error),
    /// The certificates cannot be used.
    Tls(ConfigError),
    /// Anything else.
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

pub fn failed(doing: &str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::Other(Error::System { doing: doing.to_owned(), error })
}

/// Serves until a signal stops it. Calls `say` with each address as soon as it accepts connections.
pub fn run(options: &Options, say: impl Fn(&str) -> io::Result<()>) -> Result<Ended, Failure> {
    options.check().map_err(Failure::Usage)?;
    let limit = DescriptorLimit::raise();
    ignore_full_files();
    // Done before the program on disk can be replaced: afterwards the system could not tell.
    let program = std::env::current_exe().map_err(failed("find the path of this program"))?;
    // Anything wrong with these comes from the environment.
    let inherited = pelton::inherited_listeners().map_err(|error| Failure::Usage(error.to_string()))?;
    places::check(&inherited, handover::READY).map_err(Failure::Usage)?;
    let is_known = |name: &str| name.starts_with("listen.") || matches!(name, ADMIN | REDIRECT | handover::READY);
    let mut inheritance = Inheritance::new(inherited, is_known);
    let predecessor: Vec<Socket> = inheritance.take(handover::READY).into_iter().map(|(socket, _)| socket).collect();

    let workers = options.server.workers();
    let mut places = open_places(options, workers, &mut inheritance)?;
    if let Some(address) = &options.tls.redirect_http {
        places.push(Place::open(REDIRECT.to_owned(), address, &mut inheritance, workers, options.socket_mode)?);
    }
    let admin_place = match &options.admin {
        Some(address) => {
            let mode = Some(options.admin_socket_mode);
            Some(Place::open(ADMIN.to_owned(), address, &mut inheritance, 1, mode)?)
        }
        None => None,
    };
    let tls = options.tls.server().map_err(Failure::Tls)?;
    if let Some(tls) = &tls {
        // Keys of another version are of no use. Clients make a full handshake then.
        let _ = tls.import_ticket_keys(&handover::secrets(&predecessor));
    }
    // Before the first thread is started, which would stay root.
    privileges::give_up(options.user.as_deref(), options.group.as_deref()).map_err(Failure::Usage)?;
    let log = match &options.access_log {
        Some(path) => Some(access_log::start(Target::new(path)).map_err(failed("log requests"))?),
        None => None,
    };
    let (sink, writer) = log.map_or((None, None), |(sink, writer)| (Some(sink), Some(writer)));

    let mut control = options.server.tuned(Reactor::builder()).build()?;
    let budget = descriptors::divide(options, &limit, &control, (&places, admin_place.as_ref()));
    let budget = budget.map_err(Failure::Usage)?;
    if let Some(tls) = &tls {
        tls::watch(&mut control, tls);
    }
    // The limit is known only now.
    let tls = tls.map(|tls| tls.with_handshakes_in_flight(budget.handshakes));
    let reactors = start_workers(options, &budget, &places, tls.as_ref(), sink.clone())?;
    let mut controls = Control {
        drain_time: options.drain_time,
        program,
        limit,
        places,
        admin: None,
        workers: reactors.handles().to_vec(),
        log: sink,
        tls,
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
        // Serve even if nobody can read this.
        let _ = say(&line);
    }
    controls.borrow_mut().take_over();
    notify::serving();
    handover::report(predecessor.into_iter());

    let exits = run_to_end(&mut control, reactors)?;
    drop(control);
    drop(controls);
    drop(pid_file);
    if let Some(writer) = writer {
        writer.finish();
    }
    outcome_of_workers(exits)
}

/// Makes writing to a file at the process's size limit fail instead of killing the process: a full log is no reason to stop
/// serving.
pub fn ignore_full_files() {
    // Nothing reads the flag. If registering fails, the default action stays.
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

fn start_workers(
    options: &Options,
    budget: &Budget,
    places: &[Place],
    tls: Option<&pelton_tls::Server>,
    log: Option<Sink>,
) -> Result<Reactors, Failure> {
    let workers = options.server.workers();
    let port = redirect::port(places.iter().filter(|place| !place.redirects()).map(|place| &place.address));
    let share = |worker| -> io::Result<Sockets> {
        let mut sockets = Sockets { redirect: (Vec::new(), port), ..Sockets::default() };
        for place in places {
            let into = if place.redirects() { &mut sockets.redirect.0 } else { &mut sockets.serve };
            into.extend(place.share_of(worker, workers)?);
        }
        Ok(sockets)
    };
    let (tls, hsts) = (tls.cloned(), options.tls.hsts);
    // Each worker takes its part on its own thread.
    let shares: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new((0..workers).map(|worker| Some(share(worker))).collect()));
    let (settings, format, queued) = (options.settings(budget), options.log_format, options.queued());
    let (content, census) = (Content::of(options, budget)?, Census::default());
    let lane = options.files.lane(budget);
    let tune = move |builder: Builder| builder.byte_budget(queued).serve_over_budget(true).lane(Lane::Files, lane);
    let started = options.server.start_as(tune, move |number, reactor| {
        let sockets = shares.lock().unwrap_or_else(PoisonError::into_inner)[number].take();
        let handler = Strict { inner: content.handler(reactor, workers)?, seconds: hsts };
        let log = log.clone().map(|sink| (sink, format));
        let sockets = sockets.unwrap_or_else(|| Ok(Sockets::default()));
        worker::set_up(reactor, handler, (settings.clone(), &census), sockets, tls.as_ref(), log)
    });
    Ok(started?)
}

/// What the server serves.
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
                // Each worker opens the directory itself. Opening it here first reports an error before any worker starts.
                Files::with_settings(dir, settings.clone()).map_err(Failure::Files)?;
                // All workers pin the same directory, even if a link changes between their starts.
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

/// State of the main thread.
struct Control {
    drain_time: Duration,
    program: PathBuf,
    limit: DescriptorLimit,
    places: Vec<Place>,
    admin: Option<(Place, ListenerId)>,
    workers: Vec<Handle>,
    log: Option<Sink>,
    tls: Option<pelton_tls::Server>,
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
        let tls = self.tls.clone();
        let hosts = match &place.address {
            Address::Tcp(address) => {
                if options.admin_host.is_empty() && !is_loopback(address.ip()) {
                    tracing::warn!(%address, "without --admin-host, the admin address answers only requests for localhost and loopback addresses");
                }
                Hosts::LoopbackAnd(options.admin_host.clone())
            }
            _ => Hosts::Any,
        };
        // A flood of handshakes elsewhere does not keep anybody from this address, and the other way round.
        let handshakes = if options.tls.admin_tls { budget.admin / 2 } else { 0 };
        let secure = self.tls.as_ref().filter(|_| options.tls.admin_tls);
        let secure = secure.map(|tls| tls.with_handshakes_in_flight(handshakes));
        let settings = Settings { connections: budget.admin - handshakes, turned_away: 1, ..Settings::default() };
        let server = Server::with_settings(Admin { workers, log, tls, draining, hosts }.handler(), settings);
        let mut sockets = place.share_of(0, 1).map_err(failed("copy the listener of the admin address"))?;
        let Some(socket) = sockets.pop() else { return Ok(()) };
        let listener = match secure {
            Some(tls) => reactor.adopt_listener(socket, move |_| tls.wrap(server.connection()))?,
            None => reactor.adopt_listener(socket, move |_| server.connection())?,
        };
        self.admin = Some((place, listener));
        Ok(())
    }

    /// Returns the lines to print for the addresses once they are served.
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
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let served = self.places.iter().map(move |place| match place.redirects() {
            false => format!("serving {what} on {}, with {engine}{workers}; press Ctrl-C to stop\n", place.url(scheme)),
            true => format!("redirecting to https on {}\n", place.url("http")),
        });
        let of_admin = if options.tls.admin_tls { "https" } else { "http" };
        let admin = self.admin.iter().map(|(place, _)| format!("metrics and health on {}\n", place.url(of_admin)));
        served.chain(admin).chain(options.tls.fingerprint(self.tls.as_ref()))
    }

    /// Takes ownership of what another process handed over, now that this one serves.
    fn take_over(&mut self) {
        let of_admin = self.admin.iter_mut().map(|(place, _)| place);
        self.places.iter_mut().chain(of_admin).for_each(Place::take_over);
    }

    /// Drains on the first signal, and stops at once on the second.
    fn end_on_signal(&mut self) {
        if self.draining.get() {
            tracing::info!("second signal: stopping at once");
            self.workers.iter().for_each(Handle::stop);
        } else {
            tracing::info!("signal received: finishing requests in progress");
            notify::ending();
            self.drain(false);
        }
    }

    fn drain(&mut self, handed_over: bool) {
        self.draining.set(true);
        self.places.iter_mut().for_each(|place| place.close(handed_over));
        for worker in &self.workers {
            let deadline = self.drain_time;
            // A worker that has ended has nothing to drain.
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
        reactor.on_signal(signal, move |_, _| control.borrow_mut().end_on_signal())?;
    }
    let logs = control.clone();
    reactor.on_signal(SIGHUP, move |reactor, _| {
        let control = logs.borrow();
        control.reopen_logs();
        if let Some(server) = &control.tls {
            tls::reload(reactor, server);
        }
    })?;
    let control = control.clone();
    reactor.on_signal(SIGUSR2, move |reactor, _| hand_over(reactor, &control))?;
    Ok(())
}

/// Starts a new process to replace this one, and drains when that one serves.
fn hand_over(reactor: &mut Reactor, control: &Rc<RefCell<Control>>) {
    let mut controls = control.borrow_mut();
    if controls.draining.get() || controls.handing_over {
        tracing::warn!("handover ignored: the server is shutting down, or a new process is already starting");
        return;
    }
    let of_admin = controls.admin.iter().map(|(place, _)| place);
    let sockets: Vec<_> = controls.places.iter().chain(of_admin).flat_map(Place::to_pass_on).collect();
    let then = {
        let control = control.clone();
        move |reactor: &mut Reactor, outcome| handed_over(reactor, &control, outcome)
    };
    let secrets = controls.tls.as_ref().map(|tls| tls.export_ticket_keys()).unwrap_or_default();
    match handover::begin(reactor, &controls.program, &controls.limit, (sockets, &secrets), then) {
        Ok(()) => controls.handing_over = true,
        Err(error) => {
            let program = controls.program.display();
            tracing::error!(%error, %program, "could not start a new process; this one continues to serve");
        }
    }
}

fn handed_over(reactor: &mut Reactor, control: &Rc<RefCell<Control>>, outcome: Result<u32, String>) {
    let mut controls = control.borrow_mut();
    controls.handing_over = false;
    match outcome {
        Ok(process) => {
            tracing::info!(process, "the new process serves; this one finishes its requests");
            if let Some((mut place, listener)) = controls.admin.take() {
                reactor.end(listener);
                place.close(true);
            }
            controls.drain(true);
        }
        Err(why) => tracing::error!(why, "the new process did not take over; this one continues to serve"),
    }
}

/// Runs the control reactor until the last worker has ended.
pub fn run_to_end(control: &mut EventLoop, reactors: Reactors) -> Result<Vec<Result<Exit, Error>>, Failure> {
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

pub fn outcome_of_workers(exits: Vec<Result<Exit, Error>>) -> Result<Ended, Failure> {
    let mut ended = Ended::Drained;
    for exit in exits {
        match exit? {
            Exit::Drained => {}
            Exit::DrainTimedOut { connections, .. } => {
                tracing::warn!(connections, "connections were cut off at the drain deadline");
                ended = Ended::CutShort;
            }
            _ => ended = Ended::CutShort,
        }
    }
    Ok(ended)
}
