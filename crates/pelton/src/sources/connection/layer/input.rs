//! Moves bytes from the engine through the layers to the handler.

use pelton_os::{Chunk, Intake, Outbox, Token};

use super::stack::{AHEAD, Backlog, Calls, Level, Phase, Taken};
use super::{Layer, LayerIo};
use crate::Reactor;
use crate::reactor::callback::{CallbackKind, Outcome, Site};
use crate::reactor::source::Source;
use crate::sources::connection::io::Input;
use crate::sources::connection::stream::{Ending, Stage};
use crate::sources::connection::{ConnectionId, ConnectionState, Reason};

/// How often the layers of one connection are called in a row. The rest has to wait for the next turn, so that a layer
/// with endless output does not starve other connections.
const CALLS_IN_A_ROW: usize = 64;

/// The next call of a layer on the way up.
enum Step {
    Start(u32),
    Woken(u32),
    Receive(u32),
    PeerFinished(u32),
}

impl ConnectionState {
    /// Returns the next call of a layer that has something to do, from the handler to the wire.
    fn next_step(&self) -> Option<Step> {
        let layers = self.layers()?;
        if layers.failed || !matches!(self.stage, Stage::Layering | Stage::Open) {
            return None;
        }
        // Input that is held for the handler stops the top layer. That of another layer has a limit.
        let mut room_above = self.receives() && !self.holds_input();
        let unready = layers.levels.iter().position(|level| !level.is_ready());
        for (index, level) in layers.levels.iter().enumerate().rev() {
            let room = room_above || !level.is_ready();
            room_above = level.input.len() < AHEAD;
            if level.layer.is_none() || level.calls == Calls::Waits {
                continue;
            }
            if level.phase == Phase::New {
                if unready == Some(index) {
                    return Some(Step::Start(level.id));
                }
            } else if level.calls == Calls::Woken {
                return Some(Step::Woken(level.id));
            } else if room && (level.input.is_pending() || level.calls == Calls::Again) {
                return Some(Step::Receive(level.id));
            } else if room && level.input.ended && !level.ended && !level.told_end {
                return Some(Step::PeerFinished(level.id));
            }
        }
        None
    }

    /// Gives back loans that hold much more memory than the input that waits in them.
    fn compact_held(&mut self) {
        let Some(extra) = &mut self.extra else { return };
        for input in extra.held.iter_mut() {
            if let Input::Chunk(chunk) = input {
                chunk.compact();
            }
        }
        if let Some(layers) = &mut extra.layers {
            layers.levels.iter_mut().for_each(|level| level.input.compact());
        }
    }

    /// Returns whether the layers or the handler can process input that is here already, unless the next turn does it
    /// anyway.
    pub(in super::super) fn has_input_to_process(&self) -> bool {
        let Some(layers) = self.layers().filter(|layers| !layers.continues) else { return false };
        layers.levels.is_empty() || (self.receives() && self.holds_input()) || self.next_step().is_some()
    }

    /// Returns whether a connection with layers reads from the engine.
    pub(in super::super) fn reads_for_layers(&self) -> bool {
        let Some(layers) = self.layers() else { return false };
        if layers.failed || self.ending == Ending::Linger {
            return true;
        }
        let wanted = self.failed() || !layers.all_ready() || self.receives();
        wanted && layers.levels.first().is_none_or(|level| level.input.len() < AHEAD)
    }
}

impl Reactor {
    /// Makes the layers of a connection continue after they [waited](LayerIo::wait): calls their
    /// [`woken`](Layer::woken) in the next turn. To wake them from another thread, [post](crate::Handle::post) this.
    pub fn wake_layers(&mut self, id: ConnectionId) {
        let Some(layers) = self.stream_mut(id.0).and_then(|stream| stream.layers_mut()) else { return };
        for level in &mut layers.levels {
            level.calls = Calls::Woken;
            level.output_blocked = false;
        }
        self.continue_layers_later(id.0);
    }

    /// Continues in the next turn.
    fn continue_layers_later(&mut self, token: Token) {
        if let Some(layers) = self.stream_mut(token).and_then(|stream| stream.layers_mut())
            && !std::mem::replace(&mut layers.continues, true)
        {
            self.next_tick(move |reactor| {
                if let Some(layers) = reactor.stream_mut(token).and_then(|stream| stream.layers_mut()) {
                    layers.continues = false;
                    reactor.drive_layers(token);
                }
            });
        }
    }

    /// Handles bytes from the engine.
    #[cold]
    pub(in super::super) fn layers_received(&mut self, token: Token, chunk: Chunk) {
        let now = self.now;
        let Some(stream) = self.stream_mut(token) else { return };
        stream.active_at = now;
        let lingers = stream.ending == Ending::Linger;
        let Some(layers) = stream.layers_mut() else { return };
        if lingers || layers.failed {
            stream.discarded_input = true;
            return;
        }
        let Some(bottom) = layers.levels.first_mut() else { return };
        bottom.input.push(chunk);
        self.drive_layers(token);
        self.pause_if_over_budget(token);
    }

    /// Starts or stops receiving in the engine for a connection with layers.
    pub(in super::super) fn set_receiving_below_layers(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        if !matches!(stream.stage, Stage::Layering | Stage::Open) {
            return;
        }
        if stream.has_input_to_process() {
            self.queue_flush(token);
        }
        let Some(stream) = self.stream_mut(token) else { return };
        let on = stream.reads_for_layers();
        let Some(layers) = stream.layers_mut() else { return };
        if !layers.wire_ended
            && layers.receiving.replace(on) != Some(on)
            && let Err(error) = self.engine.receive(token, Intake::on_if(on))
        {
            self.connection_is_over(token, Reason::from_error(error));
        }
    }

    /// Handles the end of the stream below the layers.
    pub(in super::super) fn layers_ended(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        let lingers = stream.ending == Ending::Linger;
        let Some(layers) = stream.layers_mut() else { return };
        layers.wire_ended = true;
        if let Some(bottom) = layers.levels.first_mut() {
            bottom.input.ended = true;
        }
        if lingers {
            return self.closed_after_writing(token, Reason::Local);
        }
        self.drive_layers(token);
    }

    /// Calls layers and the handler until none of them can do more with the input that is here. Then sends their
    /// output.
    pub(in super::super) fn drive_layers(&mut self, token: Token) {
        if self.stream_mut(token).is_some_and(|stream| stream.handler.is_none()) {
            return self.queue_flush(token);
        }
        for _ in 0..CALLS_IN_A_ROW {
            self.layers_may_be_ready(token);
            self.deliver_held(token);
            let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage != Stage::Over) else { return };
            let Some(step) = stream.next_step() else {
                self.write_and_settle(token);
                // The output may have made a layer deliver input, or start.
                if self.stream_mut(token).is_some_and(|stream| stream.layered && stream.has_input_to_process()) {
                    continue;
                }
                return self.layers_pause(token);
            };
            self.take_step(token, &step);
        }
        self.continue_layers_later(token);
        self.write_and_settle(token);
    }

    /// Handles the consequences when no layer can do more at the moment.
    fn layers_pause(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token).filter(|stream| stream.stage != Stage::Over) else { return };
        // What stays here should not keep large buffers on loan.
        stream.compact_held();
        let Some(layers) = stream.layers() else { return self.deliver_held(token) };
        if stream.failed() && layers.wire_ended {
            let reason = stream.closing_reason(Reason::Reset);
            return self.connection_is_over(token, reason);
        }
        if layers.failed && !stream.closes() {
            // Everything was delivered. Send what the layers have transmitted, then close. What the handler has sent
            // meanwhile goes nowhere.
            if let Some(outbox) = stream.outbox.take() {
                self.flow.remove(outbox.in_memory());
            }
            let Some(stream) = self.stream_mut(token) else { return };
            stream.stage = Stage::Open;
            stream.ending = Ending::Close;
            stream.notify_when_sent = false;
            stream.full = false;
            self.write_and_settle(token);
        }
        self.set_receiving(token);
    }

    fn take_step(&mut self, token: Token, step: &Step) {
        match *step {
            Step::Start(id) => {
                if let Some(level) = self.level_mut(token, id) {
                    level.phase = Phase::Started;
                }
                self.call_layer(token, id, |layer, io| layer.start(io));
            }
            Step::Woken(id) => {
                if let Some(level) = self.level_mut(token, id) {
                    level.calls = Calls::Normal;
                    level.output_blocked = false;
                    level.input.show_again();
                }
                self.call_layer(token, id, |layer, io| layer.woken(io));
            }
            Step::Receive(id) => {
                let Some(level) = self.level_mut(token, id) else { return };
                level.calls = Calls::Normal;
                level.output_blocked = false;
                let taken = level.input.take();
                let processed = self.call_layer(token, id, |layer, io| layer.receive(io, taken.bytes()));
                self.put_back(token, id, taken, processed.unwrap_or(0));
            }
            Step::PeerFinished(id) => {
                let Some(level) = self.level_mut(token, id) else { return };
                level.told_end = true;
                let taken = level.input.take();
                self.call_layer(token, id, |layer, io| layer.peer_finished(io, taken.bytes()));
            }
        }
        let (Step::Start(id) | Step::Woken(id) | Step::Receive(id) | Step::PeerFinished(id)) = *step;
        self.layer_was_called(token, id, 0, 0);
        self.layer_may_leave(token, id);
    }

    fn put_back(&mut self, token: Token, id: u32, taken: Taken, processed: usize) {
        if let Some(level) = self.level_mut(token, id) {
            level.input.put_back(taken, processed);
            if level.ended {
                // The layer has ended the stream. What follows means nothing to it.
                level.input.take_all().for_each(drop);
            }
        }
    }

    pub(super) fn level_mut(&mut self, token: Token, id: u32) -> Option<&mut Level> {
        self.stream_mut(token)?.layers_mut()?.level_mut(id)
    }

    /// Calls a layer, unless it is running. Returns its result if it did not fail.
    pub(super) fn call_layer<R>(
        &mut self,
        token: Token,
        id: u32,
        call: impl FnOnce(&mut dyn Layer, &mut LayerIo<'_>) -> Result<R, Reason>,
    ) -> Option<R> {
        let place = self.stream_mut(token)?.location;
        let layer = self.level_mut(token, id)?.layer.take()?;
        let site = Site { kind: CallbackKind::Connection, place, source: Some(ConnectionId(token).into()) };
        let mut result = None;
        self.call_source(
            site,
            (layer, 0),
            |(layer, held), reactor| {
                result = Some(call(&mut **layer, &mut LayerIo { reactor, token, level: id }));
                *held = layer.held();
            },
            |reactor, (layer, held), outcome| {
                if let Some(level) = reactor.level_mut(token, id) {
                    level.layer = Some(layer);
                    level.held = held;
                }
                if outcome == Outcome::Panicked {
                    reactor.connection_is_over(token, Reason::Panicked);
                }
            },
        );
        match result? {
            Ok(result) => Some(result),
            Err(reason) => {
                self.layer_failed(token, reason);
                None
            }
        }
    }

    /// Stops calling layers after one has failed. The connection ends when the input that was delivered before has been
    /// processed and the bytes that were transmitted before have been sent.
    fn layer_failed(&mut self, token: Token, reason: Reason) {
        let Reactor { sources, flow, .. } = self;
        let Some(Source::Connection(stream)) = sources.get_mut(token) else { return };
        if let Some(outbox) = stream.outbox.take() {
            flow.remove(outbox.in_memory());
        }
        let extra = stream.extra();
        extra.failure.get_or_insert(reason);
        let Some(layers) = &mut extra.layers else { return };
        layers.failed = true;
        layers.unready_since = None;
        for level in layers.levels.iter_mut().skip(1) {
            if let Some(outbox) = level.below.take() {
                flow.remove(outbox.in_memory());
            }
        }
        for level in &mut layers.levels {
            level.held = 0;
            level.input = Backlog::default();
        }
        self.queue_flush(token);
    }

    /// Removes a layer that has asked for it during its call.
    pub(super) fn layer_may_leave(&mut self, token: Token, id: u32) {
        let Some(stream) = self.stream_mut(token) else { return };
        let Some(layers) = stream.layers_mut() else { return };
        let Some(index) = layers.index(id).filter(|index| layers.levels[*index].phase == Phase::Leaves) else { return };
        let mut level = layers.levels.remove(index);
        let above = layers.levels.get_mut(index);
        // After a layer has ended the stream, nothing follows for the level above.
        let ended = level.input.ended && !level.ended;
        let unread = level.input.take_all().filter(|_| !level.ended);
        match above {
            Some(above) => {
                unread.for_each(|chunk| above.input.push(chunk));
                above.input.ended |= ended;
                level.account.append(level.below_len(), &above.account, above.below_len());
                above.account = level.account;
                above.below = join(level.below.take(), above.below.take());
            }
            None => {
                let held = &mut stream.extra().held;
                unread.for_each(|chunk| held.push_back(Input::Chunk(chunk)));
                if ended {
                    held.push_back(Input::End);
                }
                stream.outbox = join(level.below.take(), stream.outbox.take());
            }
        }
    }

    /// Opens the connection, or notifies its handler, if all layers have become ready.
    fn layers_may_be_ready(&mut self, token: Token) {
        let Some(stream) = self.stream_mut(token) else { return };
        let stage = stream.stage;
        let Some(layers) = stream.layers_mut().filter(|layers| !layers.failed && layers.all_ready()) else { return };
        let became_ready = layers.unready_since.take().is_some();
        if layers.levels.is_empty() {
            stream.layered = false;
            stream.extra().layers = None;
            self.set_receiving(token);
        }
        match stage {
            _ if !became_ready => {}
            Stage::Layering => self.layers_are_ready(token),
            _ => self.notify(token, |handler, io| handler.layer_ready(io)),
        }
    }
}

/// Joins the queue below a layer that leaves with the queue above it.
fn join(below: Option<Box<Outbox>>, above: Option<Box<Outbox>>) -> Option<Box<Outbox>> {
    match (below, above) {
        (Some(mut below), Some(above)) => {
            below.append(*above);
            Some(below)
        }
        (below, above) => below.or(above),
    }
}
