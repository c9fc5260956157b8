//! The peers' wake-ups.

use anyhow::{Context, Result};

use super::{Answers, round_trips};
use crate::harness::Readings;
use crate::wheel::breaker::{Breaker, ready};
use crate::wheel::posts::tokio_loop;

pub fn bare(pings: u64) -> Result<Readings> {
    let (breaker, answers) = (Breaker::new()?, Answers::default());
    round_trips(
        pings,
        &answers,
        || breaker.wake(),
        || {
            let mut ready = ready();
            loop {
                breaker.sleep(&mut ready)?;
                if answers.give() == pings {
                    return Ok(());
                }
            }
        },
    )
}

pub fn tokio(pings: u64) -> Result<Readings> {
    let (runtime, answers) = (tokio_loop()?, Answers::default());
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel::<()>();
    round_trips(
        pings,
        &answers,
        || assert!(sender.send(()).is_ok(), "the loop has gone"),
        || {
            runtime.block_on(async {
                loop {
                    receiver.recv().await.context("all senders have gone")?;
                    if answers.give() == pings {
                        return Ok(());
                    }
                }
            })
        },
    )
}
