//! Fuzzing: a program makes up input for codecs and protocols, and keeps to what takes it to code where it has not been.
//!
//! Every file in `fuzz/src/bin` is a target, and has seeds in the folder of its name in `fuzz/seeds`.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use crate::shell::{Failure, Shell, Task};

/// How long each target runs as a step of the tests.
const SECONDS_IN_TESTS: u32 = 10;

/// How long each target runs if nothing else is said.
const SECONDS: u32 = 60;

/// Has the compiler count which code runs and show what is compared, in the form that libFuzzer takes. These passes are part of
/// stable Rust; only the option that would ask for them by name is not.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Input longer than this says nothing that shorter does not: the limits of the targets are far below.
const LONGEST_INPUT: u32 = 512;

/// How much of what a target has said is shown if it fails, in lines: its message, the stack and the input.
const LINES_SHOWN: usize = 50;

/// What to run.
#[derive(Debug, PartialEq)]
pub struct Choice {
    seconds: u32,
    /// All if none is named.
    target: Option<String>,
    /// The one input to try, instead of making some up.
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
                    return Err(format!("there is nothing to fuzz called {word:?}; there are {}", targets.join(", ")));
                }
                choice.target = Some(word.into_owned());
            }
        }
        if choice.input.is_some() && choice.target.is_none() {
            return Err("--input needs the name of a target, too".to_owned());
        }
        Ok(choice)
    }
}

impl Choice {
    /// Every target for so long.
    pub fn each_for(seconds: u32) -> Choice {
        Choice { seconds, target: None, input: None }
    }
}

/// The step of the tests: lints, and a while for each target.
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

/// Every target, by name.
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

/// A command of cargo's in the fuzzing workspace.
fn cargo<'a>(shell: &'a Shell, command: &str, words: &str) -> Task<'a> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default() + " " + FLAGS;
    // With a target named, cargo builds what runs while building without these flags: it would not link with them.
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
            "fuzzing {target} has found a mistake. Again, with what it found: cargo xtask fuzz {target} --input {}",
            input.display()
        ))),
        None => Err(Failure::new(format!("fuzzing {target} failed"))),
    }
}
