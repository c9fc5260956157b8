//! A listener for `async` code.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::panic::Location;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use pelton_os::engine::Intake;

use super::pipe::{Filler, Pipe};
use super::stream::set;
use super::{Stream, current, current_of};
use crate::sources::listener::serving;
use crate::tasks::task::{Chore, Local};
use crate::{Address, Io, ListenOptions, ListenerId, Reactor};

/// How many streams may wait to be accepted. Further connections stay in the kernel's queue.
const MOST_WAITING: usize = 64;

/// Accepted connections that wait for the listener's owner.
pub(super) struct Arrivals {
    listener: Cell<Option<ListenerId>>,
    waiting: RefCell<VecDeque<Stream>>,
    waker: RefCell<Option<Waker>>,
    paused: Cell<bool>,
    over: Cell<bool>,
}

impl Arrivals {
    /// Adds a connection that has been opened.
    pub(super) fn arrived(&self, io: &mut Io<'_>, pipe: &Rc<RefCell<Pipe>>) {
        let id = io.id();
        let stream = Stream::new(io.reactor(), id, Rc::clone(pipe));
        let waiting = {
            let mut waiting = self.waiting.borrow_mut();
            waiting.push_back(stream);
            waiting.len()
        };
        if waiting >= MOST_WAITING
            && let Some(listener) = self.listener.get()
            && !self.paused.replace(true)
        {
            io.reactor().accept_if(listener, Intake::Off);
        }
        self.wake();
    }

    fn wake(&self) {
        let waker = self.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Part of the reactor's entry for a listener, so it is dropped when the listener ends.
struct Accepting(Rc<Arrivals>);

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.over.set(true);
        self.0.wake();
    }
}

/// Listens for connections. Dropping it stops listening: accepted streams stay open, the others are closed.
///
/// It is also a `futures` stream of its connections. It ends when the reactor [drains](Reactor::drain). At most 64
/// connections wait to be accepted; further ones wait in the kernel.
pub struct Listener {
    id: ListenerId,
    address: Address,
    arrivals: Rc<Arrivals>,
    local: Rc<Local>,
}

impl Listener {
    /// Listens on `address`. See [`Reactor::listen`].
    #[track_caller]
    pub fn bind(address: &Address) -> io::Result<Listener> {
        Listener::bind_with(address, &ListenOptions::default())
    }

    /// Listens with [options](ListenOptions) such as the permissions of a Unix socket.
    #[track_caller]
    pub fn bind_with(address: &Address, options: &ListenOptions) -> io::Result<Listener> {
        let place = Location::caller();
        current(|reactor| {
            let arrivals = Rc::new(Arrivals {
                listener: Cell::new(None),
                waiting: RefCell::default(),
                waker: RefCell::default(),
                paused: Cell::new(false),
                over: Cell::new(false),
            });
            let accepting = Accepting(Rc::clone(&arrivals));
            let accept = serving(place, move |_| Filler { pipe: Pipe::new(), arrivals: Some(Rc::clone(&accepting.0)) });
            let id = reactor.listen_from(place, address, options, accept)?;
            arrivals.listener.set(Some(id));
            let address = reactor.listening_on(id).cloned().unwrap_or(Address::Unnamed);
            Ok(Listener { id, address, arrivals, local: Rc::clone(&reactor.local) })
        })
    }

    /// Waits for a connection. Dropping the future loses no connection.
    pub async fn accept(&self) -> io::Result<Stream> {
        let accepted = poll_fn(|context| self.poll_accept(context)).await;
        accepted
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "accept a connection: the listener has ended"))
    }

    /// Polls for a connection. Returns `None` if the listener has ended.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Option<Stream>> {
        let (accepted, left) = {
            let mut waiting = self.arrivals.waiting.borrow_mut();
            (waiting.pop_front(), waiting.len())
        };
        if left <= MOST_WAITING / 2 && self.arrivals.paused.replace(false) {
            self.local.leave(Chore::Accept(self.id));
        }
        if accepted.is_some() || self.arrivals.over.get() {
            return Poll::Ready(accepted);
        }
        set(&mut self.arrivals.waker.borrow_mut(), context);
        Poll::Pending
    }

    /// Returns the address that it is bound to, with the actual port if that was left open.
    pub fn local_address(&self) -> io::Result<Address> {
        Ok(self.address.clone())
    }

    /// Returns the listener's id, for [`Reactor::label`].
    pub fn id(&self) -> ListenerId {
        self.id
    }

    /// Sets a name that appears in reports.
    pub fn set_label(&self, label: impl Into<std::sync::Arc<str>>) -> io::Result<()> {
        current_of(&self.local, |reactor: &mut Reactor| {
            reactor.label(self.id, label);
            Ok(())
        })
    }
}

impl futures_core::Stream for Listener {
    type Item = Stream;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Stream>> {
        self.poll_accept(context)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.arrivals.over.get() {
            self.local.leave(Chore::Unlisten(self.id));
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}
