//! Why bytes of a server are not a reply.

/// Why bytes are not a reply. The connection cannot be used after it, because the start of the next reply is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A reply begins with a byte that is not the mark of a type.
    #[error("a reply begins with byte {0:#04x}, which marks no type")]
    UnknownType(u8),
    /// A line does not end with `\r\n`, or has one of these bytes inside.
    #[error("a line of a reply is not ended properly")]
    BadLine,
    /// A number, length or Boolean is malformed.
    #[error("{0} is malformed")]
    Malformed(&'static str),
    /// A type of the protocol that no server uses: strings and aggregates whose length is not known at their start.
    #[error("a reply of unknown length, which is not supported")]
    Streamed,
    /// A message that nobody asked for is inside a reply.
    #[error("a pushed message inside a reply")]
    NestedPush,
    /// A line is longer than the [limit](super::Limits::line).
    #[error("a line of more than {0} bytes")]
    LongLine(usize),
    /// A reply is larger than the [limit](super::Limits::bytes).
    #[error("a reply of more than {0} bytes")]
    TooLarge(usize),
    /// A reply has more elements than the [limit](super::Limits::elements).
    #[error("a reply of more than {0} elements")]
    TooManyElements(usize),
    /// A reply is nested deeper than the [limit](super::Limits::depth).
    #[error("a reply that is nested more than {0} levels deep")]
    TooDeep(usize),
    /// A reply arrived that no command waits for.
    #[error("a reply that no command waits for")]
    Unasked,
    /// A published message, or the confirmation of a subscription, is malformed.
    #[error("a published message that is malformed")]
    BadMessage,
    /// The server did not answer the greeting as the protocol demands.
    #[error("a greeting that is not one")]
    BadGreeting,
}
