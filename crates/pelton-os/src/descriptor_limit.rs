//! How many descriptors the process may have.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What systems allow that do not allow the hard limit they announce: macOS says that there is none.
const USUAL: u64 = 10_240;

/// The soft limit on descriptors, which was [raised](DescriptorLimit::raise) for this process alone.
///
/// The soft limit is low, often 1,024, for the sake of programs that use `select`. Others are meant to raise it to the hard limit, and to
/// give the programs that they start the old one.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorLimit {
    before: Rlimit,
    now: Rlimit,
}

impl DescriptorLimit {
    /// Raises the soft limit to the hard one, or to what the system allows. It stays as it is if the system allows nothing more.
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

    /// The soft limit as it was.
    pub fn before(&self) -> u64 {
        amount(self.before.current)
    }

    /// The soft limit as it is now.
    pub fn now(&self) -> u64 {
        amount(self.now.current)
    }

    /// Gives the process that `command` starts the old limit back.
    pub fn restore_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || setrlimit(Resource::Nofile, before).map_err(io::Error::from);
        // SAFETY: this runs in the forked child, where only what is safe in a signal handler may be done. It makes one system call
        // with a value that was copied into the closure; it takes no lock and allocates nothing, an error included.
        unsafe { command.pre_exec(restore) };
    }
}

/// No limit is more than any number.
fn amount(limit: Option<u64>) -> u64 {
    limit.unwrap_or(u64::MAX)
}
