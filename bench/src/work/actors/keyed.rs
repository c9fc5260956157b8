//! Pelton's tasks by key: the cost of ordering without an actor.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

use super::{ActorSystem, Member, PATIENCE, WORKERS};

pub struct Keyed(pelton::Pool);

/// A key, and the state of its tasks. The lock is never contended: the tasks run one at a time.
pub struct Key {
    keyed: pelton::Keyed<usize>,
    key: usize,
    member: Arc<Mutex<Member<Keyed>>>,
}

impl ActorSystem for Keyed {
    type Ref = Key;

    fn start(members: Vec<Member<Self>>) -> Result<(Self, Vec<Self::Ref>)> {
        let pool = pelton::Pool::builder().workers(WORKERS).build()?;
        let keyed = pool.keyed().bound(usize::MAX).bound_per_key(usize::MAX);
        let key = |(key, member)| Key { keyed: keyed.clone(), key, member: Arc::new(Mutex::new(member)) };
        Ok((Self(pool), members.into_iter().enumerate().map(key).collect()))
    }

    fn send(to: &Self::Ref, number: u64) {
        let member = to.member.clone();
        let task = move || member.lock().unwrap_or_else(PoisonError::into_inner).receive(number);
        assert!(to.keyed.submit(to.key, task).is_ok(), "the pool has gone");
    }

    fn end(self) -> Result<()> {
        Ok(self.0.shutdown(PATIENCE)?)
    }
}
