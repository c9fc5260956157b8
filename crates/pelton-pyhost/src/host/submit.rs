//! Submitting calls to a loop, without taking the interpreter lock or any other.

use std::sync::Arc;

use super::batch::{Batch, PartlyRefused};
use super::call::Call;
use super::completion::{Completion, Request, To};
use super::error::{RefusalKind, Refused};
use super::loops::HostedLoop;
use super::reply::{Reply, Slot};
use super::stream::{Stream, StreamState};

fn refused((kind, task): (RefusalKind, Completion)) -> Refused {
    let call = task.into_call().expect("no loop accepted it, so there is no other reference");
    Refused { kind, call: Box::new(call) }
}

pub(crate) fn reply(home: &Arc<HostedLoop>, namespace: u64, call: Call) -> Result<Reply, Refused> {
    let slot = Arc::new(Slot::new(Request::new(call, namespace)));
    match home.submit(Completion::new(To::Reply(slot.clone()))) {
        Ok(()) => Ok(Reply::new(slot, home.clone())),
        Err(refusal) => {
            drop(slot);
            Err(refused(refusal))
        }
    }
}

pub(crate) fn spawn(home: &HostedLoop, namespace: u64, call: Call) -> Result<(), Refused> {
    let request = Arc::new(Request::new(call, namespace));
    home.submit(Completion::new(To::Nobody(request))).map_err(refused)
}

pub(crate) fn stream(home: &Arc<HostedLoop>, namespace: u64, call: Call, credit: usize) -> Result<Stream, Refused> {
    let shared = Arc::new(StreamState::new(Request::new(call, namespace), credit));
    match home.submit(Completion::new(To::Stream(shared.clone()))) {
        Ok(()) => Ok(Stream::new(shared, home.clone())),
        Err(refusal) => {
            drop(shared);
            Err(refused(refusal))
        }
    }
}

pub(crate) fn batch(home: &Arc<HostedLoop>, namespace: u64, calls: Vec<Call>) -> Result<Batch, PartlyRefused> {
    let (shared, taken_on, rest) = home.submit_all(calls, namespace);
    let accepted = Batch::new(shared, taken_on, home.clone());
    match rest {
        None => Ok(accepted),
        Some((kind, rest)) => Err(PartlyRefused { kind, accepted, rest }),
    }
}
