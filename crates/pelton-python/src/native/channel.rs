//! Bounded queues between Rust and Python.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use pelton::Reactor;
use pelton::task::JoinHandle;

use super::blocking;
use crate::value::Value;

/// A queue that holds at most `bound` values. Either end can be handed to Python, as an argument of a task or as a member of
/// a [`Module`](super::Module), and there can be any number of both: each value is received once.
///
/// ```no_run
/// # use pelton_python::host::{Config, Host};
/// use pelton_python::native::channel;
///
/// let host = Host::start(Config::new())?;
/// let (sender, receiver) = channel(16);
/// let process = host.process();
/// process.exec("async def count(sender):\n    for i in range(3):\n        await sender.asend(i)")?.wait()?;
/// let reply = process.create_task("__main__", "count", (sender,), ())?;
/// while let Ok(value) = receiver.receive_timeout(std::time::Duration::from_secs(1)) {
///     println!("{value:?}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is closed by [`close`](Sender::close) at either end, or when all of one end are dropped, in Python too. What was sent before
/// can still be received.
///
/// # Panics
///
/// If `bound` is 0.
pub fn channel(bound: usize) -> (Sender, Receiver) {
    let (sender, receiver) = async_channel::bounded(bound);
    (Sender(sender), Receiver(Box::pin(receiver)))
}

/// Why a value is not sent. It comes back.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SendError {
    /// There is no room; after waiting for it, if that was asked for.
    #[error("the channel is full")]
    Full(Value),
    /// It is closed, or nobody is left to receive anything.
    #[error("the channel is closed")]
    Closed(Value),
}

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// There is none; after waiting for it, if that was asked for.
    #[error("the channel is empty")]
    Empty,
    /// It is closed, or nobody is left to send anything, and all has been received.
    #[error("the channel is closed")]
    Closed,
}

/// The end that values are put in at.
#[derive(Clone, Debug)]
pub struct Sender(async_channel::Sender<Value>);

impl Sender {
    /// Sends a value, waiting for room.
    pub async fn send(&self, value: impl Into<Value>) -> Result<(), SendError> {
        self.0.send(value.into()).await.map_err(|closed| SendError::Closed(closed.into_inner()))
    }

    /// Sends a value, and has the thread wait for room that long.
    pub fn send_timeout(&self, value: impl Into<Value>, timeout: Duration) -> Result<(), SendError> {
        let value = match self.try_send(value) {
            Err(SendError::Full(value)) => value,
            sent_or_closed => return sent_or_closed,
        };
        // What waits for room has the value, and does not give it back if it is given up.
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

    /// Closes the channel. Says whether it was open.
    pub fn close(&self) -> bool {
        self.0.close()
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// How many values wait to be received.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there may be.
    pub fn bound(&self) -> usize {
        self.0.capacity().unwrap_or(usize::MAX)
    }
}

impl PartialEq for Sender {
    /// Whether both are ends of the same channel.
    fn eq(&self, other: &Sender) -> bool {
        self.0.same_channel(&other.0)
    }
}

/// The end that values are taken out at. As a [`Stream`], it yields them until the channel is closed and empty.
#[derive(Clone, Debug)]
pub struct Receiver(Pin<Box<async_channel::Receiver<Value>>>);

impl Receiver {
    /// The next value; `None` when the channel is closed and all has been received.
    pub async fn receive(&self) -> Option<Value> {
        self.0.recv().await.ok()
    }

    /// The next value, for which the thread waits that long.
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Value, ReceiveError> {
        match blocking::wait(pin!(self.receive()), Instant::now().checked_add(timeout)) {
            Some(Some(value)) => Ok(value),
            Some(None) => Err(ReceiveError::Closed),
            None => Err(ReceiveError::Empty),
        }
    }

    /// The next value, if there is one.
    pub fn try_receive(&self) -> Result<Value, ReceiveError> {
        self.0.try_recv().map_err(|error| match error {
            async_channel::TryRecvError::Empty => ReceiveError::Empty,
            async_channel::TryRecvError::Closed => ReceiveError::Closed,
        })
    }

    /// Calls back for each value, on a reactor, until the channel is closed and empty. The next is taken when the callback
    /// has returned. Dropping the handle does not end it; [`cancel`](JoinHandle::cancel) does.
    pub fn for_each(
        self,
        reactor: &mut Reactor,
        mut callback: impl FnMut(&mut Reactor, Value) + 'static,
    ) -> JoinHandle<()> {
        reactor.spawn(async move {
            while let Some(value) = self.receive().await {
                // A task always has a reactor.
                Reactor::with_current(|reactor| callback(reactor, value));
            }
        })
    }

    /// Closes the channel. Says whether it was open.
    pub fn close(&self) -> bool {
        self.0.close()
    }

    /// Whether it is closed. There may still be something in it.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// How many values wait to be received.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there may be.
    pub fn bound(&self) -> usize {
        self.0.capacity().unwrap_or(usize::MAX)
    }
}

impl PartialEq for Receiver {
    /// Whether both are ends of the same channel.
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
