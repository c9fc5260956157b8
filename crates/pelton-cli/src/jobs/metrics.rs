//! `/metrics` of queues.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;

use pelton::{EventLoop, Promise, Reactor};
use pelton_http::{Handler, Request, Responder, Response, Router};
use pelton_jobs::{Error, Jobs, QueueStats, Worker};

use super::{Failure, wait};
use crate::serve::admin::Hosts;

/// The statistics of each queue, by name.
pub type Queues = Vec<(String, QueueStats)>;

/// Returns the statistics of all queues.
pub fn of_all(reactor: &mut EventLoop, jobs: &Jobs) -> Result<Queues, Failure> {
    wait(reactor, |reactor| ask_all(reactor, jobs))
}

/// Asks for the statistics of all queues.
pub fn ask_all(reactor: &mut Reactor, jobs: &Jobs) -> Promise<Queues, Error> {
    let jobs = jobs.clone();
    jobs.queues(reactor).then(move |reactor, names| {
        let each: Vec<_> = names
            .into_iter()
            .map(|name| {
                let stats = jobs.stats(reactor, &name);
                stats.map(move |stats| (name, stats))
            })
            .collect();
        Promise::all(reactor, each)
    })
}

/// Returns what answers at the admin address.
pub fn handler(jobs: Jobs, worker: Worker, draining: Rc<Cell<bool>>, hosts: Hosts) -> impl Handler {
    let health = move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let (text, status) = if draining.get() { ("draining\n", 503) } else { ("ok\n", 200) };
        let mut response = Response::text(text);
        response.set_status(status);
        responder.respond(reactor, response.header("Cache-Control", "no-store"));
    };
    let metrics = move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
        let worker = worker.clone();
        ask_all(reactor, &jobs).done(move |reactor, queues| {
            let response = match queues {
                Ok(queues) => {
                    let kind = "text/plain; version=0.0.4; charset=utf-8";
                    Response::ok().header("Content-Type", kind).body(render(&queues, &worker))
                }
                // The store may be away for a while.
                Err(_) => Response::plain_status(503),
            };
            responder.respond(reactor, response);
        });
    };
    let router = Router::new().get("/health", health).get("/metrics", metrics);
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        if hosts.takes(request.host()) {
            router.handle(reactor, request, responder);
        } else {
            responder.respond(reactor, Response::plain_status(421));
        }
    }
}

/// A metric of a queue: its name, kind and help, and what it is.
type Metric = (&'static str, &'static str, &'static str, fn(&QueueStats) -> f64);

const METRICS: [Metric; 13] = [
    ("ready", "gauge", "Jobs that can be run.", |stats| stats.ready as f64),
    ("blocked", "gauge", "Jobs that wait for an earlier one of their key.", |stats| stats.blocked as f64),
    ("delayed", "gauge", "Jobs that wait for their time.", |stats| stats.delayed as f64),
    ("running", "gauge", "Jobs that are running.", |stats| stats.running as f64),
    ("dead", "gauge", "Jobs in the dead-letter list.", |stats| stats.dead as f64),
    ("oldest_seconds", "gauge", "Age of the oldest ready job.", |stats| stats.oldest as f64 / 1000.0),
    ("enqueued_total", "counter", "Jobs that were enqueued.", |stats| stats.enqueued as f64),
    ("done_total", "counter", "Jobs that are done.", |stats| stats.done as f64),
    ("failed_total", "counter", "Attempts that failed.", |stats| stats.failed as f64),
    ("buried_total", "counter", "Jobs that were moved to the dead-letter list.", |stats| stats.buried as f64),
    ("taken_over_total", "counter", "Jobs whose lease was over.", |stats| stats.taken_over as f64),
    ("stale_total", "counter", "Ends of runs that came too late.", |stats| stats.stale as f64),
    ("cancelled_total", "counter", "Jobs that were cancelled.", |stats| stats.cancelled as f64),
];

fn render(queues: &Queues, worker: &Worker) -> String {
    let mut text = String::new();
    // Writing to memory cannot fail.
    for (name, kind, help, value) in METRICS {
        let _ = writeln!(text, "# HELP pelton_jobs_{name} {help}\n# TYPE pelton_jobs_{name} {kind}");
        for (queue, stats) in queues {
            let queue = queue.replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(text, "pelton_jobs_{name}{{queue=\"{queue}\"}} {}", value(stats));
        }
    }
    let stats = worker.stats();
    let own = [
        ("running", "gauge", "Jobs that this process runs.", stats.running as u64),
        ("taken_total", "counter", "Runs that this process has started.", stats.taken),
        ("done_total", "counter", "Jobs that this process has done.", stats.done),
        ("failed_total", "counter", "Runs of this process that failed.", stats.failed),
        ("stale_total", "counter", "Runs of this process whose end did not count.", stats.stale),
        ("errors_total", "counter", "Requests that the store did not answer.", stats.errors),
    ];
    for (name, kind, help, value) in own {
        let name = format!("pelton_worker_{name}");
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
    }
    text
}
