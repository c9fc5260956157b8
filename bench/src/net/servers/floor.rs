//! The [floor](crate::floor) that echoes.

use anyhow::Result;

use super::listener;
use crate::floor::{self, Service};

struct Echo;

impl Service for Echo {
    fn answer<'a>(&'a mut self, _: usize, input: &'a [u8]) -> Option<&'a [u8]> {
        Some(input)
    }

    fn ended(&mut self, _: usize) {}
}

pub fn serve() -> Result<()> {
    floor::serve(listener()?, Echo)
}
