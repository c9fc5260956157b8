//! Switches to another protocol.

use pelton::{Connection, Reactor};

use super::call::Exchange;
use super::error::Error;
use super::request::Request;
use super::response::{Head, ResponseEvent};

/// Decides whether to take over the connection.
pub(super) type Accept = Box<dyn FnOnce(&mut Reactor, Head<'_>) -> Option<Box<dyn Connection>>>;

impl Request {
    /// Asks the server to switch to another protocol, such as `websocket`. If it agrees (101), `accept` is called with the head of
    /// its response, and returns the handler that takes over the connection, beginning with the bytes that followed; or `None` to
    /// refuse the response. In all other cases `failed` is called.
    ///
    /// ```no_run
    /// # use pelton::{Chunk, Connection, Io, Reactor};
    /// # struct Chat;
    /// # impl Connection for Chat {
    /// #     fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
    /// # }
    /// use pelton_http::Client;
    ///
    /// let mut reactor = Reactor::new()?;
    /// Client::new().get("http://127.0.0.1:8080/chat").upgrade(
    ///     &mut reactor,
    ///     "chat",
    ///     |_, _| Some(Box::new(Chat)),
    ///     |_, error| eprintln!("{error}"),
    /// );
    /// reactor.run()?;
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn upgrade(
        mut self,
        reactor: &mut Reactor,
        protocol: &str,
        accept: impl FnOnce(&mut Reactor, Head<'_>) -> Option<Box<dyn Connection>> + 'static,
        failed: impl FnOnce(&mut Reactor, Error) + 'static,
    ) -> Exchange {
        self.parts.given.upgrade = true;
        self.append(b"Upgrade", protocol.as_bytes());
        let mut failed = Some(failed);
        let receive = move |reactor: &mut Reactor, event: ResponseEvent<'_>| {
            if let ResponseEvent::Failed(error) = event
                && let Some(failed) = failed.take()
            {
                failed(reactor, error);
            }
        };
        self.start(reactor, Box::new(receive), Some(Box::new(accept)))
    }
}
