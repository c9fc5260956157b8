//! Connections whose other side misbehaves, vanishes or resets, and handlers that do harm, on every engine.
//!
//! Whatever happens, `closed` comes exactly once and last, the connection is not counted any more, and its descriptor is
//! closed. Every test is a [`Scene`](scene::Scene), which checks this at its end.

mod accepting;
mod half_open;
mod handlers;
mod paused;
mod regressions;
mod resets;
mod scene;
mod slow;
