//! Server-sent events, with reconnects (WHATWG HTML, "Server-sent events").

mod parser;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Backoff, Reactor, TimerId};

use self::parser::Parser;
use super::call::Exchange;
use super::error::{Error, ErrorKind};
use super::response::ResponseEvent;
use super::{BadUrl, Client, Url};

/// Something that happens to an [`EventSource`].
#[derive(Debug)]
pub enum SourceEvent<'a> {
    /// The stream is open.
    Open,
    /// An event was received.
    Message(Message<'a>),
    /// The stream has ended. It is opened again after this time.
    Lost(Error, Duration),
    /// The stream has ended for good: the server says so, or does not send events.
    Ended(Error),
}

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Its type, `message` by default.
    pub name: &'a str,
    /// Its data, without the last line break.
    pub data: &'a str,
    /// The ID of the latest event that had one. It is sent when the stream is opened again.
    pub id: &'a str,
}

/// A stream of events, which is opened again when it ends. Dropping it closes it.
pub struct EventSource {
    source: Rc<Source>,
}

type Handler = Box<dyn FnMut(&mut Reactor, SourceEvent<'_>)>;

struct Source {
    client: Client,
    url: Result<Url, BadUrl>,
    handler: Cell<Option<Handler>>,
    state: RefCell<State>,
    closed: Cell<bool>,
}

struct State {
    parser: Parser,
    exchange: Option<Exchange>,
    timer: Option<TimerId>,
    backoff: Backoff,
    opened: bool,
}

impl Client {
    /// Opens a stream of server-sent events, and keeps it open. There is no limit on the time of the stream, nor between events.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// # use pelton_http::{Client, Event, EventStream, Request, Responder, Server};
    /// use pelton_http::client::SourceEvent;
    ///
    /// # let news = |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
    /// #     let stream = EventStream::start(reactor, responder);
    /// #     stream.send(reactor, &Event::new("it rains").name("weather").id("7")).ok();
    /// # };
    /// let mut reactor = Reactor::new()?;
    /// # let listener = Server::new(news).listen(&mut reactor, "127.0.0.1:0")?;
    /// # let url = format!("http://{}/", reactor.listening_on(listener).expect("the listener was just started"));
    /// let source = Client::new().events(&mut reactor, &url, |reactor, event| match event {
    ///     SourceEvent::Message(message) => {
    ///         assert_eq!((message.name, message.data, message.id), ("weather", "it rains", "7"));
    ///         reactor.stop();
    ///     }
    ///     SourceEvent::Open | SourceEvent::Lost(..) => {}
    ///     SourceEvent::Ended(error) => panic!("{error}"),
    /// });
    /// reactor.run()?;
    /// # drop(source);
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn events(
        &self,
        reactor: &mut Reactor,
        url: impl TryInto<Url, Error: Into<BadUrl>>,
        handler: impl FnMut(&mut Reactor, SourceEvent<'_>) + 'static,
    ) -> EventSource {
        let source = Rc::new(Source {
            client: self.clone(),
            url: url.try_into().map_err(Into::into),
            handler: Cell::new(Some(Box::new(handler))),
            state: RefCell::new(State {
                parser: Parser::default(),
                exchange: None,
                timer: None,
                backoff: Backoff::default().start(Duration::from_secs(3)),
                opened: false,
            }),
            closed: Cell::new(false),
        });
        source.open(reactor);
        EventSource { source }
    }
}

impl Source {
    fn open(self: &Rc<Self>, reactor: &mut Reactor) {
        let mut request = super::Request::new(self.client.clone(), crate::Method::Get, self.url.clone())
            .header("Accept", "text/event-stream")
            .header("Cache-Control", "no-store")
            .time_limit(None)
            .between_limit(Duration::MAX);
        let id = self.state.borrow().parser.last_id().to_owned();
        if !id.is_empty() {
            request = request.header("Last-Event-ID", id);
        }
        {
            let state = &mut *self.state.borrow_mut();
            state.parser.restart();
            state.opened = false;
        }
        let source = Rc::downgrade(self);
        let exchange = request.stream(reactor, move |reactor, event| {
            if let Some(source) = source.upgrade() {
                source.received(reactor, event);
            }
        });
        self.state.borrow_mut().exchange = Some(exchange);
    }

    fn tell(&self, reactor: &mut Reactor, event: SourceEvent<'_>) {
        if let Some(mut handler) = self.handler.take() {
            handler(reactor, event);
            if !self.closed.get() {
                self.handler.set(Some(handler));
            }
        }
    }

    fn received(self: &Rc<Self>, reactor: &mut Reactor, event: ResponseEvent<'_>) {
        match event {
            ResponseEvent::Interim(_) => {}
            ResponseEvent::Head(head) => {
                let media_type = head.fields().text("content-type").unwrap_or_default();
                let essence = media_type.split(';').next().unwrap_or_default().trim();
                if head.status() != 200 {
                    return self.end(reactor, ErrorKind::Status(head.status()));
                }
                if !essence.eq_ignore_ascii_case("text/event-stream") {
                    return self
                        .end(reactor, ErrorKind::Body(format!("{media_type:?} is not a stream of events").into()));
                }
                self.state.borrow_mut().opened = true;
                self.tell(reactor, SourceEvent::Open);
            }
            ResponseEvent::Data(mut data) => {
                while !data.is_empty() && !self.closed.get() {
                    // The parser is taken out, because the handler may close the source.
                    let mut parser = std::mem::take(&mut self.state.borrow_mut().parser);
                    let outcome = parser.advance(data);
                    match outcome {
                        Ok((used, is_complete)) => {
                            data = &data[used..];
                            if is_complete {
                                self.state.borrow_mut().backoff.reset();
                                self.tell(reactor, SourceEvent::Message(parser.message()));
                                parser.next();
                            }
                            self.state.borrow_mut().parser = parser;
                        }
                        Err(why) => {
                            self.state.borrow_mut().parser = parser;
                            return self.end(reactor, ErrorKind::Body(why.into()));
                        }
                    }
                }
            }
            ResponseEvent::End(_) => {
                let ended = ErrorKind::Ended { reason: pelton::Reason::Finished, begun: true };
                self.lost(reactor, self.error(ended));
            }
            ResponseEvent::Failed(error) => match error.kind() {
                ErrorKind::BadUrl(_) | ErrorKind::BadRequest(_) | ErrorKind::Stopped => {
                    self.closed.set(true);
                    self.handler_ends(reactor, error);
                }
                _ => self.lost(reactor, error),
            },
        }
    }

    fn error(&self, kind: ErrorKind) -> Error {
        let state = self.state.borrow();
        match &state.exchange {
            Some(exchange) => exchange.error(kind),
            None => Error::new("GET", "", kind),
        }
    }

    fn handler_ends(&self, reactor: &mut Reactor, error: Error) {
        if let Some(mut handler) = self.handler.take() {
            handler(reactor, SourceEvent::Ended(error));
        }
    }

    /// The server does not send events: do not ask again.
    fn end(self: &Rc<Self>, reactor: &mut Reactor, kind: ErrorKind) {
        let error = self.error(kind);
        self.closed.set(true);
        self.handler_ends(reactor, error);
        let exchange = self.state.borrow_mut().exchange.take();
        if let Some(exchange) = exchange {
            exchange.cancel(reactor);
        }
    }

    fn lost(self: &Rc<Self>, reactor: &mut Reactor, error: Error) {
        let wait = {
            let state = &mut *self.state.borrow_mut();
            match state.parser.retry() {
                Some(retry) => retry,
                None => state.backoff.next_wait(),
            }
        };
        self.tell(reactor, SourceEvent::Lost(error, wait));
        if self.closed.get() || reactor.stopping() {
            return;
        }
        let source = Rc::downgrade(self);
        let timer = reactor.after(wait, move |reactor| {
            if let Some(source) = source.upgrade().filter(|source| !source.closed.get()) {
                source.state.borrow_mut().timer = None;
                source.open(reactor);
            }
        });
        self.state.borrow_mut().timer = Some(timer);
    }
}

impl EventSource {
    /// Closes the stream. The handler is not called again.
    pub fn close(&self, reactor: &mut Reactor) {
        self.source.closed.set(true);
        let (exchange, timer) = {
            let state = &mut *self.source.state.borrow_mut();
            (state.exchange.take(), state.timer.take())
        };
        if let Some(exchange) = exchange {
            exchange.cancel(reactor);
        }
        if let Some(timer) = timer {
            reactor.cancel(timer);
        }
        drop(self.source.handler.take());
    }

    /// Whether the stream is open.
    pub fn is_open(&self) -> bool {
        let state = self.source.state.borrow();
        state.opened && !self.source.closed.get() && state.exchange.as_ref().is_some_and(|exchange| !exchange.is_over())
    }
}

impl Drop for EventSource {
    fn drop(&mut self) {
        self.source.closed.set(true);
        if let Ok(mut state) = self.source.state.try_borrow_mut()
            && let Some(exchange) = state.exchange.take()
        {
            exchange.abandon();
        }
    }
}

impl fmt::Debug for EventSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSource").field("url", &self.source.url).finish_non_exhaustive()
    }
}
