//! `pelton proxy`: forwards connections to one of several targets.
//!
//! As in `serve`, each worker is a reactor on its own thread, and the main thread runs one more that controls them: signals,
//! the admin address (`admin.rs`), checks of the targets, hand-over. `targets.rs` has the targets, `pair.rs`
//! brings a client and its target together, `hello.rs` reads the name in a TLS hello, and `record.rs` has the log and the
//! counts.

pub mod admin;
mod hello;
pub mod options;
mod pair;
mod record;
mod targets;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use pelton::{Address, DescriptorLimit, Error, Limit, Reactor, Reactors, Socket, proxy_protocol};
use pelton_http::Server;

use admin::Admin;
pub use options::Options;
use options::Version;
use pair::{Front, Settings, Worker};
use record::Counts;
use targets::Targets;

use crate::serve::admin::Hosts;
use crate::serve::{Ended, Failure, failed, ignore_full_files, tls};
use crate::service::access_log::{self, Lines, Sink, Target};
use crate::service::control::{Control, listen_for_signals, outcome_of_workers, run_to_end};
use crate::service::pid_file::PidFile;
use crate::service::places::{self, Inheritance, Place};
use crate::service::{handover, notify, privileges};

/// The name under which the admin address's socket is passed on.
const ADMIN: &str = "admin";

/// Descriptors that are not connections: listeners, pollers, log, hand-over, the admin address, checks.
const OTHER_DESCRIPTORS: u64 = 96;

/// Proxies until a signal stops it. Calls `say` with each address as soon as it accepts connections.
pub fn run(options: &Options, say: impl Fn(&str) -> io::Result<()>) -> Result<Ended, Failure> {
    options.check().map_err(Failure::Usage)?;
    let limit = DescriptorLimit::raise();
    ignore_full_files();
    let program = std::env::current_exe().map_err(failed("find the path of this program"))?;
    let inherited = pelton::inherited_listeners().map_err(|error| Failure::Usage(error.to_string()))?;
    places::check(&inherited, handover::READY).map_err(Failure::Usage)?;
    let is_known = |name: &str| name.starts_with("listen.") || matches!(name, ADMIN | handover::READY);
    let mut inheritance = Inheritance::new(inherited, is_known);
    let predecessor: Vec<Socket> = inheritance.take(handover::READY).into_iter().map(|(socket, _)| socket).collect();
    let workers = options.server.workers();
    let mut places = inheritance.activated()?;
    if places.is_empty() && options.listen.is_empty() {
        return Err(Failure::Usage("give at least one address: --listen 127.0.0.1:8080".to_owned()));
    }
    for (number, address) in options.listen.iter().enumerate() {
        places.push(Place::open(places::name_of(number), address, &mut inheritance, workers, options.socket_mode)?);
    }
    let admin_place = match &options.admin {
        Some(address) => {
            let mode = Some(options.admin_socket_mode);
            Some(Place::open(ADMIN.to_owned(), address, &mut inheritance, 1, mode)?)
        }
        None => None,
    };
    let (tls, to_tls) = configure_tls(options)?;
    if let Some(tls) = &tls {
        // Keys of another version are of no use. Clients make a full handshake then.
        let _ = tls.import_ticket_keys(&handover::secrets(&predecessor));
    }
    privileges::give_up(options.user.as_deref(), options.group.as_deref()).map_err(Failure::Usage)?;
    let log = match &options.access_log {
        Some(path) => Some(access_log::start(Target::new(path)).map_err(failed("log connections"))?),
        None => None,
    };
    let (sink, writer) = log.map_or((None, None), |(sink, writer)| (Some(sink), Some(writer)));

    let targets = Arc::new(Targets::new(&options.to, &options.to_sni, options.balance, &options.health));
    let counts = Arc::new(Counts::default());
    let settings = settings(options, &limit, &targets, &counts, to_tls);
    let mut control = options.server.tuned(Reactor::builder()).build()?;
    if let Some(tls) = &tls {
        tls::watch(&mut control, tls);
    }
    if !options.health.check_interval.is_zero() {
        targets.check_every(&mut control, options.health.check_interval, options.limits.connect_time);
    }
    let reactors = start_workers(options, &places, settings, tls.as_ref(), sink.clone())?;
    let controls = Control {
        drain_time: options.drain_time,
        program,
        limit,
        places,
        admin: None,
        workers: reactors.handles().to_vec(),
        log: sink.clone(),
        tls,
        draining: Rc::default(),
        handing_over: false,
    };
    let controls = Rc::new(RefCell::new(controls));
    if let Some(place) = admin_place {
        let hosts = match &place.address {
            Address::Tcp(_) => Hosts::LoopbackAnd(options.admin_host.clone()),
            _ => Hosts::Any,
        };
        let draining = controls.borrow().draining.clone();
        let workers = reactors.handles().to_vec();
        let server = Server::new(Admin { workers, targets, counts, log: sink, draining, hosts }.handler());
        let mut sockets = place.share_of(0, 1).map_err(failed("copy the listener of the admin address"))?;
        if let Some(socket) = sockets.pop() {
            let listener = control.adopt_listener(socket, move |_| server.connection())?;
            controls.borrow_mut().admin = Some((place, listener));
        }
    }
    listen_for_signals(&mut control, &controls)?;
    let pid_file = options.pid_file.as_deref().map(PidFile::write).transpose().map_err(failed("start"))?;
    for line in lines(&controls.borrow(), &control, options) {
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

type TlsSides = (Option<pelton_tls::Server>, Option<pelton_tls::Client>);

fn configure_tls(options: &Options) -> Result<TlsSides, Failure> {
    let tls = &options.tls;
    let server = if tls.tls_cert.is_empty() {
        None
    } else {
        let handshakes = (options.limits.max_connections as usize / 8).clamp(4, 2_048);
        let builder = pelton_tls::Server::builder().handshakes_in_flight(handshakes);
        let pairs = tls.tls_cert.iter().zip(&tls.tls_key);
        let builder = pairs.fold(builder, |builder, (chain, key)| builder.certificate(chain, key));
        Some(builder.build().map_err(Failure::Tls)?)
    };
    let client = if tls.to_tls {
        let mut builder = pelton_tls::Client::builder();
        if let Some(authorities) = &tls.to_ca {
            builder = builder.roots(authorities);
        }
        if tls.to_insecure {
            builder = builder.dangerous_without_verification();
        }
        if let Some(name) = &tls.to_name {
            builder = builder.name(name);
        }
        let client = builder.build().map_err(Failure::Tls)?;
        for target in &options.to {
            client.layer_to(target).map_err(Failure::Tls)?;
        }
        Some(client)
    } else {
        None
    };
    Ok((server, client))
}

fn settings(
    options: &Options,
    limit: &DescriptorLimit,
    targets: &Arc<Targets>,
    counts: &Arc<Counts>,
    to_tls: Option<pelton_tls::Client>,
) -> Settings {
    let asked_for = options.limits.max_connections as usize;
    // Each client needs a second descriptor for its target.
    let possible = usize::try_from(limit.now().saturating_sub(OTHER_DESCRIPTORS) / 2).unwrap_or(usize::MAX).max(1);
    if possible < asked_for {
        let descriptors = limit.now();
        tracing::warn!(
            connections = possible,
            asked_for,
            descriptors,
            "fewer connections than requested: the descriptor limit is too low"
        );
    }
    Settings {
        targets: targets.clone(),
        counts: counts.clone(),
        accept_proxy: options.headers.accept_proxy,
        send_proxy: options.headers.send_proxy.map(|version| match version {
            Version::V1 => proxy_protocol::Version::V1,
            Version::V2 => proxy_protocol::Version::V2,
        }),
        by_name: !options.to_sni.is_empty(),
        header_time: options.headers.header_time,
        idle_time: Some(options.limits.idle_time).filter(|time| !time.is_zero()),
        retries: options.health.retries,
        to_tls,
        max_clients: asked_for.min(possible),
        per_address: options.limits.max_connections_per_address.map(|most| (most, Arc::default())),
    }
}

fn start_workers(
    options: &Options,
    places: &[Place],
    settings: Settings,
    tls: Option<&pelton_tls::Server>,
    log: Option<Sink>,
) -> Result<Reactors, Failure> {
    let workers = options.server.workers();
    let share = |worker| -> io::Result<Vec<Socket>> {
        let shares = places.iter().map(|place| place.share_of(worker, workers)).collect::<io::Result<Vec<_>>>()?;
        Ok(shares.into_iter().flatten().collect())
    };
    // Each worker takes its part on its own thread.
    let shares: Arc<Mutex<Vec<_>>> = Arc::new(Mutex::new((0..workers).map(|worker| Some(share(worker))).collect()));
    let tls = tls.cloned();
    let connect_time = Some(options.limits.connect_time);
    let started = options.server.start_as(
        move |builder| builder.limit(Limit::Connect, connect_time).limit(Limit::Handshake, connect_time),
        move |number, reactor| {
            let sockets = shares.lock().unwrap_or_else(PoisonError::into_inner)[number].take();
            let copied = |error| Error::System { doing: "copy the listeners for a worker".to_owned(), error };
            let sockets = sockets.unwrap_or_else(|| Ok(Vec::new())).map_err(copied)?;
            let lines = log.clone().map(Lines::new);
            if let Some(lines) = lines.clone() {
                reactor.on_shutdown(move |_| lines.hand_on());
            }
            let worker = Rc::new(Worker { settings: settings.clone(), lines });
            for socket in sockets {
                let worker = worker.clone();
                match tls.clone() {
                    Some(tls) => reactor.adopt_listener(socket, move |_| tls.wrap(Front::new(&worker)))?,
                    None => reactor.adopt_listener(socket, move |_| Front::new(&worker))?,
                };
            }
            Ok(())
        },
    );
    Ok(started?)
}

/// Returns the lines to print for the addresses once they are served.
fn lines(controls: &Control, reactor: &Reactor, options: &Options) -> Vec<String> {
    let engine = controls.engine_and_workers(reactor);
    let named = options.to_sni.iter().map(|(name, target)| format!("{name}={target}"));
    let all: Vec<String> = options.to.iter().map(ToString::to_string).chain(named).collect();
    let all = all.join(" ");
    let to = |place: &Place| format!("proxying on {}, to {all}, with {engine}; press Ctrl-C to stop\n", place.address);
    let admin = controls.admin.iter().map(|(place, _)| format!("metrics and health on {}\n", place.url("http")));
    controls.places.iter().map(to).chain(admin).collect()
}
