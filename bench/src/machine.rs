//! The machine: which core runs what, and the description that is stored with the numbers.

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Where a thread of a benchmark runs. The same for every contender; on a machine with one core, anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The first core: for the loop.
    Loop,
    /// The second core: for the one thread that talks to the loop.
    Partner,
    /// Every core but the loop's: for several threads that talk to it.
    Others,
    /// Every core: the system decides.
    Anywhere,
}

/// Pins the calling thread.
pub fn pin(place: Place) -> Result<()> {
    let cores = cores();
    if cores.len() < 2 {
        return Ok(());
    }
    let chosen = match place {
        Place::Loop => &cores[..1],
        Place::Partner => &cores[1..2],
        Place::Others => &cores[1..],
        Place::Anywhere => cores,
    };
    let mut set = CpuSet::new();
    chosen.iter().for_each(|&core| set.set(core));
    sched_setaffinity(None, &set).with_context(|| format!("pin a thread to {chosen:?}"))
}

/// The cores that this process may use. Read once, before the first thread is pinned, because pinning changes the result.
fn cores() -> &'static [usize] {
    static CORES: OnceLock<Vec<usize>> = OnceLock::new();
    CORES.get_or_init(|| {
        let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect()
    })
}

/// Description of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    pub cores: usize,
    pub cpu: String,
    pub kernel: String,
}

impl Machine {
    pub fn this() -> Self {
        let described = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name = rustix::system::uname();
        Self {
            cores: cores().len(),
            cpu: cpu_model(&described).unwrap_or("unknown").to_owned(),
            kernel: format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
        }
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// Returns the commit that is checked out at `root`, with `-dirty` if the sources differ from it; `None` outside a repository.
pub fn commit(root: &Path) -> Option<String> {
    // Reading must not take the index lock: a commit may be in progress.
    let git = || {
        let mut git = Command::new("git");
        git.arg("--no-optional-locks").arg("-C").arg(root);
        git
    };
    let parsed = git().args(["rev-parse", "--verify", "--quiet", "HEAD"]).output().ok()?;
    let hash = String::from_utf8(parsed.stdout).ok()?.trim().to_owned();
    if !parsed.status.success() || hash.is_empty() {
        return None;
    }
    // Results written by an earlier run do not change what is measured.
    let clean = git().args(["diff", "--quiet", "HEAD", "--", ".", ":!bench/results"]).status().ok()?.success();
    Some(if clean { hash } else { format!("{hash}-dirty") })
}

/// Returns the version of `package` that this binary was built with.
pub fn version(package: &str) -> String {
    locked_version(include_str!("../Cargo.lock"), package).unwrap_or("unknown").to_owned()
}

/// Returns the version of everything that comes with the compiler.
pub fn std_version() -> String {
    env!("RUSTC_VERSION").to_owned()
}

fn locked_version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    // Versions of a package are in ascending order; older ones are dependencies of others.
    let lines: Vec<&str> = lock.lines().collect();
    let last = lines.windows(2).rfind(|pair| pair[0] == name)?[1];
    last.strip_prefix("version = \"")?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_lock_file() {
        let package = |name, version| format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n\n");
        let lock = package("tokio-util", "0.7.1") + &package("tokio", "0.9.0") + &package("tokio", "1.2.3");
        let lock = lock.as_str();
        assert_eq!(locked_version(lock, "tokio"), Some("1.2.3"));
        assert_eq!(locked_version(lock, "tokio-util"), Some("0.7.1"));
        assert_eq!(locked_version(lock, "mio"), None);
        assert_ne!(version("tokio"), "unknown");
    }

    #[test]
    fn the_cpu_model_is_that_of_the_first_core() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: Fast 9000\n"), Some("Fast 9000"));
        assert_eq!(cpu_model("Hardware: none"), None);
    }
}
