//! Pelton's pool.

use anyhow::Result;
use pelton::{Actor, ActorRef, Context};

use super::{ActorSystem, Member, PATIENCE, WORKERS};

pub struct Pool(pelton::Pool);

impl Actor for Member<Pool> {
    type Message = u64;

    fn receive(&mut self, number: u64, _: &mut Context<'_, u64>) {
        Member::receive(self, number);
    }
}

impl ActorSystem for Pool {
    type Ref = ActorRef<u64>;

    fn start(members: Vec<Member<Self>>) -> Result<(Self, Vec<Self::Ref>)> {
        let pool = pelton::Pool::builder().workers(WORKERS).build()?;
        let refs = members.into_iter().map(|member| pool.spawn(member)).collect();
        Ok((Self(pool), refs))
    }

    fn send(to: &Self::Ref, number: u64) {
        assert!(to.send(number).is_ok(), "the actor has gone");
    }

    fn end(self) -> Result<()> {
        Ok(self.0.shutdown(PATIENCE)?)
    }
}
