//! `/metrics` and `/health` of a proxy.

use std::cell::Cell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pelton::{Handle, Reactor, Target};
use pelton_http::{Handler, Request, Responder, Response, Router};

use super::record::Counts;
use super::targets::Targets;
use crate::serve::admin::Hosts;
use crate::service::access_log::Sink;
use crate::service::reports;

/// What the responses are made from.
pub struct Admin {
    pub workers: Vec<Handle>,
    pub targets: Arc<Targets>,
    pub counts: Arc<Counts>,
    pub log: Option<Sink>,
    pub draining: Rc<Cell<bool>>,
    pub hosts: Hosts,
}

impl Admin {
    pub fn handler(self) -> impl Handler {
        let Admin { workers, targets, counts, log, draining, hosts } = self;
        let up = targets.clone();
        let health = move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
            let any_up = (0..up.all().len()).any(|target| up.is_up(target));
            let (text, status) = match (draining.get(), any_up) {
                (true, _) => ("draining\n", 503),
                (false, false) => ("no target is up\n", 503),
                (false, true) => ("ok\n", 200),
            };
            let mut response = Response::text(text);
            response.set_status(status);
            responder.respond(reactor, response.header("Cache-Control", "no-store"));
        };
        let metrics = move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
            let mut text = render(&targets, &counts, log.as_ref().map(Sink::dropped));
            let workers = workers.clone();
            reactor.spawn(async move {
                let reports = reports::ask(&workers, |reactor| Some(reactor.stats())).await;
                text.push_str(&reports::of_reactors(reports.iter().map(|(worker, stats)| (*worker, stats))));
                let response =
                    Response::ok().header("Content-Type", "text/plain; version=0.0.4; charset=utf-8").body(text);
                Reactor::with_current(|reactor| responder.respond(reactor, response));
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
}

/// Returns the label of a target's samples.
pub fn target_label(target: &Target) -> String {
    let name = target.endpoint().to_string();
    format!("{{target=\"{}\"}}", name.replace('\\', "\\\\").replace('"', "\\\""))
}

fn render(targets: &Targets, counts: &Counts, dropped: Option<u64>) -> String {
    let mut text = String::new();
    let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, u64)]| {
        // Writing to memory cannot fail.
        let _ = writeln!(text, "# HELP pelton_proxy_{name} {help}\n# TYPE pelton_proxy_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(text, "pelton_proxy_{name}{labels} {value}");
        }
    };
    let one = |value: u64| [(String::new(), value)];
    family("clients", "gauge", "Clients now.", &one(counts.clients.load(Relaxed) as u64));
    family("clients_total", "counter", "Clients that were accepted.", &one(counts.accepted.load(Relaxed)));
    family(
        "refused_total",
        "counter",
        "Clients closed because there were too many.",
        &one(counts.refused.load(Relaxed)),
    );
    let bad = counts.bad_headers.load(Relaxed);
    family("bad_headers_total", "counter", "Clients without a valid PROXY header or TLS hello.", &one(bad));
    family(
        "no_target_total",
        "counter",
        "Clients for which there was no target.",
        &one(counts.no_target.load(Relaxed)),
    );
    let bytes = [
        ("{to=\"targets\"}".to_owned(), counts.to_targets.load(Relaxed)),
        ("{to=\"clients\"}".to_owned(), counts.to_clients.load(Relaxed)),
    ];
    family("bytes_total", "counter", "Bytes forwarded, of connections that have ended.", &bytes);
    let of_targets = |value: &dyn Fn(usize, &Target) -> u64| -> Vec<(String, u64)> {
        let samples = targets.all().iter().enumerate();
        samples.map(|(number, target)| (target_label(target), value(number, target))).collect()
    };
    let up = of_targets(&|number, _| u64::from(targets.is_up(number)));
    family("target_up", "gauge", "Whether a target is used.", &up);
    let now = of_targets(&|_, target| target.busy() as u64);
    family("target_connections", "gauge", "Connections to a target now.", &now);
    let connected = of_targets(&|_, target| target.successes());
    family("target_connections_total", "counter", "Connections to a target that were established.", &connected);
    let failed = of_targets(&|_, target| target.failures());
    family("target_failures_total", "counter", "Connections to a target that could not be established.", &failed);
    if let Some(dropped) = dropped {
        family("log_lines_dropped_total", "counter", "Lines of the access log that were dropped.", &one(dropped));
    }
    text
}
