//! ractor: an actor is a tokio task, on a runtime with as many workers as the others have. Its mailboxes are unbounded.

use anyhow::{Context, Result};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::runtime::{Builder, Runtime};

use super::{ActorSystem, Member, WORKERS};

pub struct Ractor(Runtime);

/// The actor; its state is the member.
struct Receiver;

impl Actor for Receiver {
    type Msg = u64;
    type State = Member<Ractor>;
    type Arguments = Member<Ractor>;

    async fn pre_start(&self, _: ActorRef<u64>, member: Self::State) -> Result<Self::State, ActorProcessingErr> {
        Ok(member)
    }

    async fn handle(&self, _: ActorRef<u64>, number: u64, member: &mut Self::State) -> Result<(), ActorProcessingErr> {
        member.receive(number);
        Ok(())
    }
}

impl ActorSystem for Ractor {
    type Ref = ActorRef<u64>;

    fn start(members: Vec<Member<Self>>) -> Result<(Self, Vec<Self::Ref>)> {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(WORKERS).enable_time().build().context("build a tokio runtime")?;
        let refs = runtime.block_on(async {
            let mut refs = Vec::with_capacity(members.len());
            for member in members {
                refs.push(Actor::spawn(None, Receiver, member).await.context("spawn an actor")?.0);
            }
            anyhow::Ok(refs)
        })?;
        Ok((Self(runtime), refs))
    }

    fn send(to: &Self::Ref, number: u64) {
        assert!(to.cast(number).is_ok(), "the actor has gone");
    }

    fn end(self) -> Result<()> {
        // Drops the actors, wherever they wait.
        drop(self.0);
        Ok(())
    }
}
