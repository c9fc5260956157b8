//! `pelton.Loop`.

pub(crate) mod attributes;
pub(crate) mod batch;
pub(crate) mod class;
pub(crate) mod guest;
pub mod hosting;
pub(crate) mod intake;
pub(crate) mod reactor_errors;
pub(crate) mod run;
pub(crate) mod scheduling;
pub(crate) mod slow;
pub(crate) mod state;
pub(crate) mod stats;
