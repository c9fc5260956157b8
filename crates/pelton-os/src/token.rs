//! Tokens, which identify sources in the kernel's events.

use std::fmt;

/// Identifies one source of events. It is never valid for another source.
///
/// A token is stored in `epoll_data` (or `user_data`, or `udata`) unchanged and comes back with each event:
///
/// ```text
///  63                              35            31              0
/// ┌───────────────┬───────────────────────────────┬──────────────┐
/// │ operation : 4 │ generation : 28               │ index : 32   │
/// └───────────────┴───────────────────────────────┴──────────────┘
/// ```
///
/// The index is the source's slot. The generation tells successive sources in that slot apart, so that an event that was in
/// flight while its source was closed is recognised as stale. The operation is for engines that have several operations per
/// source in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(u64);

const GENERATION_BITS: u32 = 28;
const GENERATION_SHIFT: u32 = 32;
const OPERATION_SHIFT: u32 = GENERATION_SHIFT + GENERATION_BITS;

impl Token {
    /// The highest generation. After it they start again at 0.
    pub const MAX_GENERATION: u32 = (1 << GENERATION_BITS) - 1;

    /// Reserved for the engine's own loopbreaker. No source has this token.
    pub const LOOPBREAKER: Token = Token(u64::MAX);

    /// Returns the token of source number `generation` in slot `index`.
    pub const fn new(index: u32, generation: u32) -> Token {
        debug_assert!(generation <= Self::MAX_GENERATION);
        Token(index as u64 | ((generation & Self::MAX_GENERATION) as u64) << GENERATION_SHIFT)
    }

    /// Returns the slot of the source.
    pub const fn index(self) -> u32 {
        self.0 as u32
    }

    /// Returns which source in that slot is meant.
    pub const fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32 & Self::MAX_GENERATION
    }

    /// Returns which of the source's operations is meant: 0 unless the engine has set another.
    pub const fn operation(self) -> u8 {
        (self.0 >> OPERATION_SHIFT) as u8
    }

    /// Returns the token of the same source with another operation (0 to 15).
    pub const fn with_operation(self, operation: u8) -> Token {
        debug_assert!(operation < 16);
        Token(self.0 & ((1 << OPERATION_SHIFT) - 1) | (operation as u64) << OPERATION_SHIFT)
    }

    /// Returns the packed bits, to pass to the kernel.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Unpacks [`to_bits`](Token::to_bits).
    pub const fn from_bits(bits: u64) -> Token {
        Token(bits)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Token::LOOPBREAKER {
            return f.write_str("Token(loopbreaker)");
        }
        write!(f, "Token({}#{}", self.index(), self.generation())?;
        match self.operation() {
            0 => f.write_str(")"),
            operation => write!(f, ".{operation})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_parts_do_not_overlap() {
        let token = Token::new(u32::MAX, Token::MAX_GENERATION).with_operation(15);
        assert_eq!((token.index(), token.generation(), token.operation()), (u32::MAX, Token::MAX_GENERATION, 15));
        let token = Token::new(7, 3).with_operation(9).with_operation(2);
        assert_eq!((token.index(), token.generation(), token.operation()), (7, 3, 2));
        assert_eq!(Token::from_bits(token.to_bits()), token);
    }

    #[test]
    fn no_source_has_the_loopbreakers_token() {
        assert_ne!(Token::new(u32::MAX, Token::MAX_GENERATION), Token::LOOPBREAKER);
    }
}
