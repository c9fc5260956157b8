//! A worker: a reactor that serves its share of the connections, reports what it has counted, and drains.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Beat, Error, ListenerId, Reactor, Socket, TimerId};
use pelton_http::{Handler, Server, Settings};

use super::access_log::{Lines, Sink};
use super::metrics::Report;
use super::observe::{Watch, Watched};
use super::options::LogFormat;

/// While idle connections have their last chance, it is looked this often whether there are any left.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// What a worker has, in its reactor's state.
struct Worker {
    server: Server,
    watch: Rc<Watch>,
    listeners: Vec<ListenerId>,
}

/// Has `handler` answer what comes in on `sockets`.
pub fn set_up(
    reactor: &mut Reactor,
    handler: impl Handler,
    settings: Settings,
    sockets: io::Result<Vec<Socket>>,
    log: Option<(Sink, LogFormat)>,
) -> Result<(), Error> {
    let copied = |error| Error::System { doing: "copy the listeners for a worker".to_owned(), error };
    let watch = Rc::new(Watch::new(log.map(|(sink, format)| (Lines::new(sink), format))));
    let server = Server::with_settings(Watched { inner: handler, watch: watch.clone() }, settings);
    let watching = watch.clone();
    server.on_refusal(move |io, refusal| watching.refused(io, refusal));
    let mut listeners = Vec::new();
    for socket in sockets.map_err(copied)? {
        let server = server.clone();
        listeners.push(reactor.adopt_listener(socket, move |_| server.connection())?);
    }
    let last = watch.clone();
    reactor.on_shutdown(move |_| last.finish());
    reactor.put_state(Worker { server, watch, listeners });
    Ok(())
}

/// What it has counted; nothing if it was not set up.
pub fn report(reactor: &mut Reactor) -> Option<Report> {
    let stats = reactor.stats();
    let Worker { server, watch, .. } = reactor.try_state()?;
    Some(Report {
        reactor: stats,
        server: server.stats(),
        counts: watch.counts.borrow().clone(),
        connections: server.connections(),
    })
}

/// Takes on no more connections, and lets those that are there finish.
///
/// A client may be sending its next request while its connection is being closed as idle, and would lose it. So connections are
/// not closed at once: for as long as `idle` says, they may send one more request each, whose answer says that it is the last.
/// What then is still being answered has until `deadline`.
pub fn drain(reactor: &mut Reactor, idle: Duration, deadline: Duration) {
    if reactor.stopping() {
        return;
    }
    if let Some(Worker { watch, listeners, .. }) = reactor.try_state() {
        watch.draining.set(true);
        for listener in std::mem::take(listeners) {
            reactor.unlisten(listener);
        }
    }
    let left = deadline.saturating_sub(idle);
    let until = reactor.now() + idle;
    if reactor.connection_count() == 0 || idle.is_zero() {
        return reactor.drain(left);
    }
    let timer: Rc<Cell<Option<TimerId>>> = Rc::default();
    let own = timer.clone();
    let look = move |reactor: &mut Reactor, _: Beat| {
        if reactor.connection_count() == 0 || reactor.now() >= until {
            if let Some(timer) = own.take() {
                reactor.cancel(timer);
            }
            reactor.drain(left);
        }
    };
    timer.set(Some(reactor.every(LOOK_AGAIN, look)));
}
