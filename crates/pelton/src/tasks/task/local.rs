//! What tasks and what they own share with their reactor, on its thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use crate::reactor::callback::Panic;
use crate::reactor::slots::{Key, Slots};
use crate::{ConnectionId, DatagramsId, ListenerId, Reactor, TimerId};

/// Something for the reactor to do in its next flush, left by somebody who may not have the reactor at hand: most of it by
/// what was dropped.
pub(crate) enum Chore {
    CancelTimer(TimerId),
    Read(ConnectionId),
    /// `unread`: something has come in that nobody read, so that more may come.
    Close {
        id: ConnectionId,
        unread: bool,
    },
    Accept(ListenerId),
    Unlisten(ListenerId),
    Receive(DatagramsId),
    CloseDatagrams(DatagramsId),
}

/// Shared by a reactor, its tasks, and what they own.
#[derive(Default)]
pub(crate) struct Local {
    chores: RefCell<Vec<Chore>>,
    /// Wakes each task that there is, so that all can be dropped at the end. `None` for a moment, while one is made.
    tasks: RefCell<Slots<Option<Waker>>>,
    /// What a task panicked with that ran just now.
    panic: Cell<Option<Panic>>,
}

impl Local {
    pub(crate) fn leave(&self, chore: Chore) {
        self.chores.borrow_mut().push(chore);
    }

    pub(super) fn add_task(&self) -> Key {
        self.tasks.borrow_mut().insert(None)
    }

    pub(super) fn set_waker(&self, task: Key, waker: Waker) {
        if let Some(place) = self.tasks.borrow_mut().get_mut(task) {
            *place = Some(waker);
        }
    }

    pub(super) fn remove_task(&self, task: Key) {
        let waker = self.tasks.borrow_mut().remove(task);
        // Not while the table is borrowed: it may be the last to know of the task.
        drop(waker);
    }

    pub(super) fn wakers(&self) -> Vec<Waker> {
        self.tasks.borrow().iter().filter_map(|(_, waker)| waker.clone()).collect()
    }

    pub(super) fn task_count(&self) -> usize {
        self.tasks.borrow().len()
    }

    pub(super) fn panicked(&self, panic: Panic) {
        self.panic.set(Some(panic));
    }

    pub(super) fn take_panic(&self) -> Option<Panic> {
        self.panic.take()
    }
}

impl Reactor {
    pub(crate) fn has_chores(&self) -> bool {
        !self.local.chores.borrow().is_empty()
    }

    pub(crate) fn do_chores(&mut self) {
        if !self.has_chores() {
            return;
        }
        let local = Rc::clone(&self.local);
        let mut chores = local.chores.take();
        for chore in chores.drain(..) {
            self.do_chore(chore);
        }
        // What has been left meanwhile is rare, and waits in memory of its own.
        let mut left = local.chores.borrow_mut();
        if left.is_empty() {
            *left = chores;
        }
    }

    fn do_chore(&mut self, chore: Chore) {
        match chore {
            Chore::CancelTimer(timer) => {
                self.cancel(timer);
            }
            Chore::Read(id) => {
                if let Some(mut io) = self.connection(id) {
                    io.resume();
                }
            }
            Chore::Close { id, unread } => {
                if let Some(mut io) = self.connection(id) {
                    // Nobody waits for one that is not established yet.
                    if io.is_open() {
                        if unread {
                            io.has_heard();
                        }
                        io.close_after_writing();
                        // Or the other side, if it waits for us to read, would never read what is left to be sent.
                        io.resume();
                    } else {
                        io.close();
                    }
                }
            }
            Chore::Accept(id) => self.pause_accepting(id, false),
            Chore::Unlisten(id) => {
                self.unlisten(id);
            }
            Chore::Receive(id) => {
                if let Some(mut io) = self.datagrams(id) {
                    io.resume();
                }
            }
            Chore::CloseDatagrams(id) => {
                if let Some(mut io) = self.datagrams(id) {
                    io.close_after_sending();
                }
            }
        }
    }
}
