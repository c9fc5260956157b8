//! Fuzzing: generates input for codecs and protocols, guided by code coverage.
//!
//! Every file in `fuzz/src/bin` is a target. Its seeds are in the folder of the same name in `fuzz/seeds`.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use crate::shell::{Failure, Shell, Task};

/// How long each target runs as a step of the tests, in seconds.
const SECONDS_IN_TESTS: u32 = 10;

/// How long each target runs by default, in seconds.
const SECONDS: u32 = 60;

/// Makes the compiler instrument code for libFuzzer: counters of executed code, and traced comparisons. These passes are part of
/// stable Rust; only the option that requests them by name is not.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Longer input reveals nothing that shorter input does not: the limits of the targets are far below.
const LONGEST_INPUT: u32 = 512;

/// How many lines of a failing target's output are shown: its message, the stack and the input.
const LINES_SHOWN: usize = 50;

/// What to run.
#[derive(Debug, PartialEq)]
pub struct Choice {
    seconds: u32,
    /// All targets if none is named.
    target: Option<String>,
    /// The one input to try, instead of generating some.
    input: Option<OsString>,
}

impl Choice {
    pub fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Choice, String> {
        let mut choice = Choice { seconds: SECONDS, target: None, input: None };
        while let Some(argument) = arguments.next() {
            let word = argument.to_string_lossy();
            if word == "--input" {
                choice.input = Some(arguments.next().ok_or("--input needs a file")?);
            } else if let Ok(seconds) = word.parse() {
                choice.seconds = seconds;
            } else {
                let targets = targets(&Shell::new()).map_err(|failure| failure.to_string())?;
                if !targets.iter().any(|target| *target == word) {
                    return Err(format!("there is no target {word:?}; the targets are {}", targets.join(", ")));
                }
                choice.target = Some(word.into_owned());
            }
        }
        if choice.input.is_some() && choice.target.is_none() {
            return Err("--input also needs the name of a target".to_owned());
        }
        Ok(choice)
    }
}

impl Choice {
    /// Runs every target for this many seconds.
    pub fn each_for(seconds: u32) -> Choice {
        Choice { seconds, target: None, input: None }
    }
}

/// The step of the tests: lints, and a short run of each target.
pub fn step(shell: &Shell) -> Result<(), Failure> {
    cargo(shell, "clippy", "--all-targets -- -D warnings").run()?;
    run(shell, &Choice::each_for(SECONDS_IN_TESTS))
}

pub fn run(shell: &Shell, choice: &Choice) -> Result<(), Failure> {
    if std::env::var_os("CXX").is_none() && !shell.program("c++", "--version").succeeds() {
        return Err(Failure::new("a C++ compiler is needed for libFuzzer; install the package g++ or clang"));
    }
    if let (Some(target), Some(input)) = (&choice.target, &choice.input) {
        return cargo(shell, "run", &format!("--bin {target} --")).args([input.clone()]).run();
    }
    cargo(shell, "build", "--bins").run()?;
    let targets = match &choice.target {
        Some(target) => vec![target.clone()],
        None => targets(shell)?,
    };
    let at_once = thread::available_parallelism().map_or(1, usize::from).min(targets.len());
    println!("{} for {} s each, {at_once} at a time", targets.join(", "), choice.seconds);
    let waiting = Mutex::new(targets.iter());
    let next = || waiting.lock().ok()?.next();
    let failures = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(target) = next() {
                    if let Err(failure) = fuzz(shell, target, choice.seconds)
                        && let Ok(mut failures) = failures.lock()
                    {
                        failures.push(failure.to_string());
                    }
                }
            });
        }
    });
    match failures.into_inner() {
        Ok(failures) if failures.is_empty() => Ok(()),
        Ok(failures) => Err(Failure::new(failures.join("\n"))),
        Err(_) => Err(Failure::new("a thread that ran a target panicked")),
    }
}

/// Returns the names of all targets.
fn targets(shell: &Shell) -> Result<Vec<String>, Failure> {
    let folder = shell.path("fuzz/src/bin");
    let failed = |error| Failure::new(format!("list {}: {error}", folder.display()));
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Returns a cargo command for the fuzzing workspace.
fn cargo<'a>(shell: &'a Shell, command: &str, words: &str) -> Task<'a> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default() + " " + FLAGS;
    // With a target named, cargo builds build scripts and macros without these flags, with which they would not link.
    let common = "--release --target host-tuple --manifest-path fuzz/Cargo.toml";
    shell
        .cargo(&format!("{command} {common} {words}"))
        .env("RUSTFLAGS", flags.trim())
        .env("CARGO_TARGET_DIR", shell.target().join("fuzz"))
}

fn fuzz(shell: &Shell, target: &str, seconds: u32) -> Result<(), Failure> {
    let corpus = format!("fuzz/corpus/{target}");
    let artifacts = format!("fuzz/artifacts/{target}/");
    for folder in [&corpus, &artifacts] {
        let made = std::fs::create_dir_all(shell.path(folder));
        made.map_err(|error| Failure::new(format!("make the folder {folder}: {error}")))?;
    }
    let options =
        format!("-max_total_time={seconds} -max_len={LONGEST_INPUT} -timeout=10 -artifact_prefix={artifacts}");
    let words = format!("--quiet --bin {target} -- {options} {corpus} fuzz/seeds/{target}");
    let (well, said) = cargo(shell, "run", &words).output()?;
    if well {
        println!("{target}: {}", said.lines().last().unwrap_or_default());
        return Ok(());
    }
    let lines: Vec<&str> = said.lines().collect();
    println!("{}", lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n"));
    let input = said.split("Test unit written to ").nth(1).and_then(|rest| rest.lines().next());
    match input.map(Path::new) {
        Some(input) => Err(Failure::new(format!(
            "fuzzing {target} found a failure. To reproduce it: cargo xtask fuzz {target} --input {}",
            input.display()
        ))),
        None => Err(Failure::new(format!("fuzzing {target} failed"))),
    }
}
