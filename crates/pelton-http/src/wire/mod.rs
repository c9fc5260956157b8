//! HTTP/1.1 as bytes, without I/O: input is parsed in place, and output is appended to a buffer.
//!
//! [`Scan`] finds the end of a request head, however it is split. [`Head::parse`] parses it or says why it is refused, and
//! [`Chunked`] decodes a chunked body. [`encode`] writes response heads, with a [`Date`] that is formatted once a second.
//! [`select_ranges`], [`choose_coding`] and [`evaluate`] handle range requests, content negotiation and conditional requests.
//! [`ResponseReader`] reads responses, for clients; [`responses`] counts them.
//!
//! Everything that two implementations could read differently is refused (RFC 9112, sections 6.3 and 11.2). A request that a
//! proxy reads differently can smuggle a second one past it.

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
mod response;
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
pub use response::{Malformed, Piece, ResponseHead, ResponseLimits, ResponseReader, To};
pub use scan::{HeadLimits, Scan};
pub use status::reason_phrase;
pub use target::Form;

/// Why a message is refused: the status to answer with and the reason. The connection is closed afterwards, because the start of
/// the next message is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{status}: {why}")]
pub struct Refusal {
    /// The status of the answer.
    pub status: u16,
    /// The reason, in words.
    pub why: &'static str,
}

impl Refusal {
    pub(crate) const fn new(status: u16, why: &'static str) -> Refusal {
        Refusal { status, why }
    }

    /// Creates a 400 for input that is not HTTP or is ambiguous.
    pub(crate) const fn bad(why: &'static str) -> Refusal {
        Refusal::new(400, why)
    }
}
