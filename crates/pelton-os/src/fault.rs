//! Reports faults that cannot be returned to a caller.
//!
//! A library that only logs is silent in a program without a log. So a fault goes to `tracing` if the program has a subscriber,
//! and otherwise to standard error: once per kind and place, so that a fault in every request does not flood the output.

use std::collections::HashSet;
use std::fmt;
use std::io::Write;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

/// How many pairs of kind and place are remembered. A program has a few; the bound protects against one that invents kinds.
const MOST_REMEMBERED: usize = 1024;

/// Kinds and places that were already printed to standard error.
static TOLD: Mutex<Option<HashSet<(&'static str, &'static Location<'static>)>>> = Mutex::new(None);

/// Reports a fault of this kind. `place` is where the operation that caused it was requested.
pub fn report(kind: &'static str, place: &'static Location<'static>, fault: &dyn fmt::Display) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!(kind, "{fault}");
        return;
    }
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let told = told.get_or_insert_default();
    let first = told.is_empty();
    if told.len() >= MOST_REMEMBERED || !told.insert((kind, place)) {
        return;
    }
    // Without standard error there is nowhere to report to.
    let mut output = std::io::stderr().lock();
    let _ = writeln!(output, "pelton: {fault}");
    if first {
        let _ = writeln!(
            output,
            "pelton: faults are printed once per kind and place. To see all of them, set a tracing subscriber; to handle \
             them, use Builder::on_fault."
        );
    }
}

/// Calls [`report`] with the caller's location, for faults that no operation of the program has caused.
#[track_caller]
pub fn report_here(kind: &'static str, fault: &dyn fmt::Display) {
    report(kind, Location::caller(), fault);
}
