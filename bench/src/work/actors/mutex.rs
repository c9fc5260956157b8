//! The classic design, with locks: a queue of messages per actor, and one queue of actors that have messages.
//!
//! An actor is in the queue of actors once, or not at all, as its flag says. A worker takes all messages of an actor's queue at
//! once, and handles as many as pelton's pool does before others get their turn.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Result, anyhow};

use super::{ActorSystem, Member, WORKERS};

pub struct Pool {
    shared: Arc<Shared>,
    actors: Vec<Arc<Actor>>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    ready: Mutex<Ready>,
    wake: Condvar,
}

#[derive(Default)]
struct Ready {
    actors: VecDeque<Arc<Actor>>,
    asleep: usize,
    ended: bool,
}

pub struct Actor {
    mailbox: Mutex<Mailbox>,
    /// Empty at the end: members refer to each other, and would keep each other alive.
    member: Mutex<Option<Member<Pool>>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Mailbox {
    messages: VecDeque<u64>,
    /// Set while the actor is in the queue of actors, or a worker has it.
    scheduled: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn schedule(&self, actor: Arc<Actor>) {
        let mut ready = lock(&self.ready);
        ready.actors.push_back(actor);
        let sleeps = ready.asleep > 0;
        drop(ready);
        if sleeps {
            self.wake.notify_one();
        }
    }

    fn next(&self) -> Option<Arc<Actor>> {
        let mut ready = lock(&self.ready);
        loop {
            if ready.ended {
                return None;
            }
            if let Some(actor) = ready.actors.pop_front() {
                return Some(actor);
            }
            ready.asleep += 1;
            ready = self.wake.wait(ready).unwrap_or_else(PoisonError::into_inner);
            ready.asleep -= 1;
        }
    }

    fn work(&self) {
        let mut taken = Vec::with_capacity(pelton::MESSAGES_PER_TURN);
        while let Some(actor) = self.next() {
            let mut mailbox = lock(&actor.mailbox);
            let count = mailbox.messages.len().min(pelton::MESSAGES_PER_TURN);
            taken.extend(mailbox.messages.drain(..count));
            drop(mailbox);
            if let Some(member) = &mut *lock(&actor.member) {
                taken.drain(..).for_each(|number| member.receive(number));
            }
            let mut mailbox = lock(&actor.mailbox);
            mailbox.scheduled = !mailbox.messages.is_empty();
            let again = mailbox.scheduled;
            drop(mailbox);
            if again {
                self.schedule(actor);
            }
        }
    }
}

impl ActorSystem for Pool {
    type Ref = Arc<Actor>;

    fn start(members: Vec<Member<Self>>) -> Result<(Self, Vec<Self::Ref>)> {
        let shared = Arc::new(Shared { ready: Mutex::default(), wake: Condvar::new() });
        let actor = |member| {
            let (mailbox, member) = (Mutex::default(), Mutex::new(Some(member)));
            Arc::new(Actor { mailbox, member, shared: shared.clone() })
        };
        let actors: Vec<_> = members.into_iter().map(actor).collect();
        let worker = |_| {
            let shared = shared.clone();
            thread::spawn(move || shared.work())
        };
        let workers = (0..WORKERS).map(worker).collect();
        let refs = actors.clone();
        Ok((Self { shared, actors, workers }, refs))
    }

    fn send(to: &Self::Ref, number: u64) {
        let mut mailbox = lock(&to.mailbox);
        mailbox.messages.push_back(number);
        let is_new = !std::mem::replace(&mut mailbox.scheduled, true);
        drop(mailbox);
        if is_new {
            to.shared.schedule(to.clone());
        }
    }

    fn end(self) -> Result<()> {
        lock(&self.shared.ready).ended = true;
        self.shared.wake.notify_all();
        for worker in self.workers {
            worker.join().map_err(|_| anyhow!("a worker panicked"))?;
        }
        // Taken out of its lock before it is dropped: the last one drops the others.
        self.actors.iter().for_each(|actor| drop(lock(&actor.member).take()));
        Ok(())
    }
}
