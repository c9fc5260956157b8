//! Messages from other code to a connection, until the loop delivers them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::pending::Answer;
use crate::{ConnectionId, Handle, Reactor};

/// A mailbox that is filled from anywhere and emptied on the loop. The loop is notified once, regardless of how many
/// letters arrive before it looks.
pub(super) struct Mailbox<M> {
    /// `None` without a connection: then the holder of the replies polls the mailbox.
    home: Option<Home>,
    state: Mutex<State<M>>,
}

/// The connection that owns a mailbox.
pub(super) struct Home {
    pub(super) handle: Handle,
    pub(super) id: ConnectionId,
    pub(super) calls: LoopCalls,
}

/// Operations that run on the loop. These functions know the connection's type, so that their callers need not.
#[derive(Clone, Copy)]
pub(super) struct LoopCalls {
    /// Delivers the contents of the mailbox.
    pub(super) deliver: fn(&mut Reactor, ConnectionId),
    /// Closes the connection after everything delivered has been sent.
    pub(super) close_after_writing: fn(&mut Reactor, ConnectionId),
}

pub(super) enum Letter<M> {
    /// Send this, ahead of replies that are not ready.
    Push(M),
    /// The answer to a reserved entry.
    Answer(u64, Answer<M>),
    /// Process no further messages.
    Pause,
    Resume,
}

struct State<M> {
    letters: Vec<Letter<M>>,
    /// Tasks to wake when the connection ends, each with the number of its entry.
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

    /// Adds a letter. Returns it if the connection is known to have ended.
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
            let (deliver, id) = (home.calls.deliver, home.id);
            // The mailbox stays locked, so that a thread that finds letters in it can rely on this post preceding its
            // own.
            if home.handle.post(move |reactor| deliver(reactor, id)).is_err() {
                state.over = true;
                return Err(letter);
            }
        }
        if let Letter::Answer(number, _) = letter {
            state.wakers.retain(|(waiting, _)| *waiting != number);
        }
        state.letters.push(letter);
        Ok(())
    }

    /// Takes all letters.
    pub(super) fn take(&self) -> Vec<Letter<M>> {
        std::mem::take(&mut self.lock().letters)
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().over
    }

    /// Registers the task to be woken when the connection ends. Returns whether it has already ended.
    pub(super) fn is_over_or_wakes(&self, number: u64, waker: &Waker) -> bool {
        let mut state = self.lock();
        if !state.over {
            match state.wakers.iter_mut().find(|(waiting, _)| *waiting == number) {
                Some((_, known)) => known.clone_from(waker),
                None => state.wakers.push((number, waker.clone())),
            }
        }
        state.over
    }

    /// Refuses letters from now on, and drops those in the mailbox.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.over = true;
        let (letters, wakers) = (std::mem::take(&mut state.letters), std::mem::take(&mut state.wakers));
        // Do this without the lock: dropping a message and waking a task may run code that uses this mailbox.
        drop(state);
        drop(letters);
        wakers.into_iter().for_each(|(_, waker)| waker.wake());
    }

    fn lock(&self) -> MutexGuard<'_, State<M>> {
        // Nothing that can panic midway runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
