//! Posting through pelton's handle.

use anyhow::{Context, Result};
use pelton::Reactor;

use super::{Posting, Tally};
use crate::harness::Readings;

pub fn handle(load: Posting) -> Result<Readings> {
    let mut reactor = Reactor::new().context("make a reactor")?;
    let handle = reactor.handle();
    load.race(
        |thread, number| {
            let posted = handle.post(move |reactor| reactor.state::<Tally>().add(thread, number));
            assert!(posted.is_ok(), "the loop has gone");
        },
        || {
            reactor.run_until(|reactor| reactor.state::<Tally>().count == load.total())?;
            Ok(*reactor.state::<Tally>())
        },
    )
}
