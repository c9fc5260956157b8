//! Checks that find faults which ordinary tests miss: hostile programs, and stricter interpreters and tools.

use std::time::Duration;

use super::Built;
use super::environment;
use super::interpreters::Python;
use crate::shell::{Failure, Shell};

/// How long random scenarios with hostile objects run in `cargo xtask test`.
pub const TORTURE_SECONDS: u64 = 60;

/// Deadline for tests that take minutes, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60 * 60);

/// Our tests that run in slow environments: contexts, the loop, and programs that once crashed it.
const SLICE: &str = "test_contexts test_loop test_loop_handles test_loop_threads test_regressions test_regressions_rubbish \
    test_regressions_sockets";

/// Checks on an interpreter with assertions that repeating a program leaks no references.
const REFERENCES: &str = "python/tests/references.py";

/// Tests under AddressSanitizer: those that do not measure time or memory, because it needs about ten times as much of both.
const UNDER_ADDRESS_SANITIZER: &str = "test_connect test_contexts test_endings test_guards test_loop test_loop_handles test_loop_threads \
    test_parity test_regressions test_regressions_rubbish test_regressions_sockets test_running test_sockets test_streams test_stress \
    test_subprocess test_tls test_tls_endings test_tls_torture";

/// Tests under valgrind, which is about fifty times slower.
const UNDER_VALGRIND: &str = "test_contexts test_loop test_loop_handles test_loop_threads";

const VALGRIND: &str = "--quiet --error-exitcode=9 --leak-check=no --trace-children=no";

/// Debian's interpreter with assertions, in the package `python3-dbg`.
const DEBUG_INTERPRETER: &str = "python3-dbg";

/// Which programs the generator of hostile programs makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seeds {
    /// The same each time: what passes today passes tomorrow.
    Fixed,
    /// Different ones each time.
    New,
}

/// Runs the generator of hostile programs for this many seconds.
pub fn torture(built: &Built<'_>, seeds: Seeds, seconds: u64) -> Result<(), Failure> {
    let path = std::env::join_paths([built.shell.path("python/tests"), built.package.clone()]);
    let path = path.map_err(|error| Failure::new(format!("put together PYTHONPATH: {error}")))?;
    let deadline = Duration::from_secs(seconds) + DEADLINE;
    let first = if seeds == Seeds::Fixed { "--first 1" } else { "" };
    built.run(format!("-m torture --seconds {seconds} {first}").trim()).env("PYTHONPATH", path).within(deadline).run()
}

/// Runs our tests by name, with options for the interpreter.
fn tests(built: &Built<'_>, options: &str, names: &str) -> Result<(), Failure> {
    let path = std::env::join_paths([built.shell.path("python/tests"), built.package.clone()]);
    let path = path.map_err(|error| Failure::new(format!("put together PYTHONPATH: {error}")))?;
    built.run(&format!("{options} -m unittest {names}")).env("PYTHONPATH", path).within(DEADLINE).run()
}

/// Runs a subset of the tests in Python's development mode: debug hooks of the allocator, all warnings, and debug mode of every
/// loop.
pub fn development_mode(built: &Built<'_>) -> Result<(), Failure> {
    tests(built, "-X dev", SLICE)
}

/// Runs all tests in development mode.
pub fn all_in_development_mode(built: &Built<'_>) -> Result<(), Failure> {
    built.run("-X dev -m unittest discover -s python/tests").within(DEADLINE).run()
}

/// Returns the interpreter with assertions, if there is one; only Debian-like systems have it.
pub fn debug_interpreter(shell: &Shell) -> Option<Python> {
    let mut python = Python::ask(shell, DEBUG_INTERPRETER.as_ref()).ok()?;
    // Modules built for it count references, and do not work with other builds of the version.
    python.version.push_str("-debug");
    Some(python)
}

/// Runs some tests on the interpreter with assertions.
pub fn assertions(shell: &Shell) -> Result<(), Failure> {
    let Some(python) = debug_interpreter(shell) else {
        println!("{DEBUG_INTERPRETER} not found; tests with assertions are skipped");
        return Ok(());
    };
    let built = Built::new(shell, python)?;
    tests(&built, "", SLICE)
}

/// Runs all tests on the interpreter with assertions, and checks that repeating them leaks no references.
pub fn all_assertions(built: &Built<'_>) -> Result<(), Failure> {
    let Some(python) = debug_interpreter(built.shell) else {
        return Err(Failure::new(format!("there is no {DEBUG_INTERPRETER}; Debian has it in a package of that name")));
    };
    let built = Built::new(built.shell, python)?;
    built.own_tests()?;
    built.run(REFERENCES).within(DEADLINE).run()?;
    built.conformance("")
}

/// Runs some tests under valgrind, without Python's own allocator.
pub fn valgrind(built: &Built<'_>) -> Result<(), Failure> {
    let path = std::env::join_paths([built.shell.path("python/tests"), built.package.clone()]);
    let path = path.map_err(|error| Failure::new(format!("put together PYTHONPATH: {error}")))?;
    let program = built.python.program.display();
    built
        .shell
        .program("valgrind", &format!("{VALGRIND} {program} -m unittest {UNDER_VALGRIND}"))
        .env("PYTHONPATH", path)
        .env("PYTHONMALLOC", "malloc")
        .env("PELTON_ENGINE", "")
        .within(DEADLINE)
        .run()
}

/// Runs tests and hostile programs with AddressSanitizer in the module and without Python's own allocator: this finds uses of
/// freed objects even if they happen to do no harm. Skipped without a nightly toolchain.
pub fn address_sanitizer(built: &Built<'_>, seconds: u64) -> Result<(), Failure> {
    let shell = built.shell;
    let Some(library) = address_sanitizer_library(shell) else {
        println!("No nightly toolchain for x86-64 Linux with AddressSanitizer's library: skipped");
        return Ok(());
    };
    let package = environment::build_with_address_sanitizer(shell, &built.python)?;
    let path = std::env::join_paths([shell.path("python/tests"), package]);
    let path = path.map_err(|error| Failure::new(format!("put together PYTHONPATH: {error}")))?;
    for words in [format!("-m unittest {UNDER_ADDRESS_SANITIZER}"), format!("-m torture --seconds {seconds}")] {
        shell
            .program(&built.python.program, &words)
            .env("PYTHONPATH", &path)
            .env("PYTHONMALLOC", "malloc")
            .env("PELTON_ENGINE", "")
            .env("LD_PRELOAD", &library)
            // Python frees much of its memory only at the end of the process.
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .within(Duration::from_secs(seconds) + DEADLINE)
            .run()?;
    }
    Ok(())
}

/// The C compiler's AddressSanitizer library: an interpreter built without it must load it first.
fn address_sanitizer_library(shell: &Shell) -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64"))
        || !shell.program("cargo", "+nightly --version").succeeds()
    {
        return None;
    }
    let (fine, said) = shell.program("cc", "-print-file-name=libasan.so").output().ok()?;
    // If there is none, the compiler prints the name alone.
    let library = said.trim();
    (fine && library.starts_with('/')).then(|| library.to_owned())
}
