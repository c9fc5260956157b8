//! Requests over the HTTP client: one at a time per connection.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pelton::Reactor;
use pelton_http::client::{Client, ClientStats, Error, ErrorKind, ResponseEvent, Settings, Url};
use pelton_http::{Content, Method};

use super::load::{Load, Plan};

/// What each request consists of.
pub struct Requests {
    pub url: Url,
    pub method: String,
    pub fields: Vec<(String, String)>,
    pub body: Option<Content>,
    pub tls: Option<pelton_tls::Client>,
}

/// The client of one thread.
pub struct Fetching {
    client: Client,
    requests: Arc<Requests>,
}

impl Fetching {
    pub fn new(plan: &Plan, connections: usize) -> Fetching {
        let settings = Settings {
            // A server that cannot be reached is told apart from one that does not answer.
            connect: plan.timeout - (plan.timeout / 10).min(Duration::from_millis(50)),
            head: plan.timeout,
            between: plan.timeout,
            whole: Some(plan.timeout),
            per_origin: connections,
            connections,
            redirects: 0,
            decompresses: false,
            user_agent: None,
            ..Settings::default()
        };
        let mut client = Client::builder().settings(settings);
        if let Some(tls) = &plan.requests_to_send.tls {
            client = client.tls(tls.clone());
        }
        Fetching { client: client.build(), requests: plan.requests_to_send.clone() }
    }

    pub fn stats(&self, reactor: &mut Reactor) -> ClientStats {
        self.client.stats(reactor)
    }

    /// Sends a request that was due at this time.
    pub fn send(&self, reactor: &mut Reactor, load: &Rc<Load>, due: Instant) {
        let Requests { url, method, fields, body, .. } = &*self.requests;
        // Failures are counted, not repaired.
        let mut request = self.client.request(Method::Get, url).method(method).repeatable(false);
        for (name, value) in fields {
            request = request.header(name, value);
        }
        if let Some(body) = body {
            request = request.body(body.clone());
        }
        let (load, mut status, mut length) = (load.clone(), 0, 0);
        request.stream(reactor, move |reactor, event| match event {
            ResponseEvent::Interim(_) => {}
            ResponseEvent::Head(head) => status = head.status(),
            ResponseEvent::Data(data) => length += data.len() as u64,
            ResponseEvent::End(_) => {
                load.answered(status, length, due);
                load.is_reached();
                load.fetch(reactor);
                load.end_if_done(reactor);
            }
            ResponseEvent::Failed(error) => load.request_failed(reactor, &error, due),
        });
    }
}

impl Load {
    fn request_failed(self: &Rc<Load>, reactor: &mut Reactor, error: &Error, due: Instant) {
        if error.is_connect() {
            // The server has not seen the request. It is sent again when there is a connection.
            self.send_again(due);
            self.connecting_failed(reactor, &error.kind().to_string());
            return self.end_if_done(reactor);
        }
        self.failed(1, |tally, count| {
            let fault = match error.kind() {
                ErrorKind::TimedOut { .. } => {
                    tally.errors.timeout += count;
                    return;
                }
                ErrorKind::Malformed(why) => {
                    tally.errors.malformed += count;
                    format!("a response was malformed: {why}")
                }
                ErrorKind::Ended { reason, .. } => {
                    tally.errors.reset += count;
                    format!("a connection was lost: {reason}")
                }
                other => {
                    tally.errors.reset += count;
                    other.to_string()
                }
            };
            tally.first_fault.get_or_insert(fault);
        });
        self.fetch(reactor);
        self.end_if_done(reactor);
    }
}
