//! Composers: small parts that connect callbacks, loops and threads.

pub(crate) mod channel;
pub(crate) mod each;
pub(crate) mod queue;
pub(crate) mod resource_pool;
pub(crate) mod waiters;
