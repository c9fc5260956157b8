//! What one may ask about a descriptor, and what one is told.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// What to be told about a descriptor.
///
/// ```
/// use pelton_os::Interest;
///
/// let both = Interest::READABLE | Interest::WRITABLE;
/// assert!(both.readable() && both.writable());
/// assert!(Interest::NONE.is_none());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Interest(u8);

impl Interest {
    /// Nothing for now: not even a hang-up is reported.
    pub const NONE: Interest = Interest(0);
    /// There is something to read, or the end of it.
    pub const READABLE: Interest = Interest(1);
    /// There is room to write.
    pub const WRITABLE: Interest = Interest(2);

    /// Whether readability is of interest.
    pub const fn readable(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether writability is of interest.
    pub const fn writable(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether nothing is of interest.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// This, less `other`.
    #[must_use]
    pub const fn without(self, other: Interest) -> Interest {
        Interest(self.0 & !other.0)
    }
}

impl BitOr for Interest {
    type Output = Interest;
    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["none", "readable", "writable", "readable|writable"][usize::from(self.0 & 3)])
    }
}

/// How often to be told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Each turn for as long as the descriptor is ready.
    #[default]
    Level,
    /// Once, then not again until interest is set anew.
    OneShot,
}

/// What a descriptor is ready for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Readiness(u8);

impl Readiness {
    /// Nothing.
    pub const NONE: Readiness = Readiness(0);
    /// A read will not block: there is data, an end or an error to be had.
    pub const READABLE: Readiness = Readiness(1);
    /// A write will not block: there is room, or an error to be had.
    pub const WRITABLE: Readiness = Readiness(2);
    /// The other side is gone for good, in both directions.
    pub const HANGUP: Readiness = Readiness(4);
    /// The descriptor has an error pending.
    pub const ERROR: Readiness = Readiness(8);
    /// The descriptor was closed while it was being watched.
    pub const CLOSED: Readiness = Readiness(16);

    /// Whether every part of `other` is in this one.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether there is nothing in it.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// What code that asked for `interest` must hear of this: a hang-up or an error counts as whatever was asked for,
    /// since the read or write that follows is what tells them apart.
    #[must_use]
    pub fn seen_with(self, interest: Interest) -> Readiness {
        let mut seen = self;
        if self.0 & (Readiness::HANGUP.0 | Readiness::ERROR.0) != 0 {
            if interest.readable() {
                seen |= Readiness::READABLE;
            }
            if interest.writable() {
                seen |= Readiness::WRITABLE;
            }
        }
        seen
    }
}

impl BitOr for Readiness {
    type Output = Readiness;
    fn bitor(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }
}

impl BitOrAssign for Readiness {
    fn bitor_assign(&mut self, other: Readiness) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Readiness::READABLE, "readable"),
            (Readiness::WRITABLE, "writable"),
            (Readiness::HANGUP, "hangup"),
            (Readiness::ERROR, "error"),
            (Readiness::CLOSED, "closed"),
        ];
        let mut first = true;
        for (_, name) in names.iter().filter(|(part, _)| self.contains(*part)) {
            if !std::mem::take(&mut first) {
                f.write_str("|")?;
            }
            f.write_str(name)?;
        }
        if first { f.write_str("none") } else { Ok(()) }
    }
}
