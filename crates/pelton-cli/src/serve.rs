//! `pelton serve`: serves files, or a welcome page, over HTTP, and forwards to other servers (`proxy.rs`).
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
mod proxy;
mod redirect;
pub mod tls;
mod welcome;
mod worker;

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use pelton::{Address, Builder, DescriptorLimit, Error, Lane, Reactor, Reactors, Socket, Targets};
use pelton_http::{Census, FileSettings, Files, Handler, Router, Scheme, Server, Settings};
use pelton_tls::ConfigError;
use signal_hook::consts::SIGXFSZ;

use admin::{Admin, Hosts, is_loopback};
use descriptors::Budget;
pub use options::Options;
use proxy::Proxies;
use redirect::Strict;
use worker::Sockets;

use crate::service::access_log::{self, Sink, Target};
use crate::service::control::{Control, listen_for_signals, outcome_of_workers, run_to_end};
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
    let scheme = if tls.is_some() { Scheme::Https } else { Scheme::Http };
    let proxies = options.proxy.is_on().then(|| Proxies::new(&options.proxy, &budget, scheme)).transpose()?;
    if let Some(proxies) = &proxies {
        proxies.check(&mut control, &options.proxy);
    }
    let content = Content { pages: Pages::of(options, &budget)?, proxies: proxies.clone() };
    let reactors = start_workers(options, &budget, &places, content, tls.as_ref(), sink.clone())?;
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
        let targets = proxies.map(|proxies| proxies.targets);
        serve_admin(&mut controls, &mut control, place, options, &budget, targets)?;
    }
    let lines: Vec<String> = lines(&controls, &control, options).collect();
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
    content: Content,
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
    let census = Census::default();
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

/// What the server serves: pages of its own, and those of other servers.
struct Content {
    pages: Pages,
    proxies: Option<Proxies>,
}

impl Content {
    fn handler(&self, reactor: &mut Reactor, workers: usize) -> Result<Box<dyn Handler>, Error> {
        let Some(proxies) = &self.proxies else { return self.pages.handler(reactor, workers) };
        let failed = |bad| Error::System { doing: "set up a worker".to_owned(), error: io::Error::other(bad) };
        let router = match &self.pages {
            // Without a directory, everything else is a 404.
            Pages::Welcome => Router::new(),
            pages => Router::new().mount("/", pages.handler(reactor, workers)?),
        };
        Ok(Box::new(proxies.mount(router).map_err(failed)?))
    }
}

/// The pages that the server has itself.
enum Pages {
    Welcome,
    Files(PathBuf, FileSettings),
}

impl Pages {
    fn of(options: &Options, budget: &Budget) -> Result<Pages, Failure> {
        match &options.dir {
            None => Ok(Pages::Welcome),
            Some(dir) => {
                let settings = options.files.settings(budget);
                // Each worker opens the directory itself. Opening it here first reports an error before any worker starts.
                Files::with_settings(dir, settings.clone()).map_err(Failure::Files)?;
                // All workers pin the same directory, even if a link changes between their starts.
                let dir = if settings.pinned { dir.canonicalize().map_err(Failure::Files)? } else { dir.clone() };
                Ok(Pages::Files(dir, settings))
            }
        }
    }

    fn handler(&self, reactor: &mut Reactor, workers: usize) -> Result<Box<dyn Handler>, Error> {
        match self {
            Pages::Welcome => Ok(Box::new(welcome::handler(reactor.engine_name(), workers))),
            Pages::Files(dir, settings) => {
                let failed = |error| Error::System { doing: "set up a worker".to_owned(), error };
                Ok(Box::new(Files::with_settings(dir, settings.clone()).map_err(failed)?))
            }
        }
    }
}

/// Answers at the admin address.
fn serve_admin(
    controls: &mut Control,
    reactor: &mut Reactor,
    place: Place,
    options: &Options,
    budget: &Budget,
    targets: Option<Arc<Targets>>,
) -> Result<(), Failure> {
    let (workers, log, draining) = (controls.workers.clone(), controls.log.clone(), controls.draining.clone());
    let tls = controls.tls.clone();
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
    let secure = controls.tls.as_ref().filter(|_| options.tls.admin_tls);
    let secure = secure.map(|tls| tls.with_handshakes_in_flight(handshakes));
    let settings = Settings { connections: budget.admin - handshakes, turned_away: 1, ..Settings::default() };
    let server = Server::with_settings(Admin { workers, log, tls, targets, draining, hosts }.handler(), settings);
    let mut sockets = place.share_of(0, 1).map_err(failed("copy the listener of the admin address"))?;
    let Some(socket) = sockets.pop() else { return Ok(()) };
    let listener = match secure {
        Some(tls) => reactor.adopt_listener(socket, move |_| tls.wrap(server.connection()))?,
        None => reactor.adopt_listener(socket, move |_| server.connection())?,
    };
    controls.admin = Some((place, listener));
    Ok(())
}

/// Returns the lines to print for the addresses once they are served.
fn lines(controls: &Control, reactor: &Reactor, options: &Options) -> impl Iterator<Item = String> {
    let engine = controls.engine_and_workers(reactor);
    let what = match (&options.dir, options.proxy.is_on()) {
        (Some(dir), false) => dir.display().to_string(),
        (Some(dir), true) => format!("{} and {}", dir.display(), options.proxy.described()),
        (None, true) => options.proxy.described(),
        (None, false) => "the welcome page".to_owned(),
    };
    let scheme = if controls.tls.is_some() { "https" } else { "http" };
    let served = controls.places.iter().map(move |place| match place.redirects() {
        false => format!("serving {what} on {}, with {engine}; press Ctrl-C to stop\n", place.url(scheme)),
        true => format!("redirecting to https on {}\n", place.url("http")),
    });
    let of_admin = if options.tls.admin_tls { "https" } else { "http" };
    let admin = controls.admin.iter().map(|(place, _)| format!("metrics and health on {}\n", place.url(of_admin)));
    served.chain(admin).chain(options.tls.fingerprint(controls.tls.as_ref()))
}
