//! A datagram socket, to receive from and send through.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::stream::set;
use super::{current, current_of, error_of};
use crate::tasks::task::{Chore, Local};
use crate::{Address, Datagram, DatagramIo, DatagramOptions, DatagramsId, Error, Reactor, Reason, SendError};

/// Receiving pauses when datagrams of so many bytes wait, their overhead included; then the kernel keeps what it has room for.
const RECEIVE_AHEAD: usize = 64 * 1024;

/// It goes on when no more than so many are left.
const RECEIVE_AGAIN_AT: usize = RECEIVE_AHEAD / 4;

/// What it costs to keep a datagram, however short: its place in the queue, with an address, and an allocation.
const DATAGRAM_OVERHEAD: usize = 128;

struct Mailbox {
    inbox: VecDeque<Datagram>,
    kept: usize,
    paused: bool,
    /// What the system has said about something that was sent.
    failure: Option<io::Error>,
    over: Option<Arc<Reason>>,
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

/// A datagram socket, UDP or Unix, to receive from and send through; several tasks may do both, but at most one may wait for
/// each.
///
/// What comes in is kept until it is received, up to 64 KiB; then the kernel keeps what it has room for, and drops the rest.
/// What is sent goes out in the turn's next flush, together with what others send. That a datagram could not be sent, or did
/// not arrive, is told by the next call, and the socket goes on.
///
/// ```
/// use pelton::Reactor;
/// use pelton::net::Datagrams;
///
/// let mut reactor = Reactor::new()?;
/// reactor.block_on(async {
///     let clock = Datagrams::bind(&"127.0.0.1:0".parse().unwrap())?;
///     let asks = Datagrams::connect(&clock.local_address()?)?;
///     asks.send(b"what time is it?").await?;
///     let question = clock.receive().await?;
///     clock.send_to(&question.from, b"high time").await?;
///     assert_eq!(&*asks.receive().await?.bytes, b"high time");
///     Ok::<(), std::io::Error>(())
/// })??;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Datagrams {
    id: DatagramsId,
    mailbox: Rc<RefCell<Mailbox>>,
    local: Rc<Local>,
}

impl Datagrams {
    /// Receives datagrams on `address`, as [`Reactor::bind_datagrams`] does.
    #[track_caller]
    pub fn bind(address: &Address) -> io::Result<Datagrams> {
        Datagrams::bind_with(address, &DatagramOptions::default())
    }

    /// Receives datagrams as [`bind`](Datagrams::bind) does, with [options](DatagramOptions) such as sharing the port.
    #[track_caller]
    pub fn bind_with(address: &Address, options: &DatagramOptions) -> io::Result<Datagrams> {
        Datagrams::handled_by(|reactor, filler| reactor.bind_datagrams_with(address, options, filler))
    }

    /// Exchanges datagrams with `address` alone, as [`Reactor::connect_datagrams`] does.
    #[track_caller]
    pub fn connect(address: &Address) -> io::Result<Datagrams> {
        Datagrams::handled_by(|reactor, filler| reactor.connect_datagrams(address, filler))
    }

    fn handled_by(begin: impl FnOnce(&mut Reactor, Filler) -> Result<DatagramsId, Error>) -> io::Result<Datagrams> {
        current(|reactor| {
            let mailbox = Rc::new(RefCell::new(Mailbox {
                inbox: VecDeque::new(),
                kept: 0,
                paused: false,
                failure: None,
                over: None,
                receiver: None,
                sender: None,
            }));
            let id = begin(reactor, Filler(Rc::clone(&mailbox)))?;
            Ok(Datagrams { id, mailbox, local: Rc::clone(&reactor.local) })
        })
    }

    /// Waits for a datagram. Dropping the future loses none.
    pub async fn receive(&self) -> io::Result<Datagram> {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// Waits for a datagram and copies it, as far as there is room. Says how much that was, and where it came from. Dropping the
    /// future loses none.
    pub async fn receive_from(&self, buffer: &mut [u8]) -> io::Result<(usize, Address)> {
        let datagram = self.receive().await?;
        let count = datagram.bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&datagram.bytes[..count]);
        Ok((count, datagram.from))
    }

    /// Polls for a datagram.
    pub fn poll_receive(&self, context: &mut Context<'_>) -> Poll<io::Result<Datagram>> {
        let mut mailbox = self.mailbox.borrow_mut();
        if let Some(datagram) = mailbox.inbox.pop_front() {
            mailbox.kept -= datagram.bytes.len() + DATAGRAM_OVERHEAD;
            if mailbox.kept <= RECEIVE_AGAIN_AT && std::mem::take(&mut mailbox.paused) {
                self.local.leave(Chore::Receive(self.id));
            }
            return Poll::Ready(Ok(datagram));
        }
        if let Some(failure) = mailbox.failure.take() {
            return Poll::Ready(Err(failure));
        }
        if let Some(reason) = &mailbox.over {
            return Poll::Ready(Err(error_of(reason)));
        }
        set(&mut mailbox.receiver, context);
        Poll::Pending
    }

    /// Sends a copy of `bytes` to whom the socket is connected to, once there is room.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        poll_fn(|context| self.poll_send(context, |io| io.send(bytes))).await
    }

    /// Sends a copy of `bytes` to `to`, once there is room.
    pub async fn send_to(&self, to: &Address, bytes: &[u8]) -> io::Result<()> {
        poll_fn(|context| self.poll_send(context, |io| io.send_to(to, bytes))).await
    }

    fn poll_send(
        &self,
        context: &Context<'_>,
        send: impl FnOnce(&mut DatagramIo<'_>) -> Result<(), SendError>,
    ) -> Poll<io::Result<()>> {
        if let Some(failure) = self.mailbox.borrow_mut().failure.take() {
            return Poll::Ready(Err(failure));
        }
        let outcome = self.with_io(|io| {
            let too_much = io.queued() > io.water_marks().high;
            (!too_much).then(|| send(io)).ok_or_else(|| io.drains())
        })?;
        match outcome {
            Ok(Ok(())) => return Poll::Ready(Ok(())),
            Ok(Err(error)) => {
                let kind = match error {
                    SendError::Closed => io::ErrorKind::BrokenPipe,
                    SendError::Full { .. } => io::ErrorKind::FileTooLarge,
                };
                return Poll::Ready(Err(io::Error::new(kind, error)));
            }
            Err(true) => set(&mut self.mailbox.borrow_mut().sender, context),
            // The next flush may send all of it without a word.
            Err(false) => context.waker().wake_by_ref(),
        }
        Poll::Pending
    }

    /// Where it receives, with the port that it was given if that was left open.
    pub fn local_address(&self) -> io::Result<Address> {
        self.with_io(|io| io.local_address())?
    }

    /// Calls `f` with the socket, for multicast, water marks or a label. Pausing and closing is this one's.
    pub fn with_io<T>(&self, f: impl FnOnce(&mut DatagramIo<'_>) -> T) -> io::Result<T> {
        current_of(&self.local, |reactor| match reactor.datagrams(self.id) {
            Some(mut io) => Ok(f(&mut io)),
            None => Err(match &self.mailbox.borrow().over {
                Some(reason) => error_of(reason),
                None => io::ErrorKind::BrokenPipe.into(),
            }),
        })
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        if self.mailbox.borrow().over.is_none() {
            self.local.leave(Chore::CloseDatagrams(self.id));
        }
    }
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Handles a socket for its owner.
struct Filler(Rc<RefCell<Mailbox>>);

impl Filler {
    fn wake(&self, waiting: impl FnOnce(&mut Mailbox) -> Option<Waker>) {
        let waker = waiting(&mut self.0.borrow_mut());
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl crate::Datagrams for Filler {
    fn received(&mut self, io: &mut DatagramIo<'_>, datagram: Datagram) {
        self.wake(|mailbox| {
            mailbox.kept += datagram.bytes.len() + DATAGRAM_OVERHEAD;
            mailbox.inbox.push_back(Datagram { bytes: datagram.bytes.compacted(), from: datagram.from });
            if mailbox.kept > RECEIVE_AHEAD && !std::mem::replace(&mut mailbox.paused, true) {
                io.pause();
            }
            mailbox.receiver.take()
        });
    }

    fn send_failed(&mut self, _: &mut DatagramIo<'_>, to: Option<&Address>, error: io::Error) {
        let error = match to {
            Some(to) => io::Error::new(error.kind(), format!("send a datagram to {to}: {error}")),
            None => error,
        };
        self.wake(|mailbox| {
            mailbox.failure = Some(error);
            mailbox.receiver.take()
        });
    }

    fn drained(&mut self, _: &mut DatagramIo<'_>) {
        self.wake(|mailbox| mailbox.sender.take());
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.0.borrow_mut().over = Some(Arc::new(reason));
        self.wake(|mailbox| mailbox.receiver.take());
        self.wake(|mailbox| mailbox.sender.take());
    }
}
