//! Puts layers on connections.

use std::any::Any;

use pelton_os::{Chunk, Token};

use super::Layer;
use crate::Reactor;
use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::source::Source;
use crate::sources::connection::io::Input;
use crate::sources::connection::stream::{Ending, Stage};
use crate::sources::connection::{Connection, ConnectionId, Io, Limit, Proxied, Reason};

impl Io<'_> {
    /// Puts a [layer](Layer) on the connection, between its handler and the layers that it has already. The
    /// [handshake limit](Limit::Handshake) runs until the layer is [ready](super::LayerIo::ready).
    ///
    /// On an open connection, bytes sent before are not transformed, and those sent after are. The layer receives all
    /// input that the handler has not received yet. If the handler has received bytes that belong to the layer, use
    /// [`push_layer_with_unread`](Io::push_layer_with_unread). [`layer_ready`](Connection::layer_ready) is called when
    /// the layer is ready.
    ///
    /// Before the connection is open, everything goes through the layer, including bytes sent before. `opened` is
    /// called when the layer is ready. See [`Layered`].
    ///
    /// An open connection that is closing, has [finished](Io::finish) sending or is being [detached](Io::detach) does
    /// not change any more: the layer is dropped.
    pub fn push_layer(&mut self, layer: impl Layer) {
        self.push_layer_with_unread(layer, Vec::new());
    }

    /// Puts a [layer](Layer) on the connection like [`push_layer`](Io::push_layer). The layer receives `unread` first:
    /// the bytes that the handler has received and that belong to the layer, because they arrived together with the
    /// last bytes for the handler.
    pub fn push_layer_with_unread(&mut self, layer: impl Layer, unread: Vec<u8>) {
        let now = self.reactor.now;
        let Some(stream) = self.reactor.stream_mut(self.id.0) else { return };
        let (opened, connecting) = match stream.stage {
            Stage::Connecting => (false, true),
            Stage::Layering => (false, false),
            Stage::Open if stream.may_send() => (true, false),
            Stage::Open | Stage::Detaching | Stage::Over => return,
        };
        if stream.is_manual() {
            return self.close_with(Reason::layer("a manual connection cannot have layers"));
        }
        if stream.ending == Ending::Detach {
            // The socket must not be given away without the layer that it should have had from the start.
            return self.close_with(Reason::layer("a connection cannot be detached before it has its layers"));
        }
        let (below, wire_ended) = (if opened { stream.outbox.take() } else { None }, stream.peer_finished());
        let first = !std::mem::replace(&mut stream.layered, true);
        let extra = stream.extra();
        let held = std::mem::take(&mut extra.held);
        let layers = extra.layers.get_or_insert_default();
        layers.wire_ended |= first && wire_ended;
        if !connecting {
            layers.unready_since.get_or_insert(now);
        }
        let level = layers.push(Box::new(layer), below);
        level.input.push(Chunk::from(unread));
        level.input.ended = wire_ended;
        for input in held {
            match input {
                Input::Chunk(chunk) => level.input.push(chunk),
                Input::End => level.input.ended = true,
            }
        }
        self.reactor.arm_limits(self.id.0);
        self.reactor.queue_flush(self.id.0);
    }

    /// Calls `visit` with the topmost layer of type `L`, for example to ask TLS for the peer's certificate. Returns
    /// `None` if there is none or it is running.
    pub fn visit_layer<L: Layer, R>(&mut self, visit: impl FnOnce(&mut L) -> R) -> Option<R> {
        let layers = self.reactor.stream_mut(self.id.0)?.layers_mut()?;
        let layer = layers.levels.iter_mut().rev().find_map(|level| {
            let layer: &mut dyn Any = &mut **level.layer.as_mut()?;
            layer.downcast_mut()
        })?;
        Some(visit(layer))
    }

    /// Returns whether the connection has [layers](Layer).
    pub fn has_layers(&mut self) -> bool {
        self.reactor.stream_mut(self.id.0).is_some_and(|stream| stream.layered)
    }
}

/// A handler whose connections get [layers](Layer) before they open. It works wherever a handler does: with
/// [`listen`](Reactor::listen), [`connect`](Reactor::connect), [`adopt`](Reactor::adopt),
/// [`Reactors::listen`](crate::Reactors::listen), [`Reconnect`](crate::Reconnect).
///
/// When the connection is established, `prepare` is called and the inner handler takes the place of this one. When all
/// layers are ready, its [`opened`](Connection::opened) is called.
///
/// ```
/// # use pelton::{Chunk, Connection, Io, Layer, LayerIo, Layered, Reactor, Reason};
/// # use std::io::IoSlice;
/// # struct Echo;
/// # impl Connection for Echo {
/// #     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {}
/// # }
/// # struct Tls;
/// # impl Layer for Tls {
/// #     fn receive(&mut self, io: &mut LayerIo<'_>, input: &[u8]) -> Result<usize, Reason> { Ok(0) }
/// #     fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> { Ok(0) }
/// # }
/// let mut reactor = Reactor::new()?;
/// reactor.listen("127.0.0.1:0", |_| Layered::new(Echo, |io| io.push_layer(Tls)))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Layered {
    handler: Box<dyn Connection>,
    prepare: Prepare,
}

type Prepare = Box<dyn FnOnce(&mut Io<'_>)>;

impl Layered {
    /// Makes a handler of `handler` and a function that puts layers on its connection.
    pub fn new(handler: impl Connection, prepare: impl FnOnce(&mut Io<'_>) + 'static) -> Layered {
        Layered { handler: Box::new(handler), prepare: Box::new(prepare) }
    }
}

/// Passes on what happens before the connection is established.
impl Connection for Layered {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.handler.received(io, chunk);
    }

    fn proxy_finished(&mut self, io: &mut Io<'_>, proxied: &Proxied) {
        self.handler.proxy_finished(io, proxied);
    }

    fn timed_out(&mut self, io: &mut Io<'_>, limit: Limit) {
        self.handler.timed_out(io, limit);
    }

    fn draining(&mut self, io: &mut Io<'_>) {
        self.handler.draining(io);
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        self.handler.closed(reactor, reason);
    }
}

impl Reactor {
    /// Lets a [`Layered`] handler put its layers on the connection, which is established, and replaces the handler
    /// with its inner one.
    pub(in super::super) fn prepare_layers(&mut self, token: Token) {
        loop {
            let Some(Source::Connection(stream)) = self.sources.get_mut(token) else { return };
            let Some(handler) = stream.handler.take_if(|handler| (&**handler as &dyn Any).is::<Layered>()) else {
                return;
            };
            let site = Site {
                kind: CallbackKind::Connection,
                place: stream.location,
                source: Some(ConnectionId(token).into()),
            };
            let Ok(layered) = (handler as Box<dyn Any>).downcast::<Layered>() else { return };
            let Layered { handler, prepare } = *layered;
            self.call_source(
                site,
                handler,
                |_, reactor| prepare(&mut Io { reactor, id: ConnectionId(token) }),
                |reactor, handler, outcome| {
                    if let Some(stream) = reactor.stream_mut(token) {
                        stream.handler = Some(handler);
                    }
                    if outcome == Outcome::Panicked {
                        reactor.connection_is_over(token, Reason::Panicked);
                    }
                },
            );
        }
    }
}
