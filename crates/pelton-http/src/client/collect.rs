//! Collects whole responses, for callbacks and tasks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pelton::{Promise, Reactor, Rejected};

use super::call::Exchange;
use super::error::{Error, ErrorKind};
use super::request::Request;
use super::response::{Response, ResponseEvent};

/// A `Content-Length` is only a promise of the server: no more than this is allocated before data arrives.
const TRUSTED: u64 = 64 * 1024;

/// Makes a receiver that calls `then` with the whole response. The exchange enforces the limit on its size.
pub(super) fn collector(
    then: impl FnOnce(&mut Reactor, Result<Response, Error>) + 'static,
) -> impl FnMut(&mut Reactor, ResponseEvent<'_>) + 'static {
    let mut then = Some(then);
    let mut response: Option<Response> = None;
    move |reactor, event| match event {
        ResponseEvent::Interim(_) => {}
        ResponseEvent::Head(head) => {
            let length = head.content_length().unwrap_or(0).min(TRUSTED);
            response = Some(head.keep(length as usize));
        }
        ResponseEvent::Data(data) => {
            if let Some(response) = &mut response {
                response.body.extend_from_slice(data);
            }
        }
        ResponseEvent::End(_) => {
            if let (Some(then), Some(response)) = (then.take(), response.take()) {
                then(reactor, Ok(response));
            }
        }
        ResponseEvent::Failed(error) => {
            if let Some(then) = then.take() {
                then(reactor, Err(error));
            }
        }
    }
}

/// The future of a [`Request`]. Dropping it cancels the request.
///
/// # Panics
///
/// If it is polled while no reactor is [current](Reactor::with_current), which is the case outside of its tasks.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Fetch {
    state: State,
}

enum State {
    New(Box<Request>),
    Sent(Exchange, Promise<Response, Error>),
    Done,
}

impl Fetch {
    pub(super) fn new(request: Request) -> Fetch {
        Fetch { state: State::New(Box::new(request)) }
    }
}

impl Future for Fetch {
    type Output = Result<Response, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if matches!(self.state, State::New(_))
            && let State::New(request) = std::mem::replace(&mut self.state, State::Done)
        {
            let start = |reactor: &mut Reactor| {
                let (deferred, promise) = reactor.promise();
                let exchange = request.send(reactor, move |_, response| drop(deferred.settle(response)));
                State::Sent(exchange, promise)
            };
            match Reactor::with_current(start) {
                Some(sent) => self.state = sent,
                None => panic!("there is no current reactor: await a request inside one of its tasks"),
            }
        }
        let State::Sent(exchange, promise) = &mut self.state else {
            panic!("the future was polled after it had completed");
        };
        let outcome = std::task::ready!(Pin::new(promise).poll(context));
        let outcome = outcome.map_err(|rejected| match rejected {
            Rejected::Failed(error) => error,
            // The reactor has dropped the exchange.
            _ => exchange.error(ErrorKind::Stopped),
        });
        self.state = State::Done;
        Poll::Ready(outcome)
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let State::Sent(exchange, _) = &self.state {
            exchange.abandon();
        }
    }
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            State::New(_) => "Fetch(not sent)",
            State::Sent(..) => "Fetch(sent)",
            State::Done => "Fetch(done)",
        })
    }
}
