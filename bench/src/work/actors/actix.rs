//! actix: an arbiter is a thread with its own runtime, on which its actors stay. So there are as many arbiters as the others have
//! workers, and actors are assigned to them in turn.
//!
//! `do_send` does not wait for room in a mailbox.

use actix::{Actor, Addr, Arbiter, Context, Handler, Message, System, SystemRunner};
use anyhow::{Result, anyhow, ensure};

use super::{ActorSystem, Member, WORKERS};

pub struct Arbiters {
    arbiters: Vec<Arbiter>,
    /// Arbiters need one, though nothing runs on it.
    _system: SystemRunner,
}

pub struct Number(u64);

impl Message for Number {
    type Result = ();
}

impl Actor for Member<Arbiters> {
    type Context = Context<Self>;
}

impl Handler<Number> for Member<Arbiters> {
    type Result = ();

    fn handle(&mut self, number: Number, _: &mut Context<Self>) {
        self.receive(number.0);
    }
}

impl ActorSystem for Arbiters {
    type Ref = Addr<Member<Self>>;

    fn start(members: Vec<Member<Self>>) -> Result<(Self, Vec<Self::Ref>)> {
        let system = System::new();
        let arbiters: Vec<Arbiter> = (0..WORKERS).map(|_| Arbiter::new()).collect();
        let place = |(member, arbiter): (_, &Arbiter)| Actor::start_in_arbiter(&arbiter.handle(), |_| member);
        let refs = members.into_iter().zip(arbiters.iter().cycle()).map(place).collect();
        Ok((Self { arbiters, _system: system }, refs))
    }

    fn send(to: &Self::Ref, number: u64) {
        to.do_send(Number(number));
    }

    fn end(self) -> Result<()> {
        ensure!(self.arbiters.iter().all(Arbiter::stop), "an arbiter is gone");
        self.arbiters.into_iter().try_for_each(|arbiter| arbiter.join().map_err(|_| anyhow!("an arbiter panicked")))
    }
}
