//! Responses whose bodies come bit by bit.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pelton::{Fault, Reactor};

use crate::exchange::{Command, ExchangeToken, Gone, SendState};
use crate::{Content, ResponseFields};

/// The body of a response, sent bit by bit. If it is dropped before it is finished, the connection is closed, so that the client
/// knows that something is missing.
///
/// ```
/// use pelton::Reactor;
/// use pelton_http::{SendState, Request, Responder, Response, ResponseStream};
///
/// fn count(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
///     let stream = responder.stream(reactor, Response::text(""));
///     go_on(reactor, stream, 0);
/// }
///
/// /// Sends as long as the client reads, and waits while it does not.
/// fn go_on(reactor: &mut Reactor, stream: ResponseStream, mut number: u32) {
///     while number < 1_000_000 {
///         number += 1;
///         match stream.send(reactor, format!("{number}\n")) {
///             Ok(SendState::Ready) => {}
///             Ok(SendState::Full) => return stream.when_ready(reactor, move |reactor, stream| go_on(reactor, stream, number)),
///             Err(_) => return,
///         }
///     }
///     stream.finish(reactor);
/// }
/// ```
#[must_use = "a stream that is dropped closes the connection"]
#[derive(Debug)]
pub struct ResponseStream {
    /// `None` once it has ended.
    token: Option<ExchangeToken>,
}

impl ResponseStream {
    pub(crate) fn new(token: Option<ExchangeToken>) -> ResponseStream {
        ResponseStream { token }
    }

    /// Sends more of the body, and says whether it had better be the last for now. Nothing is lost either way, but what does not fit
    /// waits in memory.
    pub fn send(&self, reactor: &mut Reactor, bytes: impl Into<Bytes>) -> Result<SendState, Gone> {
        self.token.as_ref().ok_or(Gone)?.tell(reactor, Command::Data(Content::Bytes(bytes.into())))
    }

    /// Sends a part of a file as more of the body, inside the kernel where it can. If the file turns out to be shorter, the connection is
    /// closed. What is not in memory yet is read from the disk meanwhile, which holds up the loop.
    pub fn send_file(
        &self,
        reactor: &mut Reactor,
        file: impl Into<Arc<File>>,
        range: Range<u64>,
    ) -> Result<SendState, Gone> {
        let length = range.end.saturating_sub(range.start);
        let content = Content::File { file: file.into(), offset: range.start, length };
        self.token.as_ref().ok_or(Gone)?.tell(reactor, Command::Data(content))
    }

    /// Gives the stream back when there is room for more; at once, if there is. If the client goes first, `then` is dropped, and
    /// the stream with it.
    pub fn when_ready(mut self, reactor: &mut Reactor, then: impl FnOnce(&mut Reactor, ResponseStream) + 'static) {
        let Some(token) = self.token.take() else { return };
        let stream = ResponseStream { token: Some(token.clone()) };
        let _ = token.tell(reactor, Command::WhenReady(Box::new(move |reactor| then(reactor, stream))));
    }

    /// The body is complete.
    pub fn finish(self, reactor: &mut Reactor) {
        self.finish_with_trailers(reactor, ResponseFields::default());
    }

    /// The body is complete, and these fields come after it, if it is sent in chunks. Fields that are not valid are left out and
    /// logged.
    pub fn finish_with_trailers(mut self, reactor: &mut Reactor, trailers: ResponseFields) {
        if let Some(fault) = trailers.fault() {
            reactor.report(Fault::new("http", format_args!("a trailer of a response is left out: {fault}")));
        }
        if let Some(token) = self.token.take() {
            let _ = token.tell(reactor, Command::Finish(trailers.lines().to_vec()));
        }
    }

    /// Calls `then` if the client goes before the body is complete.
    pub fn on_gone(&self, reactor: &mut Reactor, then: impl FnOnce(&mut Reactor) + 'static) {
        if let Some(token) = &self.token {
            let _ = token.tell(reactor, Command::OnGone(Box::new(then)));
        }
    }

    /// Whether the client has gone.
    pub fn is_gone(&self, reactor: &mut Reactor) -> bool {
        self.token.as_ref().is_none_or(|token| reactor.connection(token.connection).is_none())
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            token.post(|| Command::Abort);
        }
    }
}
