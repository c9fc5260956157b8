//! Pelton as the reactor behind EventMachine's API: the library that the gem `pelton-eventmachine` loads.
//!
//! Without the feature `extension` the crate is empty, so that the workspace builds without Ruby.
//!
//! EventMachine is a module of functions on integer signatures, with classes written in Ruby on top. So is this: `ruby/lib` has
//! the classes, and this crate the functions. Ruby is a guest of the reactor. Connections, servers, datagram sockets, timers
//! and watches are the reactor's; their handlers call Ruby directly, in dispatch, and the ticks run in the guest's batch after
//! it, which is EventMachine's order.
//!
//! | file | contents |
//! |---|---|
//! | `machine` | the one running machine: its reactor, the table of signatures, lending the reactor to Ruby code |
//! | `access` | how functions reach the reactor, from its own thread and from others |
//! | `guest`, `run` | the batch of ticks; sleeping without the lock of the interpreter; turning the loop |
//! | `call`, `lock`, `guard` | calling Ruby; releasing the lock; turning panics into exceptions |
//! | `streams`, `servers`, `clients`, `descriptors`, `datagrams`, `timers`, `processes`, `files`, `proxies` | one file for each kind of source |
//! | `tls` | `start_tls`, as a layer of a connection |
//! | `properties`, `socket_options`, `addresses` | what a program can ask and set |
//! | `extras` | what EventMachine does not have |
//! | `release` | the end of a machine |
//! | `tuning`, `errors`, `module` | settings; exceptions; the table of functions |
//!
//! Rust holds no Ruby object: handlers hold integers, and find the object in the hashes of the module, which the garbage
//! collector knows.

#![cfg_attr(not(feature = "extension"), forbid(unsafe_code))]

#[cfg(feature = "extension")]
mod access;
#[cfg(feature = "extension")]
mod addresses;
#[cfg(feature = "extension")]
mod call;
#[cfg(feature = "extension")]
mod clients;
#[cfg(feature = "extension")]
mod datagrams;
#[cfg(feature = "extension")]
mod descriptors;
#[cfg(feature = "extension")]
mod errors;
#[cfg(feature = "extension")]
mod extras;
#[cfg(feature = "extension")]
mod files;
#[cfg(feature = "extension")]
mod guard;
#[cfg(feature = "extension")]
mod guest;
#[cfg(feature = "extension")]
mod lock;
#[cfg(feature = "extension")]
mod machine;
#[cfg(feature = "extension")]
mod module;
#[cfg(feature = "extension")]
mod processes;
#[cfg(feature = "extension")]
mod properties;
#[cfg(feature = "extension")]
mod proxies;
#[cfg(feature = "extension")]
mod release;
#[cfg(feature = "extension")]
mod run;
#[cfg(feature = "extension")]
mod servers;
#[cfg(feature = "extension")]
mod socket_options;
#[cfg(feature = "extension")]
mod streams;
#[cfg(feature = "extension")]
mod timers;
#[cfg(feature = "extension")]
mod tls;
#[cfg(feature = "extension")]
mod tuning;
