//! The room: who is present, and who hears what.
//!
//! The room lives on the first worker and takes no lock. Guests on any worker post their actions to it, and it posts each line to
//! all workers, which pass it on to their guests. So everybody hears everything in the same order, and a name belongs to one
//! guest. With a broker, lines go to the [wall](super::wall) of all servers first, and the room posts what it reads there.

use std::collections::HashMap;
use std::sync::Arc;

use pelton::{ConnectionId, Handle, PostError, Reactor, Reason, SendError};

use super::guest::Guest;
use super::wall::{self, Wall};

/// The worker and connection of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GuestId {
    pub worker: usize,
    pub id: ConnectionId,
}

/// The guests in the room; in the first worker's state.
#[derive(Default)]
struct Room {
    members: HashMap<GuestId, Member>,
    /// The guests by number.
    numbers: HashMap<u64, GuestId>,
    next: u64,
}

struct Member {
    name: String,
    /// Stands for the guest on the wall.
    number: u64,
}

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
    /// Too much waits for the broker, and the line was not delivered.
    Undelivered,
}

/// The way into the room, from any worker.
#[derive(Clone)]
pub struct Door {
    workers: Arc<[Handle]>,
    wall: Option<Wall>,
}

/// The room is overloaded, and the line was not delivered.
pub struct Busy;

impl Door {
    pub fn new(workers: &[Handle], wall: Option<Wall>) -> Door {
        Door { workers: workers.into(), wall }
    }

    /// Reads the wall, on the first worker.
    pub fn open(&self) {
        if let Some(wall) = self.wall.clone() {
            let door = self.clone();
            self.post(0, move |reactor| wall.read(reactor, door));
        }
    }

    /// Asks to enter under this name.
    pub fn enter(&self, guest: GuestId, name: String) {
        let door = self.clone();
        self.post(0, move |reactor| {
            let others = everybody(reactor);
            if others.iter().any(|other| other.to_lowercase() == name.to_lowercase()) {
                return door.answer(guest, Answer::Taken { name });
            }
            let room = reactor.state::<Room>();
            room.next += 1;
            room.members.insert(guest, Member { name: name.clone(), number: room.next });
            room.numbers.insert(room.next, guest);
            door.let_in(guest, name.clone(), others);
            if let Some(wall) = &door.wall {
                wall.joined(&name);
            }
            door.tell_all(reactor, &format!("* {name} has joined"), guest);
        });
    }

    /// Leaves the room, or withdraws the request to enter.
    pub fn leave(&self, guest: GuestId) {
        let door = self.clone();
        self.post(0, move |reactor| {
            let room = reactor.state::<Room>();
            if let Some(Member { name, number }) = room.members.remove(&guest) {
                room.numbers.remove(&number);
                if let Some(wall) = &door.wall {
                    wall.left(&name);
                }
                door.tell_all(reactor, &format!("* {name} has left"), guest);
            }
        });
    }

    /// Says something: all others hear the line that `line` makes of the guest's name.
    pub fn say(&self, guest: GuestId, line: impl FnOnce(&str) -> String + Send + 'static) -> Result<(), Busy> {
        let door = self.clone();
        let posted = self.workers[0].try_post(move |reactor| {
            let line = reactor.state::<Room>().members.get(&guest).map(|member| line(&member.name));
            if let Some(line) = line {
                door.tell_all(reactor, &line, guest);
            }
        });
        // If the room is gone, its shutdown is about to reach the guest.
        if let Err(PostError::Full(_)) = posted { Err(Busy) } else { Ok(()) }
    }

    /// Asks who is present.
    pub fn who(&self, guest: GuestId) {
        let door = self.clone();
        self.post(0, move |reactor| {
            let names = everybody(reactor);
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

    /// Tells everybody a line, except the guest that it is about: on all servers of the room.
    fn tell_all(&self, reactor: &mut Reactor, line: &str, except: GuestId) {
        let Some(wall) = &self.wall else { return self.tell_here(line, Some(except)) };
        // A guest that has left hears nothing. No guest has number 0.
        let number = reactor.state::<Room>().members.get(&except).map_or(0, |member| member.number);
        if !wall.write(line, number) {
            self.answer(except, Answer::Undelivered);
        }
    }

    /// Tells the guests of this server a line that its guest with this number has caused.
    pub fn tell_from(&self, reactor: &mut Reactor, line: &str, number: u64) {
        let except = reactor.state::<Room>().numbers.get(&number).copied();
        self.tell_here(line, except);
    }

    /// Tells the guests of this server a line.
    pub fn tell_here(&self, line: &str, except: Option<GuestId>) {
        let line: Arc<str> = format!("{line}\r\n").into();
        for (worker, handle) in self.workers.iter().enumerate() {
            let (line, except) = (line.clone(), except.filter(|guest| guest.worker == worker).map(|guest| guest.id));
            if let Err(PostError::Full(_)) = handle.try_post(move |reactor| tell_guests(reactor, &line, except)) {
                tracing::warn!(worker, "a worker is overloaded: its guests miss a line");
            }
        }
    }

    fn post(&self, worker: usize, act: impl FnOnce(&mut Reactor) + Send + 'static) {
        // A worker that is gone has no guests, and when the room is gone, everybody is leaving.
        let _ = self.workers[worker].post(act);
    }
}

/// The guests of this server.
pub fn names(reactor: &mut Reactor) -> Vec<String> {
    reactor.state::<Room>().members.values().map(|member| member.name.clone()).collect()
}

/// The guests of all servers, in alphabetical order.
fn everybody(reactor: &mut Reactor) -> Vec<String> {
    let mut names = names(reactor);
    names.extend(wall::names(reactor));
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
