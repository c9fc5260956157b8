//! The Ruby front end: built for the installed Ruby, and tested there.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::shell::{Failure, Shell, Task};
use crate::soak::Progress;

/// Deadlines for our tests and for EventMachine's: many times what they take on an idle machine.
const OWN_TESTS_DEADLINE: Duration = Duration::from_secs(10 * 60);
const SUITE_DEADLINE: Duration = Duration::from_secs(20 * 60);

/// Directories in the target directory: what is built for Ruby, and the library to load.
fn target(shell: &Shell) -> PathBuf {
    shell.target().join("ruby")
}

fn cargo<'a>(shell: &'a Shell, words: &str) -> Task<'a> {
    shell.cargo(words).env("CARGO_TARGET_DIR", target(shell))
}

/// The folder with the native library, to be used together with `ruby/lib`.
fn library(shell: &Shell) -> PathBuf {
    target(shell).join("lib")
}

/// The step of `cargo xtask test`.
pub fn step(shell: &Shell) -> Result<(), Failure> {
    cargo(shell, "clippy --release -p pelton-ruby --features extension -- -D warnings").run()?;
    install(shell)?;
    own_tests(shell)?;
    // Without our library in RUBYLIB: it is found in the ways that are tested.
    shell
        .program("ruby", "ruby/test/packaging.rb")
        .args([gem(shell).join("source").into(), home(shell).into()])
        .run()?;
    ruby(shell, "ruby/test/programs/test_programs.rb").within(OWN_TESTS_DEADLINE).run()?;
    suite(shell)
}

/// The directory in which the gem is made.
fn gem(shell: &Shell) -> PathBuf {
    target(shell).join("gem")
}

/// The directory in which it is installed.
fn home(shell: &Shell) -> PathBuf {
    target(shell).join("home")
}

/// Packs the gem and installs it, which builds the native library in release mode: most tests measure time. All tests use this
/// library, so that it is built once.
fn install(shell: &Shell) -> Result<(), Failure> {
    let failed = |what: &str, error: &dyn std::fmt::Display| Failure::new(format!("{what}: {error}"));
    shell.program("ruby", "ruby/package.rb").args([gem(shell).into()]).run()?;
    let packed = std::fs::read_dir(gem(shell))
        .map_err(|error| failed("list the directory of the gem", &error))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "gem"))
        .ok_or_else(|| Failure::new("package.rb has made no gem"))?;
    match std::fs::remove_dir_all(home(shell)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed("remove the old gem", &error)),
        _ => {}
    }
    let words = "install --local --no-document --install-dir";
    let task = shell.program("gem", words).args([home(shell).into(), packed.into()]);
    task.env("CARGO_TARGET_DIR", target(shell)).run()?;
    copy_library(shell)
}

/// Builds the native library of the repository.
pub fn build(shell: &Shell) -> Result<(), Failure> {
    cargo(shell, "build --release -p pelton-ruby --features extension").run()?;
    copy_library(shell)
}

/// Puts the native library where Ruby finds it, under the name that Ruby expects.
fn copy_library(shell: &Shell) -> Result<(), Failure> {
    let name = if cfg!(target_vendor = "apple") { "libpelton_ruby.dylib" } else { "libpelton_ruby.so" };
    let extension = if cfg!(target_vendor = "apple") { "bundle" } else { "so" };
    let library = library(shell);
    let to = library.join(format!("pelton_eventmachine.{extension}"));
    let copied =
        std::fs::create_dir_all(&library).and_then(|()| std::fs::copy(target(shell).join("release").join(name), &to));
    copied.map(drop).map_err(|error| Failure::new(format!("copy the library to {}: {error}", to.display())))
}

/// `ruby`, with our library. A user's preferred engine must not change what is tested.
fn ruby<'a>(shell: &'a Shell, words: &str) -> Task<'a> {
    let load = [library(shell), shell.path("ruby/lib")].map(|path| path.display().to_string()).join(":");
    shell.program("ruby", words).env("RUBYLIB", load).env("PELTON_ENGINE", "")
}

fn own_tests(shell: &Shell) -> Result<(), Failure> {
    ruby(shell, "ruby/test/run_own.rb").within(OWN_TESTS_DEADLINE).run()?;
    // Besides the best engine, one that exists on every system.
    ruby(shell, "ruby/test/run_own.rb test_order test_faults")
        .env("PELTON_ENGINE", "poll")
        .within(OWN_TESTS_DEADLINE)
        .run()
}

/// Runs EventMachine's own tests, which are downloaded, and compares the outcomes with those of EventMachine.
fn suite(shell: &Shell) -> Result<(), Failure> {
    let source = target(shell).join("eventmachine");
    shell.program("ruby", "ruby/test/fetch_suite.rb").args([source.clone().into()]).run()?;
    ruby(shell, "ruby/test/suite/network.rb ruby ruby/test/run_suite.rb check")
        .args([source.join("tests").into(), "ruby/test/suite/baseline.txt".into()])
        .within(SUITE_DEADLINE)
        .run()
}

/// The parts of the soak: heavy servers, and the garbage collector.
pub fn soak(shell: &Shell, progress: &mut Progress<'_>) {
    progress.part("Ruby: clients of PostgreSQL and RabbitMQ", || {
        build(shell)?;
        for test in ["postgres", "amqp"] {
            let words = format!("ruby/test/programs/test_{test}.rb");
            ruby(shell, &words).within(OWN_TESTS_DEADLINE).run()?;
        }
        Ok(())
    });
}

/// Compares with Debian's EventMachine on the same Ruby. The words are those of `ruby/bench/run.rb`.
pub fn bench(shell: &Shell, words: impl IntoIterator<Item = OsString>) -> Result<(), Failure> {
    build(shell)?;
    // Without our library.
    if !shell.program("ruby", "-e").args(["require %q(rubyeventmachine)".into()]).succeeds() {
        return Err(Failure::new("EventMachine is needed to compare with; install the package `ruby-eventmachine`"));
    }
    ruby(shell, "ruby/bench/run.rb").args(words).run()
}
