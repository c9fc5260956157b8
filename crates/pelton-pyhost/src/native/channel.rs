//! Bounded queues between Rust and Python.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use pelton::Reactor;
use pelton::task::JoinHandle;

use super::blocking;
use crate::value::Value;

/// Creates a queue of at most `bound` values. Either end can be passed to Python, as an argument of a task or as a
/// member of a [`Module`](super::Module). There can be any number of each end. Each value is received once.
///
/// ```no_run
/// # use pelton_python::host::{Config, Host};
/// use pelton_python::native::channel;
///
/// let host = Host::start(Config::new())?;
/// let (sender, receiver) = channel(16);
/// let namespace = host.namespace();
/// namespace.exec("async def count(sender):\n    for i in range(3):\n        await sender.asend(i)")?.wait()?;
/// let reply = namespace.create_task("__main__", "count", (sender,), ())?;
/// while let Ok(value) = receiver.receive_timeout(std::time::Duration::from_secs(1)) {
///     println!("{value:?}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The channel is closed by [`close`](Sender::close) on either end, or when all copies of one end are dropped, in
/// Rust and in Python. Values sent before can still be received.
///
/// # Panics
///
/// If `bound` is 0.
pub fn channel(bound: usize) -> (Sender, Receiver) {
    let (sender, receiver) = async_channel::bounded(bound);
    (Sender(sender), Receiver(Box::pin(receiver)))
}

/// Why a value was not sent. It contains the value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SendError {
    /// The channel is full, or was until the timeout.
    #[error("the channel is full")]
    Full(Value),
    /// The channel is closed, or has no receivers left.
    #[error("the channel is closed")]
    Closed(Value),
}

/// Why no value was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The channel is empty, or was until the timeout.
    #[error("the channel is empty")]
    Empty,
    /// The channel is closed or has no senders left, and all values have been received.
    #[error("the channel is closed")]
    Closed,
}

/// The sending end.
#[derive(Clone, Debug)]
pub struct Sender(async_channel::Sender<Value>);

impl Sender {
    /// Sends a value, waiting for room.
    pub async fn send(&self, value: impl Into<Value>) -> Result<(), SendError> {
        self.0.send(value.into()).await.map_err(|closed| SendError::Closed(closed.into_inner()))
    }

    /// Sends a value. Blocks the thread until there is room, for at most `timeout`.
    pub fn send_timeout(&self, value: impl Into<Value>, timeout: Duration) -> Result<(), SendError> {
        let value = match self.try_send(value) {
            Err(SendError::Full(value)) => value,
            sent_or_closed => return sent_or_closed,
        };
        // A send that is given up does not return its value.
        let kept = value.clone();
        blocking::wait(pin!(self.send(value)), Instant::now().checked_add(timeout))
            .unwrap_or(Err(SendError::Full(kept)))
    }

    /// Sends a value if there is room.
    pub fn try_send(&self, value: impl Into<Value>) -> Result<(), SendError> {
        self.0.try_send(value.into()).map_err(|error| match error {
            async_channel::TrySendError::Full(value) => SendError::Full(value),
            async_channel::TrySendError::Closed(value) => SendError::Closed(value),
        })
    }

    /// Closes the channel. Returns whether it was open.
    pub fn close(&self) -> bool {
        self.0.close()
    }

    /// Returns whether the channel is closed.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns the number of queued values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no values are queued.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the maximum number of queued values.
    pub fn bound(&self) -> usize {
        self.0.capacity().unwrap_or(usize::MAX)
    }
}

impl PartialEq for Sender {
    /// Returns whether both belong to the same channel.
    fn eq(&self, other: &Sender) -> bool {
        self.0.same_channel(&other.0)
    }
}

/// The receiving end. As a [`Stream`], it yields values until the channel is closed and empty.
#[derive(Clone, Debug)]
pub struct Receiver(Pin<Box<async_channel::Receiver<Value>>>);

impl Receiver {
    /// Returns the next value; `None` when the channel is closed and empty.
    pub async fn receive(&self) -> Option<Value> {
        self.0.recv().await.ok()
    }

    /// Returns the next value. Blocks the thread for at most `timeout`.
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Value, ReceiveError> {
        match blocking::wait(pin!(self.receive()), Instant::now().checked_add(timeout)) {
            Some(Some(value)) => Ok(value),
            Some(None) => Err(ReceiveError::Closed),
            None => Err(ReceiveError::Empty),
        }
    }

    /// Returns the next value, if there is one.
    pub fn try_receive(&self) -> Result<Value, ReceiveError> {
        self.0.try_recv().map_err(|error| match error {
            async_channel::TryRecvError::Empty => ReceiveError::Empty,
            async_channel::TryRecvError::Closed => ReceiveError::Closed,
        })
    }

    /// Calls `callback` on a reactor for each value, until the channel is closed and empty. The next value is received
    /// after the callback has returned. Dropping the handle does not end this; [`cancel`](JoinHandle::cancel) does.
    pub fn for_each(
        self,
        reactor: &mut Reactor,
        mut callback: impl FnMut(&mut Reactor, Value) + 'static,
    ) -> JoinHandle<()> {
        reactor.spawn(async move {
            while let Some(value) = self.receive().await {
                // A task always runs on a reactor.
                Reactor::with_current(|reactor| callback(reactor, value));
            }
        })
    }

    /// Closes the channel. Returns whether it was open.
    pub fn close(&self) -> bool {
        self.0.close()
    }

    /// Returns whether the channel is closed. There may still be values in it.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns the number of queued values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no values are queued.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the maximum number of queued values.
    pub fn bound(&self) -> usize {
        self.0.capacity().unwrap_or(usize::MAX)
    }
}

impl PartialEq for Receiver {
    /// Returns whether both belong to the same channel.
    fn eq(&self, other: &Receiver) -> bool {
        self.0.same_channel(&other.0)
    }
}

impl Stream for Receiver {
    type Item = Value;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Value>> {
        self.0.as_mut().poll_next(context)
    }
}
