//! HTTP/1.1 as bytes, without any I/O: what comes in is looked at where it lies, what goes out is appended to a buffer.
//!
//! [`Scan`] finds the end of a request's head, however it is cut; [`Head::parse`] says what is in it, or why it is refused;
//! [`Chunked`] decodes a body that comes in chunks. [`encode`] writes the heads of responses, with a [`Date`] that is made once a
//! second. [`select_ranges`], [`choose_coding`] and [`evaluate`] read what a client says about which part and form of something it
//! wants, and whether. [`responses`] is for clients: it reads one response after the other.
//!
//! Everything that two implementations could read differently is refused (RFC 9112, sections 6.3 and 11.2): a request that
//! means one thing to a proxy and another here can smuggle a second one past it.

mod chunked;
mod codings;
mod date;
pub mod encode;
mod fields;
mod framing;
mod head;
mod host;
mod options;
mod preconditions;
mod ranges;
pub mod responses;
mod scan;
mod status;
mod target;
pub(crate) mod token;

pub use chunked::{ChunkLimits, Chunked, Decoded};
pub use codings::{Coding, choose_coding};
pub use date::{DATE_LENGTH, Date};
pub use fields::{Field, Fields, Iter};
pub use framing::Framing;
pub(crate) use framing::decimal;
pub use head::{Head, Notes, Parsed, Version};
pub use preconditions::{Validators, Verdict, evaluate, range_counts};
pub use ranges::{MOST_RANGES, Selection, select_ranges};
pub use scan::{HeadLimits, Scan};
pub use status::reason_phrase;
pub use target::Form;

/// Why a message is not taken: what to answer, and what was wrong with it. The connection is closed after it, for it is not known
/// where the next message would begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{status}: {why}")]
pub struct Refusal {
    /// The status of the answer.
    pub status: u16,
    /// What was wrong, in words.
    pub why: &'static str,
}

impl Refusal {
    pub(crate) const fn new(status: u16, why: &'static str) -> Refusal {
        Refusal { status, why }
    }

    /// It is not HTTP, or could be read in more than one way.
    pub(crate) const fn bad(why: &'static str) -> Refusal {
        Refusal::new(400, why)
    }
}
