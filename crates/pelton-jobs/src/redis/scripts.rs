//! The scripts that run on the server. Each request is one script, so it happens as a whole or not at all.

use crate::store::Request;

/// A script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Script {
    pub(super) index: usize,
    pub(super) source: &'static str,
}

macro_rules! scripts {
    ($($constant:ident = $file:literal),* $(,)?) => {
        scripts!(@number 0usize; $($constant = $file,)*);

        pub(super) const ALL: &[Script] = &[$($constant),*];
    };
    (@number $index:expr; $constant:ident = $file:literal, $($rest:tt)*) => {
        const $constant: Script = Script {
            index: $index,
            source: concat!(include_str!("scripts/common.lua"), include_str!(concat!("scripts/", $file, ".lua"))),
        };
        scripts!(@number $index + 1; $($rest)*);
    };
    (@number $index:expr;) => {};
}

scripts![
    ENQUEUE = "enqueue",
    TAKE = "take",
    FINISH = "finish",
    RENEW = "renew",
    PROGRESS = "progress",
    CANCEL = "cancel",
    REQUEUE = "requeue",
    PURGE = "purge",
    REPEAT = "repeat",
    CONFIGURE = "configure",
    LEAVE = "leave",
    INSPECT = "inspect",
    LIST = "list",
    STATS = "stats",
    QUEUES = "queues",
];

impl Script {
    pub(super) fn of(request: &Request) -> Script {
        match request {
            Request::Enqueue { .. } => ENQUEUE,
            Request::Take(_) => TAKE,
            Request::Finish { .. } => FINISH,
            Request::Renew { .. } => RENEW,
            Request::Progress { .. } => PROGRESS,
            Request::Cancel { .. } => CANCEL,
            Request::Requeue { .. } => REQUEUE,
            Request::Purge { .. } => PURGE,
            Request::Repeat { .. } => REPEAT,
            Request::Configure { .. } => CONFIGURE,
            Request::Leave { .. } => LEAVE,
            Request::Inspect { .. } => INSPECT,
            Request::List { .. } => LIST,
            Request::Stats { .. } => STATS,
            // Files recover leases; on a server, they end by themselves.
            Request::Queues | Request::Recover => QUEUES,
        }
    }
}
