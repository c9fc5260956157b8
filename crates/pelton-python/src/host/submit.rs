//! Handing calls to a loop. Neither the interpreter lock nor any other is taken.

use std::sync::Arc;

use pelton_os::clock;

use super::batch::{Batch, BatchShared, PartlyRefused};
use super::call::Call;
use super::completion::{Completion, Tag, To};
use super::error::Refused;
use super::loops::{LoopShared, Task};
use super::reply::{Reply, Slot};
use super::stream::{Stream, StreamShared};

fn hand_over(home: &LoopShared, namespace: u64, call: Call, to: To) -> Result<(), Refused> {
    let deadline = call.timeout.map(|timeout| clock::now() + timeout);
    let task = Task { call, deadline, namespace, completion: Completion::new(to) };
    home.submit(task).map_err(|(kind, task)| LoopShared::refused(kind, task))
}

pub(crate) fn reply(home: &Arc<LoopShared>, namespace: u64, call: Call) -> Result<Reply, Refused> {
    let slot = Arc::new(Slot::new());
    hand_over(home, namespace, call, To::Reply(slot.clone()))?;
    Ok(Reply { slot, home: home.clone() })
}

pub(crate) fn spawn(home: &LoopShared, namespace: u64, call: Call) -> Result<(), Refused> {
    hand_over(home, namespace, call, To::Nobody(Arc::new(Tag::default())))
}

pub(crate) fn stream(home: &Arc<LoopShared>, namespace: u64, call: Call, credit: usize) -> Result<Stream, Refused> {
    let shared = Arc::new(StreamShared::new(credit));
    hand_over(home, namespace, call, To::Stream(shared.clone()))?;
    Ok(Stream { shared, home: home.clone() })
}

pub(crate) fn batch(home: &Arc<LoopShared>, namespace: u64, calls: Vec<Call>) -> Result<Batch, PartlyRefused> {
    let shared = Arc::new(BatchShared::new(calls.len()));
    let mut calls = calls.into_iter();
    for index in 0.. {
        let Some(call) = calls.next() else { break };
        if let Err(Refused { kind, call }) = hand_over(home, namespace, call, To::Batch(shared.clone(), index)) {
            let rest: Vec<Call> = std::iter::once(*call).chain(calls).collect();
            // Those that were not taken on have no outcome to wait for; the refused one has been told so already.
            shared.give_up(index as usize, rest.len() - 1);
            return Err(PartlyRefused { kind, accepted: Batch { shared, home: home.clone() }, rest });
        }
    }
    Ok(Batch { shared, home: home.clone() })
}
