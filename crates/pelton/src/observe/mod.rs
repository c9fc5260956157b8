//! Seeing inside: statistics, slow callbacks, and faults that no caller could be told about.

pub(crate) mod fault;
pub(crate) mod stats;
pub(crate) mod watchdog;
