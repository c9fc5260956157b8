//! Faults that no caller can be told of: to the program's log, or else to standard error.
//!
//! A library that only logs is silent in a program that sets up no log. So a fault goes to `tracing` if the program has a
//! subscriber, and to standard error if it has none: there once per kind and place, so that a fault that comes with every
//! request does not drown the rest.

use std::collections::HashSet;
use std::fmt;
use std::io::Write;
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

/// So many kinds and places are told apart. A program has a few; the bound is for one that makes up kinds.
const MOST_REMEMBERED: usize = 1024;

/// Kinds and places that standard error has been told of.
static TOLD: Mutex<Option<HashSet<(&'static str, &'static Location<'static>)>>> = Mutex::new(None);

/// Reports a fault of this kind, which was caused by what was asked for at `place`.
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
    // A program without standard error has nowhere to be told.
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

/// [`report`] with the place of the caller, for faults that nothing in the program has asked for.
#[track_caller]
pub fn report_here(kind: &'static str, fault: &dyn fmt::Display) {
    report(kind, Location::caller(), fault);
}
