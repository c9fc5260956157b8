//! The room: who is present, and who hears what.
//!
//! The room lives on the first worker and takes no lock. Guests on any worker post their actions to it, and it posts each line to
//! all workers, which pass it on to their guests. So everybody hears everything in the same order, and a name belongs to one
//! guest.

use std::collections::HashMap;
use std::sync::Arc;

use pelton::{ConnectionId, Handle, PostError, Reactor, Reason, SendError};

use super::guest::Guest;

/// The worker and connection of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GuestId {
    pub worker: usize,
    pub id: ConnectionId,
}

/// Names of the guests in the room; in the first worker's state.
#[derive(Default)]
struct Room(HashMap<GuestId, String>);

/// A worker's guests in the room; in each worker's state.
#[derive(Default)]
struct Present(HashMap<ConnectionId, String>);

/// What the room tells a guest.
pub enum Answer {
    /// The guest was admitted. These guests are in the room too.
    Welcome { others: Vec<String> },
    /// The name is taken.
    Taken { name: String },
    /// The guests present.
    Who { names: Vec<String> },
}

/// The way into the room, from any worker.
#[derive(Clone)]
pub struct Door(Arc<[Handle]>);

/// The room is overloaded, and the line was not delivered.
pub struct Busy;

impl Door {
    pub fn new(workers: &[Handle]) -> Door {
        Door(workers.into())
    }

    /// Asks to enter under this name.
    pub fn enter(&self, guest: GuestId, name: String) {
        let door = self.clone();
        self.post(0, move |reactor| {
            let names = &mut reactor.state::<Room>().0;
            if names.values().any(|other| other.to_lowercase() == name.to_lowercase()) {
                return door.answer(guest, Answer::Taken { name });
            }
            let others = sorted(names);
            names.insert(guest, name.clone());
            door.let_in(guest, name.clone(), others);
            door.tell_all(&format!("* {name} has joined"), Some(guest));
        });
    }

    /// Leaves the room, or withdraws the request to enter.
    pub fn leave(&self, guest: GuestId) {
        let door = self.clone();
        self.post(0, move |reactor| {
            if let Some(name) = reactor.state::<Room>().0.remove(&guest) {
                door.tell_all(&format!("* {name} has left"), Some(guest));
            }
        });
    }

    /// Says something: all others hear the line that `line` makes of the guest's name.
    pub fn say(&self, guest: GuestId, line: impl FnOnce(&str) -> String + Send + 'static) -> Result<(), Busy> {
        let door = self.clone();
        let posted = self.0[0].try_post(move |reactor| {
            if let Some(name) = reactor.state::<Room>().0.get(&guest) {
                door.tell_all(&line(name), Some(guest));
            }
        });
        // If the room is gone, its shutdown is about to reach the guest.
        if let Err(PostError::Full(_)) = posted { Err(Busy) } else { Ok(()) }
    }

    /// Asks who is present.
    pub fn who(&self, guest: GuestId) {
        let door = self.clone();
        self.post(0, move |reactor| {
            let names = sorted(&reactor.state::<Room>().0);
            door.answer(guest, Answer::Who { names });
        });
    }

    fn let_in(&self, guest: GuestId, name: String, others: Vec<String>) {
        self.post(guest.worker, move |reactor| {
            let admitted = reactor.visit(guest.id, |guest: &mut Guest, io| guest.told(io, Answer::Welcome { others }));
            // A guest that has already left has posted so, and the room will handle that next.
            if admitted.is_some() {
                reactor.state::<Present>().0.insert(guest.id, name);
            }
        });
    }

    fn answer(&self, guest: GuestId, answer: Answer) {
        self.post(guest.worker, move |reactor| {
            reactor.visit(guest.id, |guest: &mut Guest, io| guest.told(io, answer));
        });
    }

    fn tell_all(&self, line: &str, except: Option<GuestId>) {
        let line: Arc<str> = format!("{line}\r\n").into();
        for (worker, handle) in self.0.iter().enumerate() {
            let (line, except) = (line.clone(), except.filter(|guest| guest.worker == worker).map(|guest| guest.id));
            if let Err(PostError::Full(_)) = handle.try_post(move |reactor| tell_guests(reactor, &line, except)) {
                tracing::warn!(worker, "a worker is overloaded: its guests miss a line");
            }
        }
    }

    fn post(&self, worker: usize, act: impl FnOnce(&mut Reactor) + Send + 'static) {
        // A worker that is gone has no guests, and when the room is gone, everybody is leaving.
        let _ = self.0[worker].post(act);
    }
}

fn sorted(names: &HashMap<GuestId, String>) -> Vec<String> {
    let mut names: Vec<String> = names.values().cloned().collect();
    names.sort_by_key(|name| name.to_lowercase());
    names
}

/// Sends a line to the guests of this worker. Drops a guest that does not read: its queue takes memory, and it will never catch
/// up.
fn tell_guests(reactor: &mut Reactor, line: &str, except: Option<ConnectionId>) {
    let Some(present) = reactor.take_state::<Present>() else { return };
    for (id, name) in &present.0 {
        if Some(*id) != except
            && let Some(mut io) = reactor.connection(*id)
            && let Err(SendError::Full { queued, .. }) = io.send(line.as_bytes())
        {
            tracing::warn!(name, queued, "dropping a guest that does not read");
            io.close_with(Reason::Overflow);
        }
    }
    reactor.put_state(present);
}

/// Removes a guest of this worker that has left.
pub fn forget(reactor: &mut Reactor, id: ConnectionId) {
    reactor.state::<Present>().0.remove(&id);
}
