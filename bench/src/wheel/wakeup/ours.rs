//! Waking pelton.

use std::sync::Arc;

use anyhow::{Context, Result};
use pelton::Reactor;

use super::{Answers, round_trips};
use crate::harness::Readings;

pub fn handle(pings: u64) -> Result<Readings> {
    let mut reactor = Reactor::new().context("make a reactor")?;
    let (handle, answers) = (reactor.handle(), Arc::new(Answers::default()));
    let ping = || {
        let answers = answers.clone();
        let posted = handle.post(move |_| {
            answers.give();
        });
        assert!(posted.is_ok(), "the loop has gone");
    };
    round_trips(pings, &answers, ping, || Ok(reactor.run_until(|_| answers.given() == pings)?))
}
