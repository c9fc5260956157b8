//! Handlers that answer later, from tasks, promises and threads.
//!
//! Each is a few lines over [`Responder`] and cancels its work when the client disconnects: it drops the task or the promise, or
//! removes the work from a thread's queue.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;

use pelton::task::JoinHandle;
use pelton::{DeferFailure, Fault, Lane, Pool, Promise, Reactor};

use crate::{Body, BodyError, Handler, KeptRequest, RemoteResponder, Request, Responder, Response};

/// Creates a handler that runs the future from `answer` as a task on the loop. If the client disconnects, the future is
/// dropped. If it panics, the client gets a 500, and the panic is reported as a [fault](Reactor::on_fault) with the location of
/// this call.
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
    let called_at = Location::caller();
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let future = answer(request.keep(), request.body());
        spawn(reactor, called_at, responder, future);
    }
}

/// Creates a handler that answers with a promise. If the client disconnects, the promise is dropped, which its
/// [`Deferred`](pelton::Deferred::is_wanted) can check. If it is rejected, the client gets a 500, and a
/// [fault](Reactor::on_fault) is reported with the location of this call.
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
        spawn(reactor, called_at, responder, async move {
            promise.await.map_or_else(
                |rejected| {
                    let fault = Fault::at(called_at, "http", format_args!("answer a request: {rejected:?}"));
                    // The reactor is current while a task is polled.
                    Reactor::with_current(|reactor| reactor.report(fault));
                    Response::plain_status(500)
                },
                R::into,
            )
        });
    }
}

/// Answers with the output of a future, unless the client disconnects first.
fn spawn<R: Into<Response>>(
    reactor: &mut Reactor,
    called_at: &'static Location<'static>,
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
    let task = reactor.spawn_from(called_at, async {
        let response = future.await;
        // The reactor is current while a task is polled.
        Reactor::with_current(|reactor| responder.respond(reactor, response));
    });
    slot.set(Some(task));
}

/// Creates a handler for work that blocks or takes a long time. It calls `answer` with the request and its body on a thread of
/// `lane`. If the client disconnects before that starts, the work is cancelled. A panic causes a 500, a full lane a 503; both
/// are reported as [faults](Reactor::on_fault) with the location of this call.
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

/// Creates a handler that calls `answer` with the request and its body on a worker of a pool, unless the client disconnects
/// before that starts. If `answer` panics, the client gets a 500, and the pool's [fault hook](pelton::PoolBuilder::on_fault)
/// gets a fault with the location of this call. If the pool has shut down, the client gets a 503. For actors with state, send
/// them a [`RemoteResponder`].
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
    let (pool, answer, called_at) = (pool.clone(), Arc::new(answer), Location::caller());
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let (pool, answer) = (pool.clone(), Arc::clone(&answer));
        with_body(reactor, request, responder, move |reactor, request, body, responder| {
            let worker = pool.actor_at(called_at).spawn_fn(
                move |(request, body, remote): (KeptRequest, _, RemoteResponder), _| {
                    if !remote.is_gone() {
                        remote.respond(answer(request, body));
                    }
                },
            );
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

/// Calls `then` when the body is complete. Answers the request if the body cannot be read.
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
