//! The limit on the number of open descriptors.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit to try where the hard limit itself is refused: macOS reports an unlimited one.
const USUAL: u64 = 10_240;

/// The soft limit on descriptors, [raised](DescriptorLimit::raise) for this process only.
///
/// The default soft limit is low, often 1,024, to protect programs that use `select`. Other programs should raise it to the
/// hard limit, and restore the old one in the programs that they start.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorLimit {
    before: Rlimit,
    now: Rlimit,
}

impl DescriptorLimit {
    /// Raises the soft limit to the hard limit, or as far as the system allows. Leaves it unchanged if the system refuses.
    ///
    /// ```
    /// let limit = pelton_os::DescriptorLimit::raise();
    /// println!("up to {} descriptors", limit.now());
    /// assert!(limit.now() >= limit.before());
    /// ```
    pub fn raise() -> DescriptorLimit {
        let before = getrlimit(Resource::Nofile);
        let hard = before.maximum;
        let usual = hard.map_or(USUAL, |hard| hard.min(USUAL));
        for wanted in [hard, Some(usual)] {
            let now = Rlimit { current: wanted, maximum: hard };
            if amount(wanted) > amount(before.current) && setrlimit(Resource::Nofile, now).is_ok() {
                return DescriptorLimit { before, now };
            }
        }
        DescriptorLimit { before, now: before }
    }

    /// Returns the soft limit before it was raised.
    pub fn before(&self) -> u64 {
        amount(self.before.current)
    }

    /// Returns the current soft limit.
    pub fn now(&self) -> u64 {
        amount(self.now.current)
    }

    /// Restores the old limit in the process that `command` starts.
    pub fn restore_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || setrlimit(Resource::Nofile, before).map_err(io::Error::from);
        // SAFETY: the closure runs in the forked child, where only async-signal-safe operations are allowed. It makes one
        // system call with a value that it owns. It takes no lock and does not allocate, not even on error.
        unsafe { command.pre_exec(restore) };
    }
}

/// Treats "unlimited" as the highest number.
fn amount(limit: Option<u64>) -> u64 {
    limit.unwrap_or(u64::MAX)
}
