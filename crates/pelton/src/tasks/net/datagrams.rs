//! A datagram socket for `async` code.

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

/// Receiving pauses when the buffered datagrams, including their overhead, exceed this many bytes. Further datagrams
/// stay in the kernel's buffer.
const RECEIVE_AHEAD: usize = 64 * 1024;

/// Receiving resumes when this many bytes or fewer are left.
const RECEIVE_AGAIN_AT: usize = RECEIVE_AHEAD / 4;

/// The overhead of a buffered datagram: its queue entry with an address, and an allocation.
const DATAGRAM_OVERHEAD: usize = 128;

struct Mailbox {
    inbox: VecDeque<Datagram>,
    kept: usize,
    paused: bool,
    /// The last error about a sent datagram.
    failure: Option<io::Error>,
    over: Option<Arc<Reason>>,
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

/// A datagram socket, UDP or Unix, for sending and receiving. Several tasks may use it, but at most one may wait to
/// receive and one to send.
///
/// Received datagrams are buffered, up to 64 KiB. Beyond that they stay in the kernel's buffer, which drops what it has
/// no room for. Sent datagrams go out in the turn's next flush, together with those of others. The next call reports a
/// datagram that could not be sent or delivered, and the socket stays usable.
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
    /// Receives datagrams on `address`. See [`Reactor::bind_datagrams`].
    #[track_caller]
    pub fn bind(address: &Address) -> io::Result<Datagrams> {
        Datagrams::bind_with(address, &DatagramOptions::default())
    }

    /// Receives datagrams with [options](DatagramOptions) such as sharing the port.
    #[track_caller]
    pub fn bind_with(address: &Address, options: &DatagramOptions) -> io::Result<Datagrams> {
        Datagrams::handled_by(|reactor, filler| reactor.bind_datagrams_with(address, options, filler))
    }

    /// Exchanges datagrams with `address` only. See [`Reactor::connect_datagrams`].
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

    /// Waits for a datagram. Dropping the future loses no datagram.
    pub async fn receive(&self) -> io::Result<Datagram> {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// Waits for a datagram and copies as much of it as fits into `buffer`. Returns the number of bytes and the
    /// sender's address. Dropping the future loses no datagram.
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

    /// Sends a copy of `bytes` to the connected address, once there is room.
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
            let is_full = io.queued() > io.water_marks().high;
            (!is_full).then(|| send(io)).ok_or_else(|| io.drains())
        })?;
        match outcome {
            Ok(Ok(())) => return Poll::Ready(Ok(())),
            Ok(Err(error)) => return Poll::Ready(Err(error.into())),
            Err(true) => set(&mut self.mailbox.borrow_mut().sender, context),
            // The next flush may send everything without calling `writable`.
            Err(false) => context.waker().wake_by_ref(),
        }
        Poll::Pending
    }

    /// Returns the address that it is bound to, with the actual port if that was left open.
    pub fn local_address(&self) -> io::Result<Address> {
        self.with_io(|io| io.local_address())?
    }

    /// Calls `f` with the socket, to set multicast, water marks or a label. Do not pause or close it with this.
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

/// Handles a socket on behalf of a [`Datagrams`].
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

    fn writable(&mut self, _: &mut DatagramIo<'_>) {
        self.wake(|mailbox| mailbox.sender.take());
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.0.borrow_mut().over = Some(Arc::new(reason));
        self.wake(|mailbox| mailbox.receiver.take());
        self.wake(|mailbox| mailbox.sender.take());
    }
}
