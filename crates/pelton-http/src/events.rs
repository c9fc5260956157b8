//! Server-sent events.

use std::fmt::Write;

use pelton::Reactor;

use crate::exchange::{Gone, SendState};
use crate::{Responder, Response, ResponseStream};

/// An event for a browser's `EventSource`.
///
/// ```
/// use pelton_http::Event;
///
/// let event = Event::new("two\nlines").name("news").id("7");
/// assert_eq!(event.to_string(), "event: news\nid: 7\ndata: two\ndata: lines\n\n");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Event {
    text: String,
    data: String,
}

impl Event {
    /// An event with this data, which may have several lines.
    pub fn new(data: impl Into<String>) -> Event {
        Event { text: String::new(), data: data.into() }
    }

    /// Sets the type of the event.
    #[must_use]
    pub fn name(self, name: &str) -> Event {
        self.field("event", name)
    }

    /// Sets the ID, which the browser sends as `Last-Event-ID` when it reconnects.
    #[must_use]
    pub fn id(self, id: &str) -> Event {
        self.field("id", id)
    }

    /// Sets how long the browser waits before it reconnects.
    #[must_use]
    pub fn retry(self, after: std::time::Duration) -> Event {
        let milliseconds = after.as_millis().to_string();
        self.field("retry", &milliseconds)
    }

    /// A field is one line and ends at a line break.
    fn field(mut self, name: &str, value: &str) -> Event {
        let value = value.split(['\r', '\n', '\0']).next().unwrap_or_default();
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{name}: {value}");
        self
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)?;
        // Browsers treat all three line endings alike.
        for line in self.data.replace("\r\n", "\n").split(['\r', '\n']) {
            writeln!(f, "data: {line}")?;
        }
        f.write_char('\n')
    }
}

/// A response that is a stream of [events](Event). Dropping it ends the stream, and the browser reconnects.
#[derive(Debug)]
pub struct EventStream {
    stream: ResponseStream,
}

impl EventStream {
    /// Answers a request with events.
    pub fn start(reactor: &mut Reactor, responder: Responder) -> EventStream {
        let head = Response::ok().header("Content-Type", "text/event-stream").header("Cache-Control", "no-store");
        EventStream { stream: responder.stream(reactor, head) }
    }

    /// Sends an event.
    pub fn send(&self, reactor: &mut Reactor, event: &Event) -> Result<SendState, Gone> {
        self.stream.send(reactor, event.to_string())
    }

    /// Sends a comment, which browsers ignore, to keep intermediaries from closing the connection.
    pub fn comment(&self, reactor: &mut Reactor, text: &str) -> Result<SendState, Gone> {
        let line = text.split(['\r', '\n']).next().unwrap_or_default();
        self.stream.send(reactor, format!(": {line}\n\n"))
    }

    /// The stream itself, for [`when_ready`](ResponseStream::when_ready), [`on_gone`](ResponseStream::on_gone) and
    /// [`finish`](ResponseStream::finish).
    pub fn into_stream(self) -> ResponseStream {
        self.stream
    }

    /// Calls `then` when the client disconnects.
    pub fn on_gone(&self, reactor: &mut Reactor, then: impl FnOnce(&mut Reactor) + 'static) {
        self.stream.on_gone(reactor, then);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_contain_line_breaks() {
        let event = Event::new("a\r\nb\rc\n").name("n\ndata: x").id("i\r\nretry: 1");
        assert_eq!(event.to_string(), "event: n\nid: i\ndata: a\ndata: b\ndata: c\ndata: \n\n");
    }
}
