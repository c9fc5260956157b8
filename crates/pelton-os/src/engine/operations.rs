//! The four groups of operations that every [`Engine`](super::Engine) provides.
//!
//! Each group is a trait of its own, so that an engine implements it in the file that deals with it. No method has a default
//! body: the compiler lists what a new engine still has to do.
//!
//! Common to all of them:
//!
//! - The caller picks the [`Token`], and does not use it for another source before [`forget`](super::Engine::forget) allows it.
//! - If a method that opens a source returns an error, nothing was started and the token is free. Later errors are events.
//! - Events of one source come out in order, sending and receiving separately. Between sources there is no order.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use super::{Intake, Sending};
use crate::{
    Accepted, Address, ConnectOptions, DatagramOptions, DatagramOutbox, DatagramSetting, Interest, ListenOptions, Mode,
    Outbox, Socket, Space, Splice, StreamKind, Token,
};

/// Reports the readiness of descriptors that belong to somebody else.
///
/// The engine never reads, writes or closes a watched descriptor. An engine without descriptors answers
/// [`Unsupported`](io::ErrorKind::Unsupported).
pub trait WatchEngine {
    /// Starts to report `fd` as [`Event::Ready`](super::Event::Ready). With [`Interest::NONE`] it is silent until
    /// [`rewatch`](WatchEngine::rewatch).
    fn watch(&mut self, token: Token, fd: BorrowedFd<'_>, interest: Interest, mode: Mode) -> io::Result<()>;

    /// Changes what is reported, and arms a one-shot watch that has fired.
    fn rewatch(&mut self, token: Token, interest: Interest, mode: Mode) -> io::Result<()>;
}

/// Accepts connections. Each is an [`Event::Accepted`](super::Event::Accepted).
pub trait ListenEngine {
    /// Listens on `address` and starts to accept.
    fn listen(&mut self, token: Token, address: &Address, options: &ListenOptions) -> io::Result<()>;

    /// Takes over a listening socket and starts to accept. A [borrowed](Socket::borrowed) one is never closed, and
    /// [ends](super::Event::Ended) with an error when its owner has closed it, if the engine can tell.
    fn adopt_listener(&mut self, token: Token, socket: Socket) -> io::Result<()>;

    /// Pauses or resumes accepting.
    fn accept(&mut self, token: Token, intake: Intake) -> io::Result<()>;

    /// Leaves connections in the backlog until they are fetched: while the listener accepts,
    /// [`Event::Receivable`](super::Event::Receivable) reports them in each turn instead of
    /// [`Event::Accepted`](super::Event::Accepted), and [`accept_one`](ListenEngine::accept_one) fetches one.
    ///
    /// An engine that accepts on its own answers [`Unsupported`](io::ErrorKind::Unsupported), and nothing changes.
    fn accept_manually(&mut self, token: Token) -> io::Result<()>;

    /// Accepts one connection on a listener that [accepts manually](ListenEngine::accept_manually). Fails like the system
    /// call: with [`WouldBlock`](io::ErrorKind::WouldBlock) if none is waiting.
    fn accept_one(&mut self, token: Token) -> io::Result<Accepted>;

    /// Checks all accepting listeners for connections now instead of at the next wait, so that a long turn does not keep new
    /// connections waiting. The events come out of [`next`](super::Engine::next). An engine that is notified of connections
    /// does nothing here.
    fn accept_again(&mut self);

    /// Accepts one waiting connection and closes it at once, after
    /// [`Event::AcceptFailed`](super::Event::AcceptFailed) said that the process has no descriptor left for it.
    fn turn_away(&mut self, token: Token);
}

/// Moves bytes over connections.
///
/// A stream begins with [`connect`](StreamEngine::connect) or [`adopt`](StreamEngine::adopt). It receives nothing until
/// [`receive`](StreamEngine::receive) is called.
pub trait StreamEngine {
    /// Connects to `address`: [`Event::Connected`](super::Event::Connected), or [`Event::Ended`](super::Event::Ended) if the
    /// other side does not answer or refuses. An error that is returned at once is local.
    fn connect(&mut self, token: Token, address: &Address, options: &ConnectOptions) -> io::Result<()>;

    /// Takes over a connected stream: a socket or, if the engine can, another descriptor. Returns what it can do.
    ///
    /// A stream that only sends is not asked to receive. It [ends](super::Event::Ended) with an error when nobody reads any
    /// more, if the engine can tell. A [borrowed](Socket::borrowed) descriptor is never closed.
    fn adopt(&mut self, token: Token, socket: Socket) -> io::Result<StreamKind>;

    /// Starts or stops receiving: [`Event::Received`](super::Event::Received) for each piece, then
    /// [`Event::Ended`](super::Event::Ended). Bytes that were in flight may still come out after a stop.
    fn receive(&mut self, token: Token, intake: Intake) -> io::Result<()>;

    /// Leaves input where it is until it is fetched: while the stream receives, [`Event::Receivable`](super::Event::Receivable)
    /// reports input in each turn instead of [`Event::Received`](super::Event::Received), and
    /// [`receive_into`](StreamEngine::receive_into) fetches it. The end and errors are found by `receive_into`.
    ///
    /// An engine that receives on its own answers [`Unsupported`](io::ErrorKind::Unsupported), and nothing changes.
    fn receive_manually(&mut self, token: Token) -> io::Result<()>;

    /// Receives into these spaces, one after the other; those after the second may stay as they are. Returns the number of
    /// bytes, which is 0 at the end of the stream. Fails with [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing has arrived. The stream must
    /// [receive manually](StreamEngine::receive_manually).
    fn receive_into(&mut self, token: Token, spaces: &mut [Space<'_>]) -> io::Result<usize>;

    /// Sends as much of these slices as there is room for, and returns the number of bytes. The stream must not be busy.
    ///
    /// If not everything was sent, the stream is busy, as after [`Sending::Busy`]. An engine that cannot send before it returns
    /// answers [`Unsupported`](io::ErrorKind::Unsupported): then use [`send`](StreamEngine::send).
    fn send_now(&mut self, token: Token, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Starts or stops reporting room to send on a stream or datagram socket with [`Event::Sendable`](super::Event::Sendable) in
    /// each turn, although nothing is queued. A source that is busy reports it anyway. An engine that cannot tell answers
    /// [`Unsupported`](io::ErrorKind::Unsupported).
    fn report_room(&mut self, token: Token, report: bool) -> io::Result<()>;

    /// Sends as much of the outbox as it can and removes it from there.
    ///
    /// After [`Sending::Busy`] the caller sends nothing more before [`Event::Sendable`](super::Event::Sendable) or
    /// [`Event::Ended`](super::Event::Ended). Bytes that the engine will send after it has returned are removed with
    /// [`Outbox::take`], so that they count as queued until `Sendable`.
    fn send(&mut self, token: Token, outbox: &mut Outbox) -> io::Result<Sending>;

    /// Tells the other side that nothing more will be sent, as far as the [kind](StreamKind) of stream can. A stream that only
    /// sends is closed by this, and can then only be forgotten.
    fn finish(&mut self, token: Token) -> io::Result<()>;

    /// Makes forgetting the stream reset the connection, if its kind of stream knows resets: the other side then gets an error
    /// instead of an orderly end.
    fn reset_when_forgotten(&mut self, token: Token);

    /// Gives up a stream that has nothing queued: [`Event::Detached`](super::Event::Detached) carries its socket and follows
    /// everything that was received. The engine has then forgotten the source.
    fn detach(&mut self, token: Token) -> io::Result<()>;

    /// Moves what `from` receives into a pipe, while that is empty, to be [sent on](Outbox::push_splice) to the given stream:
    /// [`Event::Spliced`](super::Event::Spliced) for each piece. Other bytes, and all after `None`, are received as usual.
    /// Returns whether the engine can do this for both streams. If not, nothing changes.
    fn splice(&mut self, from: Token, route: Option<(Token, Rc<Splice>)>) -> bool;

    /// Returns whether bytes have arrived that were not received yet. `false` if the engine cannot tell.
    fn has_unread(&self, token: Token) -> bool;

    /// Returns how many sent bytes the other side has not read yet, or `None` if the engine cannot tell. A falling number shows
    /// that the other side reads although there is no room to send more.
    ///
    /// The reactor asks when a timeout is about to expire, not per message.
    fn undelivered(&self, token: Token) -> Option<u64>;
}

/// Exchanges datagrams. A datagram socket receives from the start.
pub trait DatagramEngine {
    /// Binds a datagram socket to `address`: [`Event::Datagram`](super::Event::Datagram) for each that arrives.
    fn bind_datagrams(&mut self, token: Token, address: &Address, options: &DatagramOptions) -> io::Result<()>;

    /// Opens a datagram socket that exchanges datagrams with `address` only.
    fn connect_datagrams(&mut self, token: Token, address: &Address, options: &DatagramOptions) -> io::Result<()>;

    /// Takes over a bound or connected datagram socket. A [borrowed](Socket::borrowed) one is never closed.
    fn adopt_datagrams(&mut self, token: Token, socket: Socket) -> io::Result<()>;

    /// Starts or stops receiving. Datagrams that were in flight may still come out after a stop.
    fn receive_datagrams(&mut self, token: Token, intake: Intake) -> io::Result<()>;

    /// Leaves datagrams where they are until they are fetched: while the socket receives,
    /// [`Event::Receivable`](super::Event::Receivable) reports them in each turn instead of
    /// [`Event::Datagram`](super::Event::Datagram), and
    /// [`receive_datagram_into`](DatagramEngine::receive_datagram_into) fetches one. Errors are found in the same way.
    ///
    /// From then on, a datagram for which the receiver has no room is not dropped but waits.
    ///
    /// An engine that receives on its own answers [`Unsupported`](io::ErrorKind::Unsupported), and nothing changes.
    fn receive_datagrams_manually(&mut self, token: Token) -> io::Result<()>;

    /// Receives one datagram into `space`. Returns its length and its sender, if that has an address. Bytes that do not fit are
    /// lost. Fails with [`WouldBlock`](io::ErrorKind::WouldBlock) if none has arrived. The socket must
    /// [receive manually](DatagramEngine::receive_datagrams_manually).
    fn receive_datagram_into(&mut self, token: Token, space: &mut Space<'_>) -> io::Result<(usize, Option<Address>)>;

    /// Sends one datagram, and fails like the system call: with [`WouldBlock`](io::ErrorKind::WouldBlock) if there is no room.
    ///
    /// An engine that cannot send before it returns answers [`Unsupported`](io::ErrorKind::Unsupported): then use
    /// [`send_datagrams`](DatagramEngine::send_datagrams).
    fn send_datagram_now(&mut self, token: Token, to: Option<&Address>, bytes: &[u8]) -> io::Result<()>;

    /// Sends as many datagrams of the outbox as it can and removes them from there.
    ///
    /// After [`Sending::Busy`] the caller sends nothing more before [`Event::Sendable`](super::Event::Sendable). A datagram
    /// that cannot be sent is removed too and is no error here:
    /// [`Event::SendFailed`](super::Event::SendFailed) reports it before that `Sendable`.
    fn send_datagrams(&mut self, token: Token, outbox: &mut DatagramOutbox) -> io::Result<Sending>;

    /// Changes a setting of a datagram socket.
    fn set_datagrams(&mut self, token: Token, setting: DatagramSetting) -> io::Result<()>;
}
