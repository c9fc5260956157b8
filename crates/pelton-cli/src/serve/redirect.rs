//! Redirects from plain HTTP to HTTPS, and tells browsers to come back with HTTPS.

use pelton::{Address, Reactor};
use pelton_http::{Handler, Request, Responder, Response};

/// The port of `https://` without a port.
const HTTPS: u16 = 443;

/// Redirects every request to the same target on this port, with HTTPS.
pub fn handler(port: u16) -> impl Handler {
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let response = match location(request.host(), request.full_path(), request.query(), port) {
            // The method and the body stay.
            Some(location) => Response::redirect(308, &location),
            None => Response::plain_status(400),
        };
        responder.respond(reactor, response);
    }
}

/// Returns the port to redirect to: that of the first address with one.
pub fn port<'a>(addresses: impl IntoIterator<Item = &'a Address>) -> u16 {
    let ports = addresses.into_iter().filter_map(|address| match address {
        Address::Tcp(address) => Some(address.port()),
        _ => None,
    });
    ports.into_iter().next().unwrap_or(HTTPS)
}

fn location(host: Option<&str>, path: &str, query: Option<&str>, port: u16) -> Option<String> {
    let name = match host? {
        literal if literal.starts_with('[') => &literal[..=literal.find(']')?],
        host => host.split(':').next()?,
    };
    if name.is_empty() || !path.starts_with('/') {
        return None;
    }
    let port = if port == HTTPS { String::new() } else { format!(":{port}") };
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    Some(format!("https://{name}{port}{path}{query}"))
}

/// A handler whose responses have a `Strict-Transport-Security` field.
pub struct Strict<H> {
    pub inner: H,
    /// For how many seconds, if at all.
    pub seconds: Option<u32>,
}

impl<H: Handler> Handler for Strict<H> {
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        let Some(seconds) = self.seconds else { return self.inner.handle(reactor, request, responder) };
        let responder = responder.before_sending(move |response| {
            response.fields_mut().append("Strict-Transport-Security", format!("max-age={seconds}"));
        });
        self.inner.handle(reactor, request, responder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_and_the_target_stay() {
        let to = |host, path, query| location(host, path, query, 8443);
        assert_eq!(to(Some("a.example"), "/", None).as_deref(), Some("https://a.example:8443/"));
        assert_eq!(
            to(Some("a.example:80"), "/x/y", Some("q=1&r")).as_deref(),
            Some("https://a.example:8443/x/y?q=1&r")
        );
        assert_eq!(to(Some("[::1]:8080"), "/", None).as_deref(), Some("https://[::1]:8443/"));
        assert_eq!(location(Some("a.example:80"), "/", None, 443).as_deref(), Some("https://a.example/"));
        for (host, path) in [(None, "/"), (Some(""), "/"), (Some(":80"), "/"), (Some("[::1"), "/"), (Some("a"), "*")] {
            assert_eq!(to(host, path, None), None, "{host:?} {path}");
        }
    }
}
