//! Responses whose bodies are sent in pieces.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pelton::{Fault, Reactor};

use crate::exchange::{Command, ExchangeToken, Gone, SendState};
use crate::{Content, ResponseFields};

/// The body of a response, sent in pieces. If it is dropped before it is finished, the connection is closed, so the client can
/// tell that data is missing.
///
/// ```
/// use pelton::Reactor;
/// use pelton_http::{SendState, Request, Responder, Response, ResponseStream};
///
/// fn count(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
///     let stream = responder.stream(reactor, Response::text(""));
///     send_numbers(reactor, stream, 0);
/// }
///
/// /// Sends while the client reads, and waits otherwise.
/// fn send_numbers(reactor: &mut Reactor, stream: ResponseStream, mut number: u32) {
///     while number < 1_000_000 {
///         number += 1;
///         match stream.send(reactor, format!("{number}\n")) {
///             Ok(SendState::Ready) => {}
///             Ok(SendState::Full) => return stream.when_ready(reactor, move |reactor, stream| send_numbers(reactor, stream, number)),
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

    /// Sends more of the body. Returns whether there is room for more. Data sent while the stream is full is not lost, but is
    /// queued in memory.
    pub fn send(&self, reactor: &mut Reactor, bytes: impl Into<Bytes>) -> Result<SendState, Gone> {
        self.token.as_ref().ok_or(Gone)?.tell(reactor, Command::Data(Content::Bytes(bytes.into())))
    }

    /// Sends a range of a file as more of the body, inside the kernel where possible. If the file is shorter, the connection is
    /// closed. Reading pages that are not cached blocks the loop.
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

    /// Calls `then` with the stream when there is room for more, or immediately if there is. If the client disconnects first,
    /// `then` is dropped, and the stream with it.
    pub fn when_ready(mut self, reactor: &mut Reactor, then: impl FnOnce(&mut Reactor, ResponseStream) + 'static) {
        let Some(token) = self.token.take() else { return };
        let stream = ResponseStream { token: Some(token.clone()) };
        let _ = token.tell(reactor, Command::WhenReady(Box::new(move |reactor| then(reactor, stream))));
    }

    /// Ends the body.
    pub fn finish(self, reactor: &mut Reactor) {
        self.finish_with_trailers(reactor, ResponseFields::default());
    }

    /// Ends the body with these trailers, if it is chunked. Invalid fields are omitted and reported.
    pub fn finish_with_trailers(mut self, reactor: &mut Reactor, trailers: ResponseFields) {
        if let Some(fault) = trailers.fault() {
            reactor.report(Fault::new("http", format_args!("response trailer omitted: {fault}")));
        }
        if let Some(token) = self.token.take() {
            let _ = token.tell(reactor, Command::Finish(trailers.lines().to_vec()));
        }
    }

    /// Calls `then` if the client disconnects before the body is complete.
    pub fn on_gone(&self, reactor: &mut Reactor, then: impl FnOnce(&mut Reactor) + 'static) {
        if let Some(token) = &self.token {
            token.on_gone(reactor, then);
        }
    }

    /// Whether the client has disconnected.
    pub fn is_gone(&self, reactor: &mut Reactor) -> bool {
        self.token.as_ref().is_none_or(|token| token.is_gone(reactor))
    }
}

impl Drop for ResponseStream {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            token.post(|| Command::Abort);
        }
    }
}
