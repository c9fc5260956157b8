//! Python from Rust: the tests and examples of a program that hosts Python, with one that is given.

use std::time::{SystemTime, UNIX_EPOCH};

use super::environment;
use super::interpreters::Python;
use crate::shell::{Failure, Shell, Task};

/// Where Python has its library, and whether it has one that a program can be linked with.
const LIBRARY: &str =
    "import sysconfig; print(sysconfig.get_config_var('Py_ENABLE_SHARED'), sysconfig.get_config_var('LIBDIR'))";

/// Where the system looks for libraries beside its own places.
const LIBRARY_PATH: &str = if cfg!(target_vendor = "apple") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

/// Tests and examples. Without optimisation, locks are checked to be taken in their order.
pub fn step(shell: &Shell, python: &Python) -> Result<(), Failure> {
    linked(shell, python, "clippy -p pelton-python --features embed --all-targets -- -D warnings")?.run()?;
    linked(shell, python, "test -p pelton-python --features embed")?.run()?;
    // Programs find the library by themselves: their build scripts have told the linker where it is.
    let alone = |words: &str| environment::cargo(shell, python, words).env(LIBRARY_PATH, "").run();
    for example in ["processes", "publish", "rust-functions", "numpy", "http -- --demo"] {
        alone(&format!("run -p pelton-python --features embed --example {example}"))?;
    }
    alone("run --manifest-path examples/python-host/Cargo.toml")
}

/// With optimisation, the tests under stress have ten times as many tasks. Hostile functions are called for so many seconds, from a seed
/// that is another each time.
pub fn soak(shell: &Shell, python: &Python, seconds: u64) -> Result<(), Failure> {
    linked(shell, python, "test --release -p pelton-python --features embed --test host_stress -- --nocapture")?
        .run()?;
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() * 1000);
    linked(shell, python, "test --release -p pelton-python --features embed --test host_torture -- --nocapture")?
        .env("PELTON_TORTURE_SECONDS", seconds.to_string())
        .env("PELTON_TORTURE_SEED", seed.to_string())
        .run()
}

/// Cargo, with what is built linked to this Python.
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
    // Examples in the documentation are linked without what build scripts say, so they are told where the library is.
    Ok(environment::cargo(shell, python, words).env(LIBRARY_PATH, directory))
}

#[cfg(test)]
mod tests {
    /// What the documentation tells to write is what the example, which is run, has.
    #[test]
    fn the_documented_lines_are_those_of_the_example() {
        let page = include_str!("../../../docs/pyhost.md");
        let script = include_str!("../../../examples/python-host/build.rs");
        assert!(page.contains(script));
        let line = script.lines().nth(1).map(str::trim);
        assert!(line.is_some_and(|line| include_str!("../../../crates/pelton-python/src/host/mod.rs").contains(line)));
        assert!(page.contains("cannot open shared object file"));
    }
}
