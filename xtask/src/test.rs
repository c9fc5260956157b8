//! The test command: its steps, in the order in which they run. Steps that fail fast come first.

use std::fs;
use std::time::{Duration, Instant};

use crate::shell::{Failure, Look, Shell};
use crate::{erlang, fuzz, instructions, python, ruby, tools};

type Run = fn(&Shell) -> Result<(), Failure>;

struct Step {
    name: &'static str,
    what: &'static str,
    run: Run,
    /// What `--quick` runs instead; steps without it are left out.
    quick: Option<Run>,
}

impl Step {
    const fn new(name: &'static str, what: &'static str, run: Run) -> Step {
        Step { name, what, run, quick: None }
    }

    const fn quick(self, quick: Run) -> Step {
        Step { quick: Some(quick), ..self }
    }
}

const STEPS: [Step; 12] = [
    Step::new("tools", "installs what the other steps need", tools::provide).quick(tools::provide),
    Step::new("format", "rustfmt changes nothing", format).quick(format),
    Step::new("clippy", "no lints, with and without optional features", clippy).quick(clippy_quick),
    Step::new("docs", "rustdoc has no warnings", docs),
    Step::new("test", "unit, behaviour and documentation tests, on every engine", test).quick(test_quick),
    Step::new("python", "the Python front end passes its own tests and CPython's", python::step),
    Step::new("ruby", "the Ruby front end passes its own tests and EventMachine's", ruby::step),
    Step::new("erlang", "the Erlang front end passes its tests", erlang::step),
    Step::new("loom", "the lock-free parts under every interleaving", loom),
    Step::new("fuzz", "codecs and protocols with generated input", fuzz::step),
    Step::new("examples", "every example runs and prints what it should; the README compiles", examples),
    Step::new("bench", "the benchmarks build, pass their tests and run", bench),
];

/// Which steps to run; all if none is named.
#[derive(Debug, Default, PartialEq)]
pub struct Choice {
    only: Vec<&'static str>,
    quick: bool,
}

impl Choice {
    pub fn only(&mut self, name: &str) -> Result<(), String> {
        let names = STEPS.map(|step| step.name);
        let known = names.into_iter().find(|known| *known == name);
        self.only.push(known.ok_or_else(|| format!("there is no step {name:?}; the steps are {}", names.join(", ")))?);
        Ok(())
    }

    pub fn quick(&mut self) {
        self.quick = true;
    }

    /// Returns what to run of a step.
    fn of(&self, step: &Step) -> Option<Run> {
        let chosen = self.only.is_empty() || self.only.contains(&step.name);
        let run = if self.quick { step.quick } else { Some(step.run) };
        run.filter(|_| chosen)
    }
}

pub fn list() {
    for step in STEPS {
        println!("{:<10}{}", step.name, step.what);
    }
    let quick: Vec<&str> = STEPS.iter().filter(|step| step.quick.is_some()).map(|step| step.name).collect();
    println!("--quick runs a part of: {}", quick.join(", "));
}

pub fn run(shell: &Shell, choice: &Choice) -> Result<(), Failure> {
    let steps: Vec<(&Step, Run)> = STEPS.iter().filter_map(|step| Some((step, choice.of(step)?))).collect();
    if steps.is_empty() {
        return Err(Failure::new("--quick has no part in these steps; see cargo xtask test --list"));
    }
    let start = Instant::now();
    let mut times = Vec::new();
    for (index, (step, run)) in steps.iter().enumerate() {
        let title = format!("[{}/{}] {}", index + 1, steps.len(), step.name);
        println!("\n{}  {}", shell.paint(Look::Bold, title), step.what);
        let begun = Instant::now();
        let outcome = run(shell);
        let time = begun.elapsed();
        if let Err(failure) = outcome {
            println!("\n{} in step {}, after {}", shell.paint(Look::Red, "FAILED"), step.name, seconds(time));
            let quick = if choice.quick { " --quick" } else { "" };
            let again = format!("To run this step alone: cargo xtask test{quick} --only {}", step.name);
            return Err(Failure::new(format!("{failure}\n{again}")));
        }
        println!("{} {} in {}", shell.paint(Look::Green, "ok"), step.name, seconds(time));
        times.push((step.name, time));
    }
    println!();
    for (name, time) in times {
        println!("{:<10}{:>9}", name, seconds(time));
    }
    println!("{} in {}", shell.paint(Look::Green, "All steps passed"), seconds(start.elapsed()));
    Ok(())
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn format(shell: &Shell) -> Result<(), Failure> {
    shell.cargo("fmt --all --check").run()?;
    shell.cargo("fmt --manifest-path bench/Cargo.toml --check").run()?;
    shell.cargo("fmt --manifest-path fuzz/Cargo.toml --check").run()
}

/// All optional features at once. A command per crate and feature would build the dependencies again each time, because cargo
/// merges their features over the crates that are selected.
const FEATURES: &str = "--features pelton/tokio,pelton-http/json,pelton-http/forms,pelton-http/cookies,pelton-openssl/libssl,\
                        pelton-os/emulated-kqueue";

fn clippy(shell: &Shell) -> Result<(), Failure> {
    shell.cargo(&format!("clippy --workspace --all-targets {FEATURES} -- -D warnings")).run()?;
    // As users build it: without optional features, and without those that only tests use.
    shell.cargo("clippy --workspace -- -D warnings").run()?;
    if on_linux_for_benches() {
        shell.cargo("clippy --manifest-path bench/Cargo.toml --all-targets -- -D warnings").run()?;
    }
    Ok(())
}

fn clippy_quick(shell: &Shell) -> Result<(), Failure> {
    shell.cargo(&format!("clippy --workspace --all-targets {FEATURES} -- -D warnings")).run()
}

fn docs(shell: &Shell) -> Result<(), Failure> {
    shell.cargo("doc --workspace --no-deps").env("RUSTDOCFLAGS", "-D warnings").run()
}

fn test(shell: &Shell) -> Result<(), Failure> {
    // Without the emulated kqueue. In the workspace it is always enabled, because tests of other crates require it.
    shell.cargo("test -p pelton-os").run()?;
    // The examples are a separate step, where they are built as users build them, without the features of tests.
    shell.cargo(&format!("test --workspace --exclude pelton-examples {FEATURES}")).run()
}

/// Test binaries that `--quick` leaves out: load, models, and tests that run the compiler or try every option.
const NOT_QUICK: [&str; 8] =
    ["chaos", "churn", "handover", "many_connections", "options", "soak", "teaching", "wheel_model"];

/// Modules of tests for pollers other than the best one. ("poll::" alone would match "epoll::" too.)
const OTHER_POLLERS: &str = if cfg!(target_os = "linux") {
    "--skip kqueue:: --skip ::poll:: --skip select::"
} else {
    "--skip ::poll:: --skip select::"
};

/// Without documentation tests, which take longer to build than to run.
fn test_quick(shell: &Shell) -> Result<(), Failure> {
    let names = test_binaries(shell)?;
    let names = names.iter().filter(|name| !NOT_QUICK.contains(&name.as_str()));
    let tests: String = names.map(|name| format!(" --test {name}")).collect();
    let packages = "--workspace --exclude pelton-examples";
    shell.cargo(&format!("test {packages} {FEATURES} --lib --bins{tests} -- {OTHER_POLLERS}")).run()
}

/// Returns the names of the test binaries of all crates.
fn test_binaries(shell: &Shell) -> Result<Vec<String>, Failure> {
    let failed = |error| Failure::new(format!("list the tests in crates/: {error}"));
    let mut names = Vec::new();
    for entry in fs::read_dir(shell.path("crates")).map_err(failed)? {
        let folder = entry.map_err(failed)?.path().join("tests");
        if !folder.exists() {
            continue;
        }
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").exists() {
                names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
            }
        }
    }
    names.sort();
    names.dedup();
    Ok(names)
}

fn loom(shell: &Shell) -> Result<(), Failure> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default() + " --cfg loom";
    shell
        .cargo("test --release -p pelton-sync --test loom")
        .env("RUSTFLAGS", flags.trim())
        // Apart from the other builds, which different flags would invalidate each time.
        .env("CARGO_TARGET_DIR", shell.target().join("loom"))
        .run()
}

fn examples(shell: &Shell) -> Result<(), Failure> {
    shell.cargo("test -p pelton-examples").run()
}

/// Everything in release mode, so that the contenders are built once.
fn bench(shell: &Shell) -> Result<(), Failure> {
    if on_linux_for_benches() {
        shell.cargo("test --release --manifest-path bench/Cargo.toml").run()?;
        let run =
            |words: &str| shell.cargo(&format!("run --release --manifest-path bench/Cargo.toml -- {words}")).run();
        run("wheel --quick")?;
        run("net --quick")?;
        // Without the actor crates, which take longer to build than the rest.
        run("work --quick")?;
        // Also without the HTTP frameworks: only the floor, pelton and hyper.
        run("http --quick")?;
        run("tls --quick")?;
        // Only the library, and those of the others that are installed.
        run("proxy --quick")?;
        python::bench_quickly(shell)?;
        instructions::check(shell)?;
        python::count_instructions(shell)?;
    }
    Ok(())
}

/// The benchmarks compare with loops that only Linux has.
fn on_linux_for_benches() -> bool {
    if !cfg!(target_os = "linux") {
        println!("bench/ is skipped: it builds on Linux only");
    }
    cfg!(target_os = "linux")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_leaves_out_only_tests_that_exist() {
        let names = test_binaries(&Shell::new()).unwrap();
        assert!(NOT_QUICK.iter().all(|name| names.iter().any(|known| known == name)), "{names:?}");
        assert!(
            names.iter().any(|name| name == "conformance") && names.iter().any(|name| name == "serve"),
            "{names:?}"
        );
        assert!(!names.iter().any(|name| name == "common"), "{names:?}");
    }

    #[test]
    fn every_step_has_a_job_in_the_workflow() {
        let workflow = fs::read_to_string(Shell::new().path(".github/workflows/ci.yml")).unwrap();
        let jobs = workflow.lines().filter_map(|line| line.split_once("steps: ")?.1.split_once(','));
        let jobs: Vec<&str> = jobs.flat_map(|(steps, _)| steps.split(' ')).collect();
        for step in STEPS {
            assert!(jobs.contains(&step.name), "no job {} in {jobs:?}", step.name);
        }
    }

    #[test]
    fn quick_runs_only_steps_that_have_a_quick_part() {
        let mut choice = Choice::default();
        assert_eq!(STEPS.iter().filter(|step| choice.of(step).is_some()).count(), STEPS.len());
        choice.quick();
        let quick: Vec<&str> = STEPS.iter().filter(|step| choice.of(step).is_some()).map(|step| step.name).collect();
        assert_eq!(quick, ["tools", "format", "clippy", "test"]);
    }
}
