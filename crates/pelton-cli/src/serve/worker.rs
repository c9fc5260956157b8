//! A worker: a reactor that serves its share of the connections and reports its counts.

use std::io;
use std::rc::Rc;

use pelton::{Error, Reactor, Socket};
use pelton_http::{Census, Handler, Server, Settings};

use super::metrics::Report;
use super::observe::{Watch, Watched};
use super::options::LogFormat;
use super::redirect;
use crate::service::access_log::{Lines, Sink};

/// A worker's state, kept in its reactor.
struct Worker {
    server: Server,
    watch: Rc<Watch>,
}

/// The listening sockets of a worker.
#[derive(Default)]
pub struct Sockets {
    pub serve: Vec<Socket>,
    /// Those at which everything is redirected to HTTPS, on this port.
    pub redirect: (Vec<Socket>, u16),
}

/// Serves `handler` on `sockets`, with TLS if there is a configuration. All workers share the `census`.
pub fn set_up(
    reactor: &mut Reactor,
    handler: impl Handler,
    (settings, census): (Settings, &Census),
    sockets: io::Result<Sockets>,
    tls: Option<&pelton_tls::Server>,
    log: Option<(Sink, LogFormat)>,
) -> Result<(), Error> {
    let copied = |error| Error::System { doing: "copy the listeners for a worker".to_owned(), error };
    let watch = Rc::new(Watch::new(log.map(|(sink, format)| (Lines::new(sink), format))));
    let server = Server::sharing(Watched { inner: handler, watch: watch.clone() }, settings.clone(), census);
    let watching = watch.clone();
    server.on_refusal(move |io, refusal| watching.refused(io, refusal));
    let Sockets { serve, redirect: (redirect, port) } = sockets.map_err(copied)?;
    for socket in serve {
        let server = server.clone();
        match tls.cloned() {
            Some(tls) => reactor.adopt_listener(socket, move |_| tls.wrap(server.connection()))?,
            None => reactor.adopt_listener(socket, move |_| server.connection())?,
        };
    }
    for socket in redirect {
        let redirect = Watched { inner: redirect::handler(port), watch: watch.clone() };
        let server = Server::sharing(redirect, settings.clone(), census);
        reactor.adopt_listener(socket, move |_| server.connection())?;
    }
    let last = watch.clone();
    reactor.on_shutdown(move |_| last.finish());
    reactor.put_state(Worker { server, watch });
    Ok(())
}

/// Returns the worker's counts, or nothing if it was not set up.
pub fn report(reactor: &mut Reactor) -> Option<Report> {
    let stats = reactor.stats();
    let Worker { server, watch } = reactor.try_state()?;
    Some(Report {
        reactor: stats,
        server: server.stats(),
        counts: watch.counts.borrow().clone(),
        connections: server.connections(),
    })
}
