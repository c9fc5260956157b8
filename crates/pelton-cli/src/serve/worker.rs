//! A worker: a reactor that serves its share of the connections and reports its counts.

use std::io;
use std::rc::Rc;

use pelton::{Error, Reactor, Socket};
use pelton_http::{Census, Handler, Server, Settings};

use super::access_log::{Lines, Sink};
use super::metrics::Report;
use super::observe::{Watch, Watched};
use super::options::LogFormat;

/// A worker's state, kept in its reactor.
struct Worker {
    server: Server,
    watch: Rc<Watch>,
}

/// Serves `handler` on `sockets`. All workers share the `census`.
pub fn set_up(
    reactor: &mut Reactor,
    handler: impl Handler,
    (settings, census): (Settings, &Census),
    sockets: io::Result<Vec<Socket>>,
    log: Option<(Sink, LogFormat)>,
) -> Result<(), Error> {
    let copied = |error| Error::System { doing: "copy the listeners for a worker".to_owned(), error };
    let watch = Rc::new(Watch::new(log.map(|(sink, format)| (Lines::new(sink), format))));
    let server = Server::sharing(Watched { inner: handler, watch: watch.clone() }, settings, census);
    let watching = watch.clone();
    server.on_refusal(move |io, refusal| watching.refused(io, refusal));
    for socket in sockets.map_err(copied)? {
        let server = server.clone();
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
