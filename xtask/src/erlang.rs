//! The Erlang front end: the native library and the application, built for the installed Python, and tested with Common Test.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::python;
use crate::shell::{Failure, Shell, Task};

/// Deadline for all suites: many times what they take on an idle machine.
const DEADLINE: Duration = Duration::from_secs(10 * 60);

const SUITES: &str = "seed_SUITE values_SUITE api_SUITE channel_SUITE faults_SUITE lifecycle_SUITE";

fn target(shell: &Shell) -> PathBuf {
    shell.target().join("erlang")
}

/// The application, as Erlang expects it: `ebin` and `priv`.
fn application(shell: &Shell) -> PathBuf {
    target(shell).join("lib/erlang_python")
}

/// The step of `cargo xtask test`.
pub fn step(shell: &Shell) -> Result<(), Failure> {
    cargo(shell, "clippy --release --no-deps -p pelton-erlang --features nif -- -D warnings")?.run()?;
    build(shell)?;
    suites(shell, SUITES)?.run()
}

/// Runs the tests of starting, stopping and killing for long.
pub fn soak(shell: &Shell, seconds: u64) -> Result<(), Failure> {
    build(shell)?;
    // A round takes about a second.
    let deadline = Duration::from_secs(seconds.saturating_mul(10)) + DEADLINE;
    suites(shell, "lifecycle_SUITE")?.env("PELTON_ERLANG_CHURN", seconds.to_string()).within(deadline).run()
}

/// Measures calls from Erlang. The only argument is the number of windows.
pub fn bench(shell: &Shell, words: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    build(shell)?;
    let words: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
    if words.iter().any(|word| word.parse::<u32>().is_err() || word.starts_with('0')) {
        return Err(Failure::new("bench erlang takes a number of windows, 9 by default"));
    }
    let ebin = application(shell).join("ebin");
    shell.program("erlc", "-Wall -o").args([ebin.clone().into(), "erlang/bench/py_bench.erl".into()]).run()?;
    let main = format!("py_bench:main({words:?}).");
    shell.program("erl", "-noshell -pa").args([ebin.into(), "-eval".into(), main.into()]).run()
}

fn cargo<'a>(shell: &'a Shell, words: &str) -> Result<Task<'a>, Failure> {
    let program = python::linkable(shell)?;
    Ok(shell.cargo(words).env("CARGO_TARGET_DIR", target(shell)).env("PYO3_PYTHON", program))
}

/// Builds the library in release mode, and the application.
pub fn build(shell: &Shell) -> Result<(), Failure> {
    cargo(shell, "build --release -p pelton-erlang --features nif")?.run()?;
    let application = application(shell);
    let name = if cfg!(target_vendor = "apple") { "libpelton_erlang.dylib" } else { "libpelton_erlang.so" };
    let failed = |error| Failure::new(format!("put {} together: {error}", application.display()));
    let (ebin, private) = (application.join("ebin"), application.join("priv"));
    fs::create_dir_all(&ebin).and_then(|()| fs::create_dir_all(&private)).map_err(failed)?;
    // Erlang looks for this name on every system.
    fs::copy(target(shell).join("release").join(name), private.join("py_nif.so")).map_err(failed)?;
    let description = shell.path("erlang/src/erlang_python.app.src");
    fs::copy(description, ebin.join("erlang_python.app")).map_err(failed)?;
    compile(shell, "erlang/src", &ebin)
}

/// Compiles all modules of a folder, with warnings as errors.
fn compile(shell: &Shell, folder: &str, to: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::new(format!("list {folder}: {error}"));
    let mut sources = Vec::new();
    for entry in fs::read_dir(shell.path(folder)).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "erl") {
            sources.push(OsString::from(path));
        }
    }
    sources.sort();
    shell.program("erlc", "-Wall -Werror +debug_info -o").args([to.into()]).args(sources).run()
}

/// Common Test, with suites. It fails if a test fails or is skipped.
fn suites<'a>(shell: &'a Shell, names: &str) -> Result<Task<'a>, Failure> {
    let (tests, logs) = (target(shell).join("test"), target(shell).join("logs"));
    for folder in [&tests, &logs] {
        fs::create_dir_all(folder).map_err(|error| Failure::new(format!("create {}: {error}", folder.display())))?;
    }
    compile(shell, "erlang/test", &tests)?;
    let name = format!("pelton_{}", std::process::id());
    let task = shell.program("ct_run", &format!("-noshell -no_auto_compile -sname {name} -exit_status ignore_config"));
    let task = task.args(["-dir".into(), tests.clone().into(), "-logdir".into(), logs.into(), "-suite".into()]);
    let task = task.args(names.split(' ').map(OsString::from));
    Ok(task.args(["-pa".into(), application(shell).join("ebin").into(), tests.into()]).within(DEADLINE))
}
