//! A request on its way to a server, and its response on its way back.
//!
//! The state is never borrowed while other code runs: that may end either side, and call back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pelton::{Address, Connection, Reactor, Targets};

use super::tunnel::Side;
use super::{HostField, Shared, heads};
use crate::client::{Buffer, Error, ErrorKind, Exchange, Given, Head, Parts, Payload, ResponseEvent, Verb};
use crate::wire::Fields;
use crate::{
    Body, BodyEvent, Content, Method, Request, Responder, Response, ResponseFields, ResponseStream, SendState,
};

/// A request that is being forwarded.
pub(super) struct Passage {
    shared: Rc<Shared>,
    answer: Cell<Answer>,
    /// The request to the server.
    exchange: RefCell<Option<Exchange>>,
    /// The body of the client's request, if it has one.
    body: Option<Body>,
    /// The client's request has been received completely.
    body_ended: Cell<bool>,
    /// The body is being read, so the request cannot go elsewhere.
    reads: Cell<bool>,
    client: Option<std::net::IpAddr>,
    is_head: bool,
    /// The target in use, and those before it.
    work: RefCell<Option<Work>>,
    tried: RefCell<Vec<usize>>,
    /// Where the path of the request begins, after the base of the target.
    target: Box<str>,
}

/// The answer to the client.
#[derive(Default)]
enum Answer {
    /// Nothing is known of it.
    Due(Responder),
    /// The head is known, and the whole body has arrived with it.
    Whole(Responder, Response),
    /// On its way.
    Sent(ResponseStream),
    /// It is taken out for a moment, or is complete.
    #[default]
    Over,
}

/// A request that a target has in progress.
struct Work {
    targets: Arc<Targets>,
    target: usize,
}

impl Work {
    fn begin(targets: &Arc<Targets>, target: usize) -> Work {
        targets.all()[target].begin();
        Work { targets: targets.clone(), target }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.targets.all()[self.target].end();
    }
}

impl Passage {
    /// Forwards a request.
    pub(super) fn begin(
        reactor: &mut Reactor,
        shared: &Rc<Shared>,
        request: Request<'_>,
        responder: Responder,
        peer: Option<&Address>,
    ) {
        let client = match peer {
            Some(Address::Tcp(address)) if shared.targets.needs_client() => Some(address.ip()),
            _ => None,
        };
        let Some(target) = shared.targets.choose(&shared.upstream.group, client, &[]) else {
            tracing::warn!("request answered with 502: all targets are down");
            return responder.respond(reactor, Response::plain_status(502));
        };
        let length = request.content_length();
        let has_body = length != Some(0);
        let mut fields = Buffer::new();
        heads::request(&mut fields, shared, &request, peer);
        let path = if shared.upstream.replaces_prefix() { request.path() } else { request.full_path() };
        let (mark, query) = request.query().map_or(("", ""), |query| ("?", query));
        let url = shared.upstream.url(target).with_target([shared.upstream.base(target), path, mark, query]);
        let verb = match request.method() {
            Method::Other => Verb::Other(request.method_name().into()),
            known => Verb::Known(known),
        };
        let given = Given {
            host: shared.host == HostField::Client && request.host().is_some(),
            // The client's own are passed on as they are, or there are none.
            user_agent: true,
            accept_encoding: true,
            authorization: true,
            cookie: true,
            upgrade: request.wants_upgrade(),
            takes_refusals: true,
            expects_continue: has_body && request.expects_continue(),
            ..Given::default()
        };
        let payload = if has_body { Payload::Stream(length) } else { announced(&request) };
        let parts = Parts::forwarded(verb, url, fields, given, payload);
        let several = shared.upstream.group.members().len() > 1;
        let passage = Rc::new(Passage {
            shared: shared.clone(),
            answer: Cell::default(),
            exchange: RefCell::default(),
            body: has_body.then(|| match shared.body {
                Some(limit) => request.body().limit(limit),
                None => request.body(),
            }),
            body_ended: Cell::new(!has_body),
            reads: Cell::new(false),
            client,
            is_head: request.method() == Method::Head,
            work: RefCell::default(),
            tried: RefCell::default(),
            // Only needed for another target.
            target: if several { [path, mark, query].concat().into() } else { Box::default() },
        });
        let gone = passage.clone();
        responder.on_gone(reactor, move |reactor| gone.cancel(reactor));
        passage.answer.set(Answer::Due(responder));
        passage.send(reactor, target, parts);
    }

    /// Sends the request to a target.
    fn send(self: &Rc<Self>, reactor: &mut Reactor, target: usize, parts: Parts) {
        self.tried.borrow_mut().push(target);
        *self.work.borrow_mut() = Some(Work::begin(&self.shared.targets, target));
        let receiving = self.clone();
        let receive = move |reactor: &mut Reactor, event: ResponseEvent<'_>| receiving.receive(reactor, event);
        let accept = parts.asks_for_upgrade().then(|| {
            let switching = self.clone();
            let accept = move |reactor: &mut Reactor, head: Head<'_>| switching.switch(reactor, head);
            Box::new(accept) as Box<dyn FnOnce(&mut Reactor, Head<'_>) -> Option<Box<dyn Connection>>>
        });
        let exchange = self.shared.client.start(reactor, parts, Box::new(receive), accept);
        *self.exchange.borrow_mut() = Some(exchange.clone());
        if self.body.is_some() {
            let reading = self.clone();
            // Before there is a connection, the body stays with the client: the request may have to go elsewhere.
            exchange.when_ready(reactor, move |reactor| reading.read_body(reactor));
        }
    }

    fn exchange(&self) -> Option<Exchange> {
        self.exchange.borrow().clone()
    }

    /// The client has gone.
    fn cancel(&self, reactor: &mut Reactor) {
        let exchange = self.exchange.take();
        if let Some(exchange) = exchange {
            exchange.cancel(reactor);
        }
        self.work.take();
        // The client gets no answer.
        drop(self.answer.take());
    }

    /// Passes the body of the request on.
    fn read_body(self: &Rc<Self>, reactor: &mut Reactor) {
        let (Some(body), Some(exchange)) = (&self.body, self.exchange()) else { return };
        self.reads.set(true);
        let (passage, source) = (self.clone(), body.clone());
        body.read(reactor, move |reactor, event| match event {
            BodyEvent::Data(data) => match exchange.send(reactor, Bytes::copy_from_slice(data)) {
                Ok(SendState::Ready) => {}
                Ok(SendState::Full) => {
                    source.pause(reactor);
                    let source = source.clone();
                    exchange.when_ready(reactor, move |reactor| source.resume(reactor));
                }
                // The server has answered already, or has failed.
                Err(_) => source.discard(reactor),
            },
            BodyEvent::End(trailers) => {
                passage.body_ended.set(true);
                let mut lines = Vec::new();
                heads::trailers(&mut lines, trailers);
                exchange.finish_with_trailers(reactor, &lines);
            }
            // The client has gone, or has got its answer: the body was too slow, too long or malformed.
            BodyEvent::Failed(error) => {
                tracing::debug!(%error, "forwarded request not completed");
                passage.cancel(reactor);
            }
        });
    }

    fn receive(self: &Rc<Self>, reactor: &mut Reactor, event: ResponseEvent<'_>) {
        match (event, self.answer.take()) {
            (ResponseEvent::Interim(head), Answer::Due(responder)) => {
                let mut response = Response::new(head.status());
                heads::response(response.fields_mut(), &head);
                responder.interim(reactor, &response);
                self.answer.set(Answer::Due(responder));
            }
            (ResponseEvent::Head(head), Answer::Due(responder)) => {
                self.reached();
                let answer = self.head(reactor, &head, responder);
                self.answer.set(answer);
            }
            (ResponseEvent::Data(data), Answer::Whole(responder, response)) => {
                self.answer.set(Answer::Whole(responder, response.body(Bytes::copy_from_slice(data))));
            }
            (ResponseEvent::Data(data), Answer::Sent(stream)) => self.data(reactor, stream, data),
            (ResponseEvent::End(trailers), answer) => self.end(reactor, answer, trailers),
            (ResponseEvent::Failed(error), answer) => self.failed(reactor, answer, &error),
            // The client has gone.
            (_, answer) => drop(answer),
        }
    }

    /// Records that the target works.
    fn reached(&self) {
        if let Some(work) = &*self.work.borrow() {
            work.targets.succeeded(work.target);
        }
    }

    /// Begins the answer.
    fn head(&self, reactor: &mut Reactor, head: &Head<'_>, responder: Responder) -> Answer {
        let mut response = Response::new(head.status());
        heads::response(response.fields_mut(), head);
        let length = head.content_length();
        let has_body = !self.is_head && !matches!(head.status(), 204 | 304);
        match length {
            Some(length) => response.fields_mut().set_content_length(length),
            None if !has_body && !self.is_head => return Answer::Whole(responder, response),
            None => {}
        }
        let has_all = length.is_some_and(|length| !has_body || length <= head.follows() as u64);
        if has_all { Answer::Whole(responder, response) } else { Answer::Sent(responder.stream(reactor, response)) }
    }

    fn data(self: &Rc<Self>, reactor: &mut Reactor, stream: ResponseStream, data: &[u8]) {
        match stream.send(reactor, Bytes::copy_from_slice(data)) {
            Ok(SendState::Ready) => self.answer.set(Answer::Sent(stream)),
            Ok(SendState::Full) => {
                if let Some(exchange) = self.exchange() {
                    exchange.pause(reactor);
                }
                let passage = self.clone();
                stream.when_ready(reactor, move |reactor, stream| {
                    // If the server has failed meanwhile, the client's connection is closed.
                    if let Some(exchange) = passage.exchange().filter(|exchange| !exchange.is_over()) {
                        passage.answer.set(Answer::Sent(stream));
                        exchange.resume(reactor);
                    }
                });
            }
            Err(_) => self.cancel(reactor),
        }
    }

    /// The response is complete.
    fn end(&self, reactor: &mut Reactor, answer: Answer, trailers: Fields<'_>) {
        self.work.take();
        self.exchange.take();
        self.discard_body(reactor);
        match answer {
            Answer::Whole(responder, response) => responder.respond(reactor, response),
            Answer::Sent(stream) => {
                let mut fields = ResponseFields::default();
                if !trailers.is_empty() {
                    let mut lines = Vec::new();
                    heads::trailers(&mut lines, trailers);
                    fields.append_lines(&lines);
                }
                stream.finish_with_trailers(reactor, fields);
            }
            Answer::Due(_) | Answer::Over => {}
        }
    }

    /// A server that has answered, or failed, does not want the rest of the body.
    fn discard_body(&self, reactor: &mut Reactor) {
        if let Some(body) = self.body.as_ref().filter(|_| self.reads.get() && !self.body_ended.get()) {
            body.discard(reactor);
        }
    }

    /// The server was not reached, or its response is incomplete.
    fn failed(self: &Rc<Self>, reactor: &mut Reactor, answer: Answer, error: &Error) {
        let work = self.work.take();
        let busy = matches!(error.kind(), ErrorKind::Busy(_) | ErrorKind::Stopped);
        if let Some(work) = work.as_ref().filter(|_| !busy) {
            work.targets.failed(work.target);
        }
        let cause = error.kind();
        let target = work.as_ref().map(|work| work.targets.all()[work.target].endpoint().to_string());
        let target = target.unwrap_or_default();
        drop(work);
        let responder = match answer {
            Answer::Due(responder) | Answer::Whole(responder, _) => responder,
            // A stream that is dropped closes the client's connection, so that the client notices. If it waits for the client to
            // read, it is dropped later.
            answer @ (Answer::Sent(_) | Answer::Over) => {
                tracing::warn!(target, %cause, "response cut off");
                return drop(answer);
            }
        };
        if let Some((next, parts)) = self.next_target(error) {
            tracing::info!(target, %cause, "request sent to another target");
            self.answer.set(Answer::Due(responder));
            return self.send(reactor, next, parts);
        }
        self.exchange.take();
        self.discard_body(reactor);
        let status = match () {
            () if busy => 503,
            () if error.is_timeout() => 504,
            () => 502,
        };
        tracing::warn!(target, %cause, "request answered with {status}");
        responder.respond(reactor, Response::plain_status(status));
    }

    /// Returns another target, and the request for it, if it is safe to send it again.
    fn next_target(&self, error: &Error) -> Option<(usize, Parts)> {
        let mut tried = self.tried.borrow_mut();
        if self.reads.get() || tried.len() > self.shared.retries as usize || self.target.is_empty() {
            return None;
        }
        let mut parts = self.exchange()?.take_parts()?;
        let unanswered = matches!(error.kind(), ErrorKind::Ended { begun: false, .. }) && parts.verb.is_idempotent();
        if !error.is_connect() && !unanswered {
            return None;
        }
        let upstream = &self.shared.upstream;
        let next = self.shared.targets.choose(&upstream.group, self.client, &tried)?;
        tried.reserve(1);
        parts.url = Some(upstream.url(next).with_target([upstream.base(next), &self.target, "", ""]));
        Some((next, parts))
    }

    /// The server switches to another protocol, and the client with it.
    fn switch(&self, reactor: &mut Reactor, head: Head<'_>) -> Option<Box<dyn Connection>> {
        let Answer::Due(responder) = self.answer.take() else { return None };
        let (Some(front), Some(back)) = (responder.connection(), head.connection()) else { return None };
        if responder.is_gone(reactor) {
            return None;
        }
        self.reached();
        let mut response = Response::new(101);
        heads::response(response.fields_mut(), &head);
        let (at_client, at_server) = Side::pair(reactor, front, back, self.shared.tunnel_idle);
        responder.upgrade(reactor, response, at_client);
        Some(Box::new(at_server))
    }
}

/// A request without a body: whether that is announced, is passed on.
fn announced(request: &Request<'_>) -> Payload {
    match request.header("content-length") {
        Some(_) => Payload::Stream(Some(0)),
        None => Payload::Content(Content::Empty),
    }
}
