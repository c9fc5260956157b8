//! Pelton: one native reactor, several front ends.
//!
//! A [`Reactor`] is one thread that runs a loop. Events drive it (a timer is due, a descriptor is ready, another thread
//! posts a call), and it passes each event to the code that asked for it:
//!
//! ```
//! use pelton::Reactor;
//! use std::time::Duration;
//!
//! let mut reactor = Reactor::new()?;
//! reactor.after(Duration::from_millis(10), |reactor| {
//!     println!("ten milliseconds later");
//!     reactor.stop();
//! });
//! reactor.run()?;
//! # Ok::<(), pelton::Error>(())
//! ```
//!
//! - Timers: [`after`](Reactor::after), [`every`](Reactor::every), on a [`Wheel`] that also works alone.
//! - Ticks: [`next_tick`](Reactor::next_tick), and from other threads [`Handle::post`].
//! - Idle work: [`when_idle`](Reactor::when_idle).
//! - Readiness of descriptors that you own: [`watch`](Reactor::watch).
//! - Changes of files and directories: [`watch_path`](Reactor::watch_path).
//! - Child processes: [`process::Command`]. The exit of other processes: [`watch_process`](Reactor::watch_process).
//! - Signals: [`on_signal`](Reactor::on_signal).
//! - Connections: [`listen`](Reactor::listen), [`connect`](Reactor::connect), by name
//!   [`connect_to`](Reactor::connect_to), handled by a [`Connection`]; [`Reconnect`] keeps one open. Pipes, terminals
//!   and other descriptors are connections too: [`adopt`](Reactor::adopt), [`open_stdin`](Reactor::open_stdin).
//! - Several servers for the same work, balanced and checked: [`Targets`].
//! - Messages instead of bytes: a [`Protocol`] and one of the [codecs](codec), combined by [`serve`] or [`Framed`].
//!   They run on the loop or, with [`Service::on`], on a pool.
//! - Datagrams: [`bind_datagrams`](Reactor::bind_datagrams), [`connect_datagrams`](Reactor::connect_datagrams), handled
//!   by [`Datagrams`].
//! - Results that arrive later, in chains: [`promise`](Reactor::promise), settled by a [`Deferred`].
//! - Communication between loops and threads: [`Channel`], [`Queue`]. Scheduling on one loop: [`Each`],
//!   [`ResourcePool`], [`tick_loop`](Reactor::tick_loop).
//! - Blocking work: [`defer`](Reactor::defer), on [lanes](Lane) of threads.
//! - Files: [`fs`], the operations of [`std::fs`] without blocking the loop.
//! - Futures: [`spawn`](Reactor::spawn), [`block_on`](EventLoop::block_on), the module [`task`]; streams for them in
//!   [`net`].
//! - A loop on its own thread: [`start_thread`](Reactor::start_thread); many loops, one per thread: [`Reactors`].
//! - Ordered work on other threads: [`Pool`], with its [actors](Actor) and tasks [by key](Keyed).
//! - Other runtimes on the same thread: a [`Guest`].
//! - Observability: [`stats`](Reactor::stats), [`on_slow_callback`](Reactor::on_slow_callback).
//!
//! The phases of a turn and their order are a contract, which [`EventLoop::turn`] states.

#![forbid(unsafe_code)]

mod actors;
mod composers;
mod error;
pub mod fs;
mod guests;
mod messages;
mod names;
mod observe;
mod promises;
mod reactor;
mod sources;
mod targets;
mod tasks;
mod threads;
mod ticks;
mod timers;

pub use actors::{
    Actor, ActorFault, ActorRef, Context, Keyed, MAILBOX_BOUND, MESSAGES_PER_TURN, MailError, Pool, PoolBuilder,
    PoolStats, ShutdownError, Spawn, SubmitError,
};
pub use bytes::Bytes;
pub use composers::channel::{
    Broker, Channel, ChannelStats, Delivery, Inlet, Missed, Overflow, PublishError, SubscribeOptions, Subscription,
    SubscriptionEnd,
};
pub use composers::each::Each;
pub use composers::queue::{PopId, Queue, QueueClosed, QueueRefusal, QueueStats};
pub use composers::resource_pool::{AcquireError, Lent, ResourcePool, ResourcePoolStats};
pub use error::Error;
pub use guests::{Batch, Guest};
pub use messages::codec::{self, Codec, FrameError};
pub use messages::protocol::{
    ForPool, Framed, PENDING_LIMIT, Peer, Pooled, Protocol, PushError, Replies, ReplySlot, Service, serve,
};
pub use messages::proxy_protocol;
pub use names::endpoint::{BadEndpoint, Endpoint};
pub use names::reconnect::{Backoff, Outage, Reconnect, ReconnectId};
pub use names::resolver::{LookupError, LookupFailure, LookupId, Resolver, SystemResolver};
pub use observe::fault::{Fault, FaultKind};
pub use observe::stats::{Counts, Histogram, Stats};
pub use observe::watchdog::SlowCallback;
pub use pelton_os::activation::{Inherited, PassedOn, inherited_listeners, pass_on};
pub use pelton_os::engine::{Engine, EngineKind, UnknownEngine};
pub use pelton_os::{
    Accepted, Address, BadAddress, Chunk, ConnectOptions, Datagram, DatagramOptions, DescriptorLimit, DescriptorOwner,
    ENGINE_VARIABLE, Interest, ListenOptions, Mode, MulticastInterface, Park, Sending, Socket, SocketFile,
    SocketOptions, Space, StreamKind, Time,
};
pub use promises::{AlreadySettled, Deferred, Next, Promise, Recovery, Rejected, SharedPromise, Unhandled};
pub use reactor::builder::Builder;
pub use reactor::callback::{CallbackKind, PanicPolicy, SourceId};
pub use reactor::lifecycle::{Exit, Hold};
pub use reactor::sleep::Sleep;
pub use reactor::{EventLoop, Reactor};
pub use sources::connection::{
    Connection, ConnectionId, DetachError, Detached, FailedAttempt, Io, Layer, LayerIo, Layered, Limit, Lingering,
    MoveError, PassOn, Proxied, Proxy, ProxyEnd, ProxyError, Reason, SendError, Throttle, WaterMarks,
};
pub use sources::datagram::{DatagramIo, Datagrams, DatagramsId};
pub use sources::listener::ListenerId;
pub use sources::path_watch::{Change, Changes, PathChanges, PathWatchId, PathWatchOptions};
pub use sources::process;
pub use sources::process::{Exited, ProcessWatchId};
pub use sources::signals::SignalId;
pub use sources::watch::{Ready, WatchId};
pub use targets::{Balance, Group, Target, Targets};
pub use tasks::{net, task};
pub use threads::defer::{DeferError, DeferFailure, DeferId};
pub use threads::handle::{Handle, PostError};
pub use threads::lane::{Lane, LaneSettings, LaneStats, Refusal};
pub use threads::reactors::{Reactors, Sharing};
pub use threads::reply::{Lost, Replier, Reply};
pub use threads::thread::ReactorThread;
pub use ticks::idle::IdleId;
pub use ticks::tick_loop::TickLoop;
pub use timers::lazy::LazyTimer;
pub use timers::wheel::{Due, TimerKey, Wheel};
pub use timers::{Beat, TimerId};
