//! `/metrics` and `/health`, at an address of their own.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use pelton::{Handle, Reactor, Targets};
use pelton_http::{Handler, Request, Responder, Response, Router};

use super::metrics;
use super::worker;
use crate::service::access_log::Sink;
use crate::service::reports;

/// What the responses are made from.
pub struct Admin {
    pub workers: Vec<Handle>,
    pub log: Option<Sink>,
    pub tls: Option<pelton_tls::Server>,
    /// The servers that requests are forwarded to.
    pub targets: Option<Arc<Targets>>,
    pub draining: Rc<Cell<bool>>,
    pub hosts: Hosts,
}

/// The hosts that a request may be for.
///
/// A browser on the same machine can reach a loopback address, and the same-origin policy goes by host name. The owner of a name
/// can point it at 127.0.0.1 (DNS rebinding) and then read these responses from a web page. The browser sends that name in
/// `Host`, though.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Hosts {
    /// Any host: no browser can be led to a Unix socket.
    Any,
    /// The loopback names and addresses, and these.
    LoopbackAnd(Vec<String>),
}

impl Hosts {
    /// Returns whether to answer a request for `host`, which may include a port. A request without a host does not come from a
    /// browser.
    pub fn takes(&self, host: Option<&str>) -> bool {
        let (Hosts::LoopbackAnd(others), Some(host)) = (self, host) else { return true };
        let name = plain_name(without_port(host));
        name == "localhost" || address(&name).is_some_and(is_loopback) || others.contains(&name)
    }
}

/// Parses a host for `--admin-host`.
pub fn host_name(text: &str) -> Result<String, String> {
    let name = plain_name(text);
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let is_name = !name.is_empty() && name.chars().all(fits) && !name.starts_with(['-', '.']);
    if is_name || address(&name).is_some() {
        Ok(name)
    } else {
        Err("give a name or an address without a port, such as metrics.example.org, 192.0.2.1 or [2001:db8::1]"
            .to_owned())
    }
}

fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(colon) if !host[colon..].contains(']') => &host[..colon],
        _ => host,
    }
}

/// Normalises a name: case and a trailing dot make no difference.
fn plain_name(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn address(name: &str) -> Option<IpAddr> {
    match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(literal) => literal.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => name.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

/// Returns whether an address is a loopback address.
pub fn is_loopback(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback(),
        IpAddr::V6(address) => address.to_ipv4_mapped().map_or(address.is_loopback(), |address| address.is_loopback()),
    }
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
        let hosts = self.hosts.clone();
        let metrics =
            move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| self.metrics(reactor, responder);
        let router = Router::new().get("/health", health).get("/metrics", metrics);
        move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
            if hosts.takes(request.host()) {
                router.handle(reactor, request, responder);
            } else {
                responder.respond(reactor, Response::plain_status(421));
            }
        }
    }

    /// Asks all workers, and responds when they have reported.
    fn metrics(&self, reactor: &mut Reactor, responder: Responder) {
        let workers = self.workers.clone();
        let dropped = self.log.as_ref().map(Sink::dropped);
        let (tls, targets) = (self.tls.clone(), self.targets.clone());
        reactor.spawn(async move {
            let reports = reports::ask(&workers, worker::report).await;
            let text = metrics::render(&reports, tls.as_ref(), targets.as_deref(), dropped);
            let response = Response::ok().header("Content-Type", "text/plain; version=0.0.4; charset=utf-8").body(text);
            Reactor::with_current(|reactor| responder.respond(reactor, response));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_other_hosts_are_refused() {
        let hosts = Hosts::LoopbackAnd(vec!["metrics.example.org".to_owned(), "[2001:db8::1]".to_owned()]);
        let own = ["localhost", "LOCALHOST:9090", "localhost.", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:9090"];
        let named = ["metrics.example.org", "Metrics.Example.org:9090", "metrics.example.org.", "[2001:DB8::1]:80"];
        for host in own.into_iter().chain(named) {
            assert!(hosts.takes(Some(host)), "{host}");
        }
        let foreign =
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "192.0.2.1", "10.0.0.1:80"];
        for host in
            foreign.into_iter().chain(["example.org", "[2001:db8::2]", "[::ffff:192.0.2.1]", ":9090", "0.0.0.0"])
        {
            assert!(!hosts.takes(Some(host)), "{host}");
            assert!(Hosts::Any.takes(Some(host)), "{host}");
        }
        assert!(hosts.takes(None), "a request without a host is not from a browser");
    }

    #[test]
    fn hosts_have_no_port() {
        assert_eq!(host_name("Metrics.Example.org."), Ok("metrics.example.org".to_owned()));
        assert!(host_name("192.0.2.1").is_ok() && host_name("[2001:db8::1]").is_ok());
        for nonsense in ["", ".", "a b", "a:80", "[::1", "http://a", "a/", "*", "-1", "2001:db8::1"] {
            assert!(host_name(nonsense).is_err(), "{nonsense}");
        }
    }
}
