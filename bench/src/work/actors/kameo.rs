//! kameo: an actor is a tokio task, on a runtime with as many workers as the others have.
//!
//! With an unbounded mailbox, `try_send` neither waits nor fails.

use std::convert::Infallible;

use anyhow::{Context as _, Result};
use kameo::actor::{Actor, ActorRef, Spawn};
use kameo::mailbox;
use kameo::message::{Context, Message};
use tokio::runtime::{Builder, Runtime};

use super::{ActorSystem, Member, WORKERS};

pub struct Kameo(Runtime);

impl Actor for Member<Kameo> {
    type Args = Self;
    type Error = Infallible;

    async fn on_start(member: Self, _: ActorRef<Self>) -> Result<Self, Infallible> {
        Ok(member)
    }
}

impl Message<u64> for Member<Kameo> {
    type Reply = ();

    async fn handle(&mut self, number: u64, _: &mut Context<Self, ()>) {
        self.receive(number);
    }
}

impl ActorSystem for Kameo {
    type Ref = ActorRef<Member<Self>>;

    fn start(members: Vec<Member<Self>>) -> Result<(Self, Vec<Self::Ref>)> {
        let runtime = Builder::new_multi_thread().worker_threads(WORKERS).build().context("build a tokio runtime")?;
        let _guard = runtime.enter();
        let refs: Vec<_> =
            members.into_iter().map(|member| Member::spawn_with_mailbox(member, mailbox::unbounded())).collect();
        runtime.block_on(async {
            for actor in &refs {
                actor.wait_for_startup().await;
            }
        });
        drop(_guard);
        Ok((Self(runtime), refs))
    }

    fn send(to: &Self::Ref, number: u64) {
        assert!(to.tell(number).try_send().is_ok(), "the actor has gone");
    }

    fn end(self) -> Result<()> {
        // Drops the actors, wherever they wait.
        drop(self.0);
        Ok(())
    }
}
