//! Interest in descriptors and their readiness.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// What to report about a descriptor.
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
    /// Nothing. Not even a hang-up is reported.
    pub const NONE: Interest = Interest(0);
    /// Data to read, or its end.
    pub const READABLE: Interest = Interest(1);
    /// Room to write.
    pub const WRITABLE: Interest = Interest(2);

    /// Returns whether readability is included.
    pub const fn readable(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns whether writability is included.
    pub const fn writable(self) -> bool {
        self.0 & 2 != 0
    }

    /// Returns whether nothing is included.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns this interest without `other`.
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

/// How often to report readiness.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Mode {
    /// Each turn while the descriptor is ready.
    #[default]
    Level,
    /// Once, until interest is set again.
    OneShot,
}

/// What a descriptor is ready for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Readiness(u8);

impl Readiness {
    /// Not ready.
    pub const NONE: Readiness = Readiness(0);
    /// A read will not block: it returns data, the end, or an error.
    pub const READABLE: Readiness = Readiness(1);
    /// A write will not block: there is room, or it returns an error.
    pub const WRITABLE: Readiness = Readiness(2);
    /// The other side is gone, in both directions.
    pub const HANGUP: Readiness = Readiness(4);
    /// An error is pending.
    pub const ERROR: Readiness = Readiness(8);
    /// The descriptor was closed while it was watched.
    pub const CLOSED: Readiness = Readiness(16);
    /// The end of the stream or urgent data has arrived: a read that returns less than it could need not be the last. Pollers
    /// tell this to the engine, which keeps it to itself.
    pub const MARKED: Readiness = Readiness(32);

    /// Returns this readiness without `other`.
    #[must_use]
    pub const fn without(self, other: Readiness) -> Readiness {
        Readiness(self.0 & !other.0)
    }

    pub(crate) const fn union(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }

    /// Returns whether any of `other` is included.
    pub(crate) const fn intersects(self, other: Readiness) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether all of `other` is included.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether nothing is included.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns the readiness to report to code with this interest. A hang-up or an error counts as readable and writable, as
    /// far as these are of interest, because only the following read or write can tell what happened.
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
            (Readiness::MARKED, "marked"),
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
