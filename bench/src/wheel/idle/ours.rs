//! Turning pelton.

use std::time::Duration;

use anyhow::{Context, Result};
use pelton::Reactor;

use super::timed;
use crate::harness::Readings;

pub fn reactor(turns: u64) -> Result<Readings> {
    let mut reactor = Reactor::new().context("make a reactor")?;
    timed(turns, || {
        reactor.turn(Some(Duration::ZERO))?;
        Ok(())
    })
}
