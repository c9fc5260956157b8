//! Responses in pieces, for tasks.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use pelton::Reactor;

use super::call::Exchange;
use super::error::{Error, ErrorKind};
use super::request::Request;
use super::response::{Response, ResponseEvent};

/// Above this many bytes that wait for the task, the server has to wait too.
const HIGH: usize = 256 * 1024;

/// Below this many bytes, reading resumes.
const LOW: usize = 64 * 1024;

/// A response whose body a task reads in pieces. Dropping it cancels the rest.
///
/// ```
/// # use pelton::Reactor;
/// # use pelton_http::{Client, Server, plain};
/// # let mut reactor = Reactor::new()?;
/// # let listener = Server::new(plain(|_| "hello\n")).listen(&mut reactor, "127.0.0.1:0")?;
/// # let url = format!("http://{}/", reactor.listening_on(listener).expect("the listener was just started"));
/// # let client = Client::new();
/// let length = reactor.block_on(async {
///     let mut incoming = client.get(&url).open().await?;
///     assert_eq!(incoming.head().status(), 200);
///     let mut length = 0;
///     while let Some(piece) = incoming.next().await? {
///         length += piece.len();
///     }
///     Ok::<_, pelton_http::client::Error>(length)
/// })??;
/// assert_eq!(length, 6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Incoming {
    head: Response,
    exchange: Exchange,
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    head: Option<Response>,
    pieces: VecDeque<Bytes>,
    queued: usize,
    /// The response is complete, or has failed.
    end: Option<Option<Error>>,
    paused: bool,
    waker: Option<Waker>,
}

impl Request {
    /// Sends the request in a task, and completes with the head of the response. The body is read in pieces.
    ///
    /// # Panics
    ///
    /// If no reactor is [current](Reactor::with_current), which is the case outside of its tasks.
    pub async fn open(self) -> Result<Incoming, Error> {
        let state: Rc<RefCell<State>> = Rc::default();
        let slot: Rc<RefCell<Option<Exchange>>> = Rc::default();
        let (shared, own) = (state.clone(), slot.clone());
        let receive = move |reactor: &mut Reactor, event: ResponseEvent<'_>| {
            let mut state = shared.borrow_mut();
            let mut is_full = false;
            match event {
                ResponseEvent::Interim(_) => {}
                ResponseEvent::Head(head) => state.head = Some(head.keep(0)),
                ResponseEvent::Data(data) => {
                    state.pieces.push_back(Bytes::copy_from_slice(data));
                    state.queued += data.len();
                    is_full = state.queued > HIGH && !std::mem::replace(&mut state.paused, true);
                }
                ResponseEvent::End(_) => state.end = Some(None),
                ResponseEvent::Failed(error) => state.end = Some(Some(error)),
            }
            let waker = state.waker.take();
            drop(state);
            if let Some(exchange) = own.borrow().as_ref().filter(|_| is_full) {
                exchange.pause(reactor);
            }
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        let Some(exchange) = Reactor::with_current(|reactor| self.stream(reactor, receive)) else {
            panic!("there is no current reactor: call this inside one of its tasks");
        };
        *slot.borrow_mut() = Some(exchange.clone());
        let opening = Opening(Some(exchange));
        let head = poll_fn(|context| {
            let state = &mut *state.borrow_mut();
            match (state.head.take(), &mut state.end) {
                (Some(head), _) => Poll::Ready(Ok(head)),
                (None, Some(error)) => Poll::Ready(Err(error.take())),
                (None, None) => wait(state, context),
            }
        });
        let outcome = head.await;
        let exchange = opening.release();
        match outcome {
            Ok(head) => Ok(Incoming { head, exchange, state }),
            Err(error) => Err(error.unwrap_or_else(|| exchange.error(ErrorKind::Cancelled))),
        }
    }
}

/// Cancels the exchange if the future is dropped.
struct Opening(Option<Exchange>);

impl Opening {
    fn release(mut self) -> Exchange {
        self.0.take().expect("it is released once")
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(exchange) = &self.0 {
            exchange.abandon();
        }
    }
}

fn wait<T>(state: &mut State, context: &Context<'_>) -> Poll<T> {
    match &mut state.waker {
        Some(waker) => waker.clone_from(context.waker()),
        none => *none = Some(context.waker().clone()),
    }
    Poll::Pending
}

impl Incoming {
    /// Status and fields. Its body is empty.
    pub fn head(&self) -> &Response {
        &self.head
    }

    /// Controls the exchange.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// The next piece of the body, or `None` at its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let piece = poll_fn(|context| {
            let state = &mut *self.state.borrow_mut();
            match (state.pieces.pop_front(), &mut state.end) {
                (Some(piece), _) => {
                    state.queued -= piece.len();
                    Poll::Ready(Ok(Some(piece)))
                }
                (None, Some(None)) => Poll::Ready(Ok(None)),
                (None, Some(error)) => Poll::Ready(error.take().map_or(Ok(None), Err)),
                (None, None) => wait(state, context),
            }
        });
        let piece = piece.await?;
        let resumes = {
            let state = &mut *self.state.borrow_mut();
            state.queued < LOW && std::mem::take(&mut state.paused)
        };
        if resumes {
            Reactor::with_current(|reactor| self.exchange.resume(reactor));
        }
        Ok(piece)
    }

    /// Collects the rest of the body, up to this many bytes.
    pub async fn rest(&mut self, most: u64) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await? {
            if (all.len() + piece.len()) as u64 > most {
                return Err(self.exchange.error(ErrorKind::TooLarge { limit: most }));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.exchange.is_over() {
            self.exchange.abandon();
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("head", &self.head).finish_non_exhaustive()
    }
}
