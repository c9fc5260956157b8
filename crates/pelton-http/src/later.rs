//! Handlers that answer later: tasks, promises, threads.
//!
//! Each is a few lines over [`Responder`], and each gives up when the client goes: a task is cancelled, a promise dropped, and
//! work for a thread taken back if it has not begun.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use pelton::task::JoinHandle;
use pelton::{DeferFailure, Fault, Lane, Pool, Promise, Reactor};

use crate::{Body, BodyError, Handler, KeptRequest, RemoteResponder, Request, Responder, Response};

/// A handler that is a task: the future that `answer` makes of a request runs on the loop. If the client goes, it is dropped
/// where it waits. One that panics gives a 500, and is reported as a [fault](Reactor::on_fault) of this call.
///
/// ```
/// use pelton::task;
/// use pelton_http::{Server, spawned};
/// use std::time::Duration;
///
/// let server = Server::new(spawned(|request, body| async move {
///     task::sleep(Duration::from_millis(10)).await;
///     match body.bytes().await {
///         Ok(bytes) => format!("{} with {} bytes\n", request.get().path(), bytes.len()).into(),
///         Err(error) => error.response(),
///     }
/// }));
/// ```
#[track_caller]
pub fn spawned<R, F>(answer: impl Fn(KeptRequest, Body) -> F + 'static) -> impl Handler
where
    R: Into<Response>,
    F: Future<Output = R> + 'static,
{
    let place = Location::caller();
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let future = answer(request.keep(), request.body());
        spawn(reactor, place, responder, future);
    }
}

/// A handler whose answer is promised. If the client goes, the promise is dropped, which its
/// [`Deferred`](pelton::Deferred::is_wanted) can tell. One that is rejected gives a 500, and is reported as a
/// [fault](Reactor::on_fault) of this call.
///
/// ```
/// use pelton::{Reactor, fs};
/// use pelton_http::{Response, Server, promised};
///
/// let server = Server::new(promised(|reactor, _| {
///     fs::read("motd").promise(reactor).map(|bytes| Response::text(bytes))
/// }));
/// ```
#[track_caller]
pub fn promised<R, E>(answer: impl Fn(&mut Reactor, Request<'_>) -> Promise<R, E> + 'static) -> impl Handler
where
    R: Into<Response> + 'static,
    E: fmt::Debug + 'static,
{
    let called_at = Location::caller();
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let promise = answer(reactor, request);
        spawn(reactor, place, responder, async move {
            promise.await.map_or_else(
                |rejected| {
                    let fault = Fault::at(called_at, "http", format_args!("answer a request: {rejected:?}"));
                    // Tasks are polled with their reactor at hand.
                    Reactor::with_current(|reactor| reactor.report(fault));
                    Response::plain_status(500)
                },
                R::into,
            )
        });
    }
}

/// Answers with what comes of a future, unless the client goes first.
fn spawn<R: Into<Response>>(
    reactor: &mut Reactor,
    place: &'static Location<'static>,
    responder: Responder,
    future: impl Future<Output = R> + 'static,
) {
    let slot = Rc::new(Cell::new(None));
    let running = Rc::clone(&slot);
    responder.on_gone(reactor, move |_| {
        if let Some(task) = running.take() {
            JoinHandle::cancel(task);
        }
    });
    let task = reactor.spawn_from(place, async {
        let response = future.await;
        // Tasks are polled with their reactor at hand.
        Reactor::with_current(|reactor| responder.respond(reactor, response));
    });
    slot.set(Some(task));
}

/// A handler for what blocks, or takes long: `answer` is called with the request and its body, on a thread of `lane`. If the
/// client goes before that has begun, it is taken back. A panic gives a 500, and a lane that is full a 503; both are reported
/// as [faults](Reactor::on_fault) of this call.
///
/// ```
/// use pelton::Lane;
/// use pelton_http::{Server, deferred};
///
/// let server = Server::new(deferred(Lane::Cpu, |_, body| format!("{}\n", body.iter().map(|&byte| u64::from(byte)).sum::<u64>())));
/// ```
#[track_caller]
pub fn deferred<R>(lane: Lane, answer: impl Fn(KeptRequest, Vec<u8>) -> R + Send + Sync + 'static) -> impl Handler
where
    R: Into<Response>,
{
    let (answer, called_at) = (Arc::new(answer), Location::caller());
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let answer = Arc::clone(&answer);
        with_body(reactor, request, responder, move |reactor, request, body, responder| {
            let id = Rc::new(Cell::new(None));
            let begun = Rc::clone(&id);
            responder.on_gone(reactor, move |reactor| {
                if let Some(id) = begun.take() {
                    reactor.cancel_deferred(id);
                }
            });
            let slot = Rc::new(Cell::new(Some(responder)));
            let waiting = Rc::clone(&slot);
            let then = move |reactor: &mut Reactor, outcome: Result<Response, DeferFailure>| {
                if let Some(responder) = waiting.take() {
                    let response = outcome.unwrap_or_else(|failure| {
                        let message = format!("answer a request on the {lane} lane: {failure}");
                        reactor.report(Fault::at(called_at, "http", message));
                        Response::plain_status(500)
                    });
                    responder.respond(reactor, response);
                }
            };
            match reactor.defer(lane, move || answer(request, body).into(), then) {
                Ok(deferred) => id.set(Some(deferred)),
                Err(refused) => {
                    reactor.report(Fault::at(called_at, "http", format_args!("answer a request: {refused}")));
                    if let Some(responder) = slot.take() {
                        responder.respond(reactor, overloaded());
                    }
                }
            }
        });
    }
}

/// A handler whose work is done by the workers of a pool: `answer` is called with the request and its body. If the client goes
/// before that has begun, it is not. A panic gives a 500, and is reported to the pool's [fault hook](pelton::PoolBuilder::on_fault) as a
/// fault of this call. A pool that has shut down gives a 503. For actors that keep something, send them a
/// [`RemoteResponder`].
///
/// ```
/// use pelton::Pool;
/// use pelton_http::{Server, pooled};
///
/// let pool = Pool::new()?;
/// let server = Server::new(pooled(&pool, |request, _| format!("{} was worked on\n", request.get().path())));
/// # Ok::<(), pelton::Error>(())
/// ```
#[track_caller]
pub fn pooled<R>(pool: &Pool, answer: impl Fn(KeptRequest, Vec<u8>) -> R + Send + Sync + 'static) -> impl Handler
where
    R: Into<Response>,
{
    let (pool, answer, place) = (pool.clone(), Arc::new(answer), Location::caller());
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let (pool, answer) = (pool.clone(), Arc::clone(&answer));
        with_body(reactor, request, responder, move |reactor, request, body, responder| {
            let worker =
                pool.actor_at(place).spawn_fn(move |(request, body, remote): (KeptRequest, _, RemoteResponder), _| {
                    if !remote.is_gone() {
                        remote.respond(answer(request, body));
                    }
                });
            if let Err(refused) = worker.send((request, body, responder.remote(reactor))) {
                let (.., remote) = refused.into_inner();
                remote.respond(overloaded());
            }
        });
    }
}

fn overloaded() -> Response {
    Response::plain_status(503).header("Retry-After", "1")
}

/// Goes on when the body is complete; one that cannot be read is answered.
fn with_body(
    reactor: &mut Reactor,
    request: Request<'_>,
    responder: Responder,
    then: impl FnOnce(&mut Reactor, KeptRequest, Vec<u8>, Responder) + 'static,
) {
    let kept = request.keep();
    request.body().collect(reactor, move |reactor, body: Result<Vec<u8>, BodyError>| match body {
        Ok(body) => then(reactor, kept, body, responder),
        Err(error) => responder.respond(reactor, error.response()),
    });
}
