//! The subscribed connection of a hub.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pelton::{Io, Missed, Reactor, Time, TimerId};

use super::outgoing::take_items;
use crate::link::{Cause, Down, Link, Role};
use crate::{Command, Protocol, ProtocolError, Value};

/// Where messages of a topic go. No method calls back into the hub.
pub(super) trait Sink: Send + Sync {
    fn name(&self) -> &Bytes;
    fn message(&self, payload: Bytes);
    fn missed(&self, missed: Missed);
    fn is_wanted(&self) -> bool;
}

/// The topics that this process is subscribed to.
pub(super) struct Subscriptions {
    hub: u64,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    topics: HashMap<Bytes, Topic>,
    /// What the server has been asked for and has not answered.
    asked: VecDeque<Asked>,
    heartbeat: Option<TimerId>,
    pinged_at: Option<Time>,
    /// Publishing waits until new subscriptions are confirmed.
    holding: bool,
}

struct Topic {
    sinks: Vec<Arc<dyn Sink>>,
    /// The connection was interrupted since somebody subscribed.
    gap: bool,
}

enum Asked {
    Subscribe(Bytes),
    Unsubscribe,
    Ping,
}

type Subscribed = Rc<Link<Subscriptions>>;

impl Subscriptions {
    pub(super) fn new(hub: u64) -> Subscriptions {
        Subscriptions { hub, state: RefCell::default() }
    }

    /// Returns whether publishing has to wait for a subscription.
    pub(super) fn holds(&self) -> bool {
        self.state.borrow().holding
    }
}

/// Subscribes or unsubscribes, if somebody has subscribed or the last one has left.
pub(super) fn check(link: &Subscribed, reactor: &mut Reactor, sink: &Arc<dyn Sink>) {
    let wanted = sink.is_wanted();
    let mut state = link.role.state.borrow_mut();
    let topic = state.topics.get_mut(sink.name());
    let command = match (wanted, topic) {
        (true, Some(topic)) => {
            if !topic.sinks.iter().any(|other| Arc::ptr_eq(other, sink)) {
                topic.sinks.push(sink.clone());
            }
            return;
        }
        (true, None) => {
            let topic = Topic { sinks: vec![sink.clone()], gap: false };
            state.topics.insert(sink.name().clone(), topic);
            drop(state);
            link.connect_if_new(reactor);
            state = link.role.state.borrow_mut();
            state.holding = link.is_connecting();
            Asked::Subscribe(sink.name().clone())
        }
        (false, Some(topic)) => {
            topic.sinks.retain(|other| !Arc::ptr_eq(other, sink));
            if !topic.sinks.is_empty() {
                return;
            }
            state.topics.remove(sink.name());
            Asked::Unsubscribe
        }
        (false, None) => return,
    };
    let io = link.ready_connection().and_then(|id| reactor.connection(id));
    if let Some(mut io) = io {
        state.ask(&mut io, command, sink.name());
    }
}

impl State {
    fn ask(&mut self, io: &mut Io<'_>, asked: Asked, topic: &Bytes) {
        let command = match &asked {
            Asked::Subscribe(_) => Command::new("SUBSCRIBE").arg(topic),
            Asked::Unsubscribe => Command::new("UNSUBSCRIBE").arg(topic),
            Asked::Ping => Command::new("PING"),
        };
        let mut bytes = Vec::new();
        command.write_to(&mut bytes);
        self.asked.push_back(asked);
        // If it fails, the connection is closing, and everything is asked for again on the next one.
        let _ = io.send(&bytes);
    }

    /// Ends the wait of publishers, unless another subscription is not answered yet. Returns whether it has ended.
    fn release(&mut self) -> bool {
        let pending = self.asked.iter().any(|asked| matches!(asked, Asked::Subscribe(_)));
        !pending && std::mem::take(&mut self.holding)
    }
}

/// Lets publishing go on.
fn released(link: &Subscribed, reactor: &mut Reactor) {
    let hub = link.role.hub;
    // Not now: this may be called while the queue is worked on.
    reactor.next_tick(move |reactor| take_items(reactor, hub));
}

impl Role for Subscriptions {
    fn ready(link: &Subscribed, io: &mut Io<'_>, _: Protocol) {
        let mut state = link.role.state.borrow_mut();
        let topics: Vec<Bytes> = state.topics.keys().cloned().collect();
        for topic in topics {
            state.ask(io, Asked::Subscribe(topic.clone()), &topic);
        }
        let released_now = state.release();
        drop(state);
        arm_heartbeat(link, io.reactor());
        if released_now {
            released(link, io.reactor());
        }
    }

    fn value(link: &Subscribed, io: &mut Io<'_>, value: Value) -> Result<(), ProtocolError> {
        let mut state = link.role.state.borrow_mut();
        let elements = match value {
            Value::Push(elements) | Value::Array(elements) => elements,
            Value::Error(error) => {
                if let Some(Asked::Subscribe(topic)) = state.asked.pop_front() {
                    tracing::warn!(topic = %topic.escape_ascii(), %error, "the server refuses a subscription");
                    if let Some(topic) = state.topics.get_mut(&topic) {
                        topic.sinks.iter().for_each(|sink| sink.missed(Missed::Denied));
                    }
                    if state.release() {
                        drop(state);
                        released(link, io.reactor());
                    }
                }
                return Ok(());
            }
            // The answer to a ping, outside of subscriptions or in RESP3.
            Value::Status(_) => {
                return match state.asked.pop_front() {
                    Some(Asked::Ping) => Ok(()),
                    _ => Err(ProtocolError::Unasked),
                };
            }
            _ => return Err(ProtocolError::Unasked),
        };
        let mut elements = elements.into_iter();
        let kind = elements.next().ok_or(ProtocolError::BadMessage)?;
        match &kind.as_bytes().ok_or(ProtocolError::BadMessage)?[..] {
            b"message" => {
                let (Some(Value::Bytes(topic)), Some(Value::Bytes(payload)), None) =
                    (elements.next(), elements.next(), elements.next())
                else {
                    return Err(ProtocolError::BadMessage);
                };
                // Without a topic, its last subscriber has just left.
                if let Some(topic) = state.topics.get(&topic)
                    && let Some((last, others)) = topic.sinks.split_last()
                {
                    others.iter().for_each(|sink| sink.message(payload.clone()));
                    last.message(payload);
                }
                Ok(())
            }
            b"subscribe" => {
                let Some(Asked::Subscribe(topic)) = state.asked.pop_front() else {
                    return Err(ProtocolError::Unasked);
                };
                if elements.next().as_ref().and_then(Value::as_bytes) != Some(&topic) {
                    return Err(ProtocolError::BadMessage);
                }
                if let Some(topic) = state.topics.get_mut(&topic)
                    && std::mem::take(&mut topic.gap)
                {
                    topic.sinks.iter().for_each(|sink| sink.missed(Missed::Interrupted));
                }
                if state.release() {
                    drop(state);
                    released(link, io.reactor());
                }
                Ok(())
            }
            b"unsubscribe" => match state.asked.pop_front() {
                Some(Asked::Unsubscribe) => Ok(()),
                _ => Err(ProtocolError::Unasked),
            },
            b"pong" => match state.asked.pop_front() {
                Some(Asked::Ping) => Ok(()),
                _ => Err(ProtocolError::Unasked),
            },
            // Servers may push other things, such as invalidated keys.
            _ => Ok(()),
        }
    }

    fn down(link: &Subscribed, reactor: &mut Reactor, down: &Down) {
        let mut state = link.role.state.borrow_mut();
        state.asked.clear();
        state.pinged_at = None;
        for topic in state.topics.values_mut() {
            topic.gap = true;
        }
        let heartbeat = state.heartbeat.take();
        let held = std::mem::take(&mut state.holding);
        let topics = match down.cause {
            Cause::Closed => std::mem::take(&mut state.topics),
            _ => HashMap::new(),
        };
        drop(state);
        drop(topics);
        if let Some(timer) = heartbeat {
            reactor.cancel(timer);
        }
        if held {
            released(link, reactor);
        }
    }

    /// Nobody waits for messages that may never come.
    fn is_idle(&self) -> bool {
        true
    }
}

fn arm_heartbeat(link: &Subscribed, reactor: &mut Reactor) {
    let at = link.received_at() + link.options.heartbeat;
    let at = at.max(reactor.now());
    let again = link.clone();
    let timer = reactor.at(at, move |reactor| beat(&again, reactor));
    link.role.state.borrow_mut().heartbeat = Some(timer);
}

/// Tests a connection that has been silent for a while. Gives it up if it was tested before and is still silent.
fn beat(link: &Subscribed, reactor: &mut Reactor) {
    let heartbeat = link.options.heartbeat;
    let mut state = link.role.state.borrow_mut();
    state.heartbeat = None;
    let (now, received_at) = (reactor.now(), link.received_at());
    if received_at + heartbeat > now {
        drop(state);
        return arm_heartbeat(link, reactor);
    }
    if state.pinged_at.is_some_and(|pinged_at| received_at <= pinged_at) {
        drop(state);
        return link.give_up(reactor, format!("the server has not answered a ping within {heartbeat:?}"));
    }
    state.pinged_at = Some(now);
    if let Some(mut io) = link.ready_connection().and_then(|id| reactor.connection(id)) {
        state.ask(&mut io, Asked::Ping, &Bytes::new());
    }
    let again = link.clone();
    let timer = reactor.after(heartbeat, move |reactor| beat(&again, reactor));
    state.heartbeat = Some(timer);
}
