//! State that tasks share with their reactor, on its thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

use pelton_os::engine::Intake;

use crate::process::ChildId;
use crate::reactor::panics::Panic;
use crate::reactor::slots::{Key, Slots};
use crate::{ConnectionId, DatagramsId, ListenerId, PathWatchId, Reactor, TimerId};

/// Work for the reactor's next flush, left by code that may not have the reactor at hand, mostly destructors.
pub(crate) enum Chore {
    CancelTimer(TimerId),
    Read(ConnectionId),
    /// `unread`: some input was never read, so more may arrive.
    Close {
        id: ConnectionId,
        unread: bool,
    },
    Accept(ListenerId),
    Unlisten(ListenerId),
    Receive(DatagramsId),
    CloseDatagrams(DatagramsId),
    UnwatchPath(PathWatchId),
    KillChild(ChildId),
}

/// State shared by a reactor, its tasks, and what they own.
#[derive(Default)]
pub(crate) struct Local {
    chores: RefCell<Vec<Chore>>,
    /// The wakers of all tasks, so that all can be dropped at the end. `None` briefly, while a task is being created.
    tasks: RefCell<Slots<Option<Waker>>>,
    /// The panic of the task that has just run.
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
        if let Some(slot) = self.tasks.borrow_mut().get_mut(task) {
            *slot = Some(waker);
        }
    }

    pub(super) fn remove_task(&self, task: Key) {
        let waker = self.tasks.borrow_mut().remove(task);
        // Drop it after the borrow of the table: it may be the last reference to the task.
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
        // Chores left meanwhile are rare, and have a vector of their own.
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
                    // Nobody waits for a connection that is not established yet.
                    if io.is_open() {
                        if unread {
                            io.has_heard();
                        }
                        io.close_after_writing();
                        // Otherwise a peer that waits for us to read would never read the rest of our data.
                        io.resume();
                    } else {
                        io.close();
                    }
                }
            }
            Chore::Accept(id) => self.accept_if(id, Intake::On),
            Chore::Unlisten(id) => {
                self.end(id);
            }
            Chore::KillChild(id) => {
                self.end(id);
            }
            Chore::UnwatchPath(id) => {
                self.end(id);
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
