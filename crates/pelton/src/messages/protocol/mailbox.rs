//! What other code has for a connection that speaks in messages, until the loop hands it over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::line::Answer;
use crate::{ConnectionId, Handle, Reactor};

/// Filled from anywhere, emptied on the loop. The loop is told once, however much is put in before it looks.
pub(super) struct Mailbox<M> {
    /// `None` if there is no connection: the holder of the replies looks here by itself.
    home: Option<Home>,
    state: Mutex<State<M>>,
}

/// Whom the letters are for.
pub(super) struct Home {
    pub(super) handle: Handle,
    pub(super) id: ConnectionId,
    pub(super) ways: Ways,
}

/// What the loop does for a connection. These functions know its type, so that nobody else has to.
#[derive(Clone, Copy)]
pub(super) struct Ways {
    /// Hands over what is in the mailbox.
    pub(super) deliver: fn(&mut Reactor, ConnectionId),
    /// Closes the connection when everything that was delivered has been sent.
    pub(super) close_after_writing: fn(&mut Reactor, ConnectionId),
}

pub(super) enum Letter<M> {
    /// Say this, ahead of replies that are not made yet.
    Push(M),
    /// The answer for a place in line.
    Answer(u64, Answer<M>),
    /// Process no further message.
    Pause,
    Resume,
}

struct State<M> {
    letters: Vec<Letter<M>>,
    /// Tasks to wake when the connection is over, each for one place in line.
    wakers: Vec<(u64, Waker)>,
    over: bool,
}

impl<M> Mailbox<M> {
    pub(super) fn new(home: Option<Home>) -> Arc<Mailbox<M>> {
        let state = State { letters: Vec::new(), wakers: Vec::new(), over: false };
        Arc::new(Mailbox { home, state: Mutex::new(state) })
    }

    pub(super) fn home(&self) -> Option<&Home> {
        self.home.as_ref()
    }

    /// Puts in a letter. It comes back if the connection is known to be over.
    pub(super) fn put(&self, letter: Letter<M>) -> Result<(), Letter<M>>
    where
        M: 'static,
    {
        let mut state = self.lock();
        if state.over {
            return Err(letter);
        }
        if state.letters.is_empty()
            && let Some(home) = &self.home
        {
            let (deliver, id) = (home.ways.deliver, home.id);
            // The mailbox stays locked: a thread that finds it in use may rely on this post being ahead of its own.
            if home.handle.post(move |reactor| deliver(reactor, id)).is_err() {
                state.over = true;
                return Err(letter);
            }
        }
        if let Letter::Answer(place, _) = letter {
            state.wakers.retain(|(waiting, _)| *waiting != place);
        }
        state.letters.push(letter);
        Ok(())
    }

    /// Takes everything out.
    pub(super) fn take(&self) -> Vec<Letter<M>> {
        std::mem::take(&mut self.lock().letters)
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().over
    }

    /// Wakes the task when the connection is over. Returns whether it is already.
    pub(super) fn is_over_or_wakes(&self, place: u64, waker: &Waker) -> bool {
        let mut state = self.lock();
        if !state.over {
            match state.wakers.iter_mut().find(|(waiting, _)| *waiting == place) {
                Some((_, known)) => known.clone_from(waker),
                None => state.wakers.push((place, waker.clone())),
            }
        }
        state.over
    }

    /// Refuses letters from now on, and drops those that are there.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        let (letters, wakers) = (std::mem::take(&mut state.letters), std::mem::take(&mut state.wakers));
        // Not under the lock: dropping a message and waking a task may run code that looks here.
        drop(state);
        drop(letters);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        // Nothing that can panic half-way is done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
