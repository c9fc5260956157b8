//! Observability: statistics, slow callbacks, and faults that no caller can receive.

pub(crate) mod fault;
pub(crate) mod stats;
pub(crate) mod watchdog;
