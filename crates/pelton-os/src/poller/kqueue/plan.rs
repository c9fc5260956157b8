//! Changes to one descriptor that are made together or not at all.

use std::io;
use std::os::fd::RawFd;

use rustix::io::Errno;

use super::abi::{EV_ADD, EV_DELETE, Flags};
use super::queue::{CHANGES_AT_ONCE, Change, Filter, Queue};

pub struct Plan {
    changes: [Change; CHANGES_AT_ONCE],
    count: usize,
}

/// The outcome of a [`Plan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    /// Done, except for the write filter: the pipe has no reader.
    Refused,
}

impl Plan {
    pub fn new(fd: RawFd) -> Plan {
        Plan { changes: [Change { fd, filter: Filter::Read, flags: 0 }; CHANGES_AT_ONCE], count: 0 }
    }

    #[must_use]
    pub fn with(mut self, filter: Filter, flags: Flags) -> Plan {
        let change = &mut self.changes[self.count];
        (change.filter, change.flags) = (filter, flags);
        self.count += 1;
        self
    }

    /// Makes the changes. If one fails, all filters of the descriptor are removed.
    pub fn carry_out(&self, queue: &Queue) -> io::Result<Outcome> {
        let mut outcome = Outcome::Done;
        let mut failure = None;
        for (change, error) in self.changes().iter().zip(queue.apply(self.changes())?) {
            match error {
                None => {}
                Some(Errno::PIPE) if change.flags & EV_ADD != 0 && change.filter == Filter::Write => {
                    outcome = Outcome::Refused;
                }
                Some(error) => failure = failure.or(Some(error)),
            }
        }
        let Some(failure) = failure else { return Ok(outcome) };
        // Deleting a filter that does not exist fails, which is harmless.
        let undo = Plan::new(self.changes[0].fd).with(Filter::Read, EV_DELETE).with(Filter::Write, EV_DELETE);
        queue.apply(undo.changes())?;
        Err(failure.into())
    }

    /// Makes the changes, all of which delete filters. Filters that are already gone are no error.
    pub fn clear_away(&self, queue: &Queue) -> io::Result<()> {
        let mut errors = queue.apply(self.changes())?.into_iter().flatten();
        // It was closed in the meantime, and its number perhaps reused. The kernel has already removed it.
        errors.find(|error| !matches!(*error, Errno::BADF | Errno::NOENT)).map_or(Ok(()), |error| Err(error.into()))
    }

    fn changes(&self) -> &[Change] {
        &self.changes[..self.count]
    }
}
