//! Hosting Python: runs the tests and examples of programs that host a given Python.

use std::time::{SystemTime, UNIX_EPOCH};

use super::interpreters::Python;
use super::{CRATES, environment};
use crate::shell::{Failure, Shell, Task};

/// Prints where Python has its library, and whether a program can be linked with it.
const LIBRARY: &str =
    "import sysconfig; print(sysconfig.get_config_var('Py_ENABLE_SHARED'), sysconfig.get_config_var('LIBDIR'))";

/// The environment variable with additional library directories.
const LIBRARY_PATH: &str = if cfg!(target_vendor = "apple") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

/// Runs tests and examples. Debug builds check the order of locks.
pub fn step(shell: &Shell, python: &Python) -> Result<(), Failure> {
    let features = "--features pelton-python/embed";
    linked(shell, python, &format!("clippy {CRATES} {features} --all-targets -- -D warnings"))?.run()?;
    linked(shell, python, &format!("test {CRATES} {features}"))?.run()?;
    // Programs find the library by themselves: their build scripts pass its path to the linker.
    let alone = |words: &str| environment::cargo(shell, python, words).env(LIBRARY_PATH, "").run();
    for example in ["namespaces", "publish", "rust-functions", "numpy", "http -- --demo", "same-thread -- --demo"] {
        alone(&format!("run -p pelton-python --features embed --example {example}"))?;
    }
    alone("run --manifest-path examples/python-host/Cargo.toml")
}

/// Runs the stress tests in release mode with ten times as many tasks. Hostile functions are called for this many seconds, with
/// a new seed each time.
pub fn soak(shell: &Shell, python: &Python, seconds: u64) -> Result<(), Failure> {
    linked(shell, python, "test --release -p pelton-python --features embed --test host_stress -- --nocapture")?
        .run()?;
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() * 1000);
    linked(shell, python, "test --release -p pelton-python --features embed --test host_torture -- --nocapture")?
        .env("PELTON_TORTURE_SECONDS", seconds.to_string())
        .env("PELTON_TORTURE_SEED", seed.to_string())
        .run()
}

/// Cargo, linking with this Python.
fn linked<'a>(shell: &'a Shell, python: &'a Python, words: &str) -> Result<Task<'a>, Failure> {
    let (fine, said) = shell.program(&python.program, "-c").args([LIBRARY.into()]).output()?;
    let (shared, directory) = said.trim().split_once(' ').unwrap_or_default();
    if !fine || shared != "1" {
        return Err(Failure::new(format!(
            "{} has no shared library to link with, which a program that hosts Python needs; one that was configured with \
             --enable-shared has",
            python.program.display()
        )));
    }
    // Documentation tests ignore link arguments of build scripts, so they need the path of the library.
    Ok(environment::cargo(shell, python, words).env(LIBRARY_PATH, directory))
}

#[cfg(test)]
mod tests {
    /// Checks that the documented lines are those of the example, which is run.
    #[test]
    fn documentation_matches_the_example() {
        let page = include_str!("../../../docs/pyhost.md");
        let script = include_str!("../../../examples/python-host/build.rs");
        assert!(page.contains(script));
        let line = script.lines().nth(1).map(str::trim);
        assert!(line.is_some_and(|line| include_str!("../../../crates/pelton-pyhost/src/host/mod.rs").contains(line)));
        assert!(page.contains("cannot open shared object file"));
    }
}
