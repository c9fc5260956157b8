//! `/metrics` and `/health`, at an address of their own.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Handle, Reactor, task};
use pelton_http::{Handler, Request, Responder, Response, Router};

use super::access_log::Sink;
use super::metrics::{self, Report};
use super::worker;

/// A worker that does not report within this time is left out.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the answers are made of.
pub struct Admin {
    pub workers: Vec<Handle>,
    pub log: Option<Sink>,
    pub draining: Rc<Cell<bool>>,
}

impl Admin {
    pub fn handler(self) -> impl Handler {
        let draining = self.draining.clone();
        let health = move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
            let response = if draining.get() {
                let mut response = Response::text("draining\n");
                response.set_status(503);
                response
            } else {
                Response::text("ok\n")
            };
            responder.respond(reactor, response.header("Cache-Control", "no-store"));
        };
        let metrics =
            move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| self.metrics(reactor, responder);
        Router::new().get("/health", health).get("/metrics", metrics)
    }

    /// Asks all workers, and answers when they have.
    fn metrics(&self, reactor: &mut Reactor, responder: Responder) {
        let replies: Vec<_> = self.workers.iter().map(|worker| worker.post_with_reply(worker::report)).collect();
        let dropped = self.log.as_ref().map(Sink::dropped);
        reactor.spawn(async move {
            let mut reports: Vec<(usize, Report)> = Vec::new();
            for (number, reply) in replies.into_iter().enumerate() {
                match task::timeout(PATIENCE, reply).await {
                    Ok(Ok(Some(report))) => reports.push((number, report)),
                    _ => tracing::warn!(worker = number, "a worker does not report"),
                }
            }
            let text = metrics::render(&reports, dropped);
            let response = Response::ok().header("Content-Type", "text/plain; version=0.0.4; charset=utf-8").body(text);
            Reactor::with_current(|reactor| responder.respond(reactor, response));
        });
    }
}
