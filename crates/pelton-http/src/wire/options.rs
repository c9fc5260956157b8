//! Connection options: persistence, upgrades and expectations.

use super::Refusal;
use super::head::Version;
use super::token::list;

/// The options seen so far.
#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    upgrade_to: bool,
    expects_continue: bool,
}

impl Options {
    /// Adds a `Connection` field.
    pub(super) fn connection(&mut self, value: &[u8]) {
        for option in list(value) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            self.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
        }
    }

    /// Adds an `Upgrade` field.
    pub(super) fn upgrade_to(&mut self) {
        self.upgrade_to = true;
    }

    /// Adds an `Expect` field. The only expectation is `100-continue`.
    pub(super) fn expect(&mut self, value: &[u8], version: Version) -> Result<(), Refusal> {
        if !value.eq_ignore_ascii_case(b"100-continue") {
            return Err(Refusal::new(417, "unsupported expectation"));
        }
        // HTTP/1.0 has no interim responses (RFC 9110, section 10.1.1).
        self.expects_continue = version == Version::Http11;
        Ok(())
    }

    /// Whether the connection stays open after the response.
    #[inline]
    pub(super) fn stays_open(self, version: Version) -> bool {
        match version {
            Version::Http11 => !self.close,
            Version::Http10 => self.keep_alive && !self.close,
        }
    }

    #[inline]
    pub(super) fn wants_upgrade(self, version: Version) -> bool {
        self.upgrade && self.upgrade_to && version == Version::Http11
    }

    /// Whether both fields of a switch to another protocol are present.
    pub(super) fn names_upgrade(self) -> bool {
        self.upgrade && self.upgrade_to
    }

    #[inline]
    pub(super) fn expects_continue(self) -> bool {
        self.expects_continue
    }
}
