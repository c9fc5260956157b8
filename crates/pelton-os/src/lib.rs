//! The operating system, as Pelton sees it.
//!
//! Everything that differs between systems, and every unsafe call to them, is in this crate: the [engines](engine) that a
//! reactor runs on, the [pollers](poller) below them, the [loopbreaker](Loopbreaker) that wakes it from other threads, its
//! clock, and the detection of forks. The crates above contain only safe, portable code.

#[cfg(windows)]
compile_error!(
    "Pelton runs on Linux, macOS and the BSDs. Windows has no readiness interface like theirs and is not supported."
);

#[cfg(unix)]
mod address;
#[cfg(unix)]
mod chunk;
#[cfg(unix)]
mod datagram;
#[cfg(unix)]
mod descriptor;
#[cfg(unix)]
mod descriptor_limit;
#[cfg(unix)]
mod endpoint;
#[cfg(unix)]
mod interest;
mod loopbreaker;
#[cfg(unix)]
mod options;
#[cfg(unix)]
mod outbox;
#[cfg(unix)]
mod send_queue;
#[cfg(unix)]
mod socket;
#[cfg(unix)]
mod socket_file;
mod space;
mod splice;
#[cfg(unix)]
mod stream;
mod time;
mod token;

#[cfg(unix)]
pub mod activation;
#[cfg(unix)]
pub mod clock;
#[cfg(unix)]
pub mod engine;
#[cfg(unix)]
pub mod fault;
#[cfg(unix)]
pub mod fork;
#[cfg(unix)]
pub mod notify;
#[cfg(unix)]
pub mod poller;
#[cfg(unix)]
pub mod process;
#[cfg(unix)]
pub mod signal;

#[cfg(unix)]
pub use address::{Address, BadAddress};
#[cfg(unix)]
pub use chunk::{Buffers, Chunk, Lender};
#[cfg(unix)]
pub use datagram::{Datagram, DatagramOptions, DatagramOutbox, DatagramSetting, MulticastInterface};
#[cfg(unix)]
pub use descriptor_limit::DescriptorLimit;
#[cfg(unix)]
pub use engine::{ENGINE_VARIABLE, Engine, EngineKind, Event, Forgotten, Intake, Park, Sending};
pub use interest::{Interest, Mode, Readiness};
#[cfg(unix)]
pub use loopbreaker::Loopbreaker;
#[cfg(unix)]
pub use options::{ConnectOptions, ListenOptions, SocketOptions};
#[cfg(unix)]
pub use outbox::{FilePart, Outbox};
#[cfg(unix)]
pub use socket::{Accepted, Socket};
#[cfg(unix)]
pub use socket_file::SocketFile;
pub use space::Space;
pub use splice::Splice;
#[cfg(unix)]
pub use stream::{DescriptorOwner, StreamKind};
pub use time::Time;
pub use token::Token;
