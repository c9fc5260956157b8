//! Connections whose other side misbehaves, vanishes or resets, and handlers that do harm, on every engine.
//!
//! In every case, `closed` is called exactly once and last, the connection is no longer counted, and its descriptor is closed.
//! Every test uses a [`Scene`](scene::Scene), which checks this at its end.

mod accepting;
mod half_open;
mod handlers;
mod paused;
mod regressions;
mod resets;
mod scene;
mod slow;
