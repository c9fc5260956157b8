//! Pelton's chores: `cargo xtask --help`.

#![forbid(unsafe_code)]

mod fuzz;
mod python;
mod shell;
mod soak;
mod test;
mod tools;

use std::ffi::OsString;
use std::process::ExitCode;

use shell::{Failure, Shell};
use test::Choice;

const HELP: &str = "\
Pelton's chores.

Usage: cargo xtask <CHORE>

  test                Everything that has to pass before a change goes in: formatting, lints, documentation,
                      tests on every engine, models, fuzzing, examples, benchmarks. Tools that are missing are
                      installed first. Stops at the first failure.
  test --list         Lists the steps of it.
  test --only STEP    Runs one step; give it several times for several.
  soak [MINUTES]      Has connections come and go at random, in release mode and on every engine, and checks that
                      nothing is left of them; likewise clients of an HTTP server; then fuzzes. 10 minutes each if
                      not told otherwise. Then all of what is tested of Python, on every version that is
                      installed, for as long as that takes. Goes on after a failure, and tells of all at the end.
  soak --only PART    Only connections, http, fuzz or python; give it several times for several.
  bench NAME [ARGS]   Runs a benchmark in release mode, with its own arguments.
  fuzz [SECONDS] [TARGET]
                      Fuzzes one codec, or each, for so long; 60 s if not said. What it finds out it keeps in
                      fuzz/corpus; what breaks a codec, in fuzz/artifacts. Needs a C++ compiler.
  fuzz TARGET --input FILE
                      Tries one such input again.
  deny                Checks licences, advisories and sources of all dependencies. Needs cargo-deny.
  help                This.

Examples:
  cargo xtask test                          what continuous integration runs
  cargo xtask test --only clippy            only the lints
  cargo xtask test --only python            the Python front end, on what is installed of 3.11 to 3.13
  PELTON_PYTHONS='python3.12 python3.13' cargo xtask test --only python
                                            the same, on these
  cargo xtask soak 480                      overnight
  cargo xtask soak --only python            an hour or two
  cargo xtask bench wheel                   a few minutes; leaves its results in bench/results
  cargo xtask bench wheel --only posts      one part of it
  cargo xtask bench wheel --help            what else it takes
  cargo xtask fuzz 3600 lines               an hour of lines
  cargo xtask bench net                     connections, some ten minutes; leaves its results there too
  cargo xtask bench work                    deferring, actors, tasks, promises, files, some five minutes; likewise
  cargo xtask bench http                    HTTP servers, some fifteen minutes; likewise. Needs wrk; compares with nginx and
                                            Apache if they are installed
  cargo xtask bench python                  asyncio loops, some ten minutes; likewise. Installs uvloop and others for that

Exit codes: 0 all is well, 1 something failed, 2 no such chore or option.
";

/// What was asked for on the command line.
#[derive(Debug, PartialEq)]
enum Chore {
    Help,
    List,
    Test(Choice),
    Soak(soak::Choice),
    Bench(Vec<OsString>),
    Fuzz(fuzz::Choice),
    Deny,
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Chore, String> {
    let mut arguments = arguments.into_iter();
    let Some(chore) = arguments.next() else { return Ok(Chore::Help) };
    match chore.to_str() {
        Some("help" | "-h" | "--help") => Ok(Chore::Help),
        Some("test") => parse_test(arguments),
        Some("soak") => {
            let arguments: Vec<OsString> = arguments.collect();
            if arguments.iter().any(|argument| argument == "-h" || argument == "--help") {
                return Ok(Chore::Help);
            }
            soak::Choice::parse(arguments.into_iter()).map(Chore::Soak)
        }
        // What comes after the name is the benchmark's own, --help included.
        Some("bench") => Ok(Chore::Bench(arguments.collect())),
        Some("fuzz") => fuzz::Choice::parse(arguments).map(Chore::Fuzz),
        Some("deny") => match arguments.next() {
            None => Ok(Chore::Deny),
            Some(other) => Err(format!("deny takes no argument, and got {other:?}")),
        },
        _ => Err(format!("there is no chore called {chore:?}; the chores are test, soak, bench, fuzz, deny and help")),
    }
}

fn parse_test(mut arguments: impl Iterator<Item = OsString>) -> Result<Chore, String> {
    let mut choice = Choice::default();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-h" | "--help") => return Ok(Chore::Help),
            Some("--list") => return Ok(Chore::List),
            Some("--only") => {
                let step = arguments.next().ok_or("--only needs the name of a step; see cargo xtask test --list")?;
                choice.only(&step.to_string_lossy())?;
            }
            _ => return Err(format!("test does not know {argument:?}; see cargo xtask --help")),
        }
    }
    Ok(Chore::Test(choice))
}

fn bench(shell: &Shell, mut arguments: Vec<OsString>) -> Result<(), Failure> {
    let features = features_for(&arguments);
    let asks = arguments.iter().any(|argument| argument == "-h" || argument == "--help");
    if arguments.first().is_some_and(|name| name == "python") && !asks {
        arguments.extend(python::bench_arguments(shell)?);
    }
    let run = format!("run --release --manifest-path bench/Cargo.toml {features} --");
    shell.cargo(&run).args(arguments).run()
}

/// What a benchmark has to be built with, to be compared with everybody: some need crates that are costly to build.
fn features_for(arguments: &[OsString]) -> &'static str {
    match arguments.first().and_then(|name| name.to_str()) {
        Some("work") => "--features actor-peers",
        Some("http") => "--features http-peers",
        Some("pyhost") => "--features pyhost",
        _ => "",
    }
}

/// Checks all workspaces by the same rules.
fn deny(shell: &Shell) -> Result<(), Failure> {
    if !shell.cargo("deny --version").succeeds() {
        return Err(Failure::new("cargo-deny is needed; install it with: cargo install --locked cargo-deny"));
    }
    for manifest in ["./Cargo.toml", "bench/Cargo.toml", "fuzz/Cargo.toml"] {
        shell.cargo(&format!("deny --manifest-path {manifest} check")).run()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let chore = match parse(std::env::args_os().skip(1)) {
        Ok(chore) => chore,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let shell = Shell::new();
    let outcome = match chore {
        Chore::Help => {
            print!("{HELP}");
            Ok(())
        }
        Chore::List => {
            test::list();
            Ok(())
        }
        Chore::Test(choice) => test::run(&shell, &choice),
        Chore::Soak(choice) => soak::run(&shell, &choice),
        Chore::Bench(arguments) => bench(&shell, arguments),
        Chore::Fuzz(choice) => fuzz::run(&shell, &choice),
        Chore::Deny => deny(&shell),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Chore, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn without_a_chore_it_explains_itself() {
        assert_eq!(parsed(""), Ok(Chore::Help));
        assert_eq!(parsed("test --help"), Ok(Chore::Help));
    }

    #[test]
    fn what_follows_bench_is_the_benchmarks() {
        assert_eq!(parsed("bench wheel --help"), Ok(Chore::Bench(vec!["wheel".into(), "--help".into()])));
    }

    #[test]
    fn crates_that_are_costly_to_build_are_only_where_they_are_compared_with() {
        assert_eq!(features_for(&["work".into(), "--quick".into()]), "--features actor-peers");
        assert_eq!(features_for(&["http".into()]), "--features http-peers");
        assert_eq!(features_for(&["pyhost".into()]), "--features pyhost");
        assert_eq!(features_for(&["net".into()]), "");
    }

    #[test]
    fn fuzzing_takes_a_time_a_target_and_an_input() {
        for line in ["fuzz", "fuzz 5", "fuzz lines", "fuzz 5 lines", "fuzz lines 5", "fuzz lines --input some/file"] {
            assert!(matches!(parsed(line), Ok(Chore::Fuzz(_))), "{line}");
        }
        let error = parsed("fuzz lnes").unwrap_err();
        assert!(error.contains("lnes") && error.contains("length_prefixed, lines"), "{error}");
        assert!(parsed("fuzz lines --input").is_err());
        assert!(parsed("fuzz --input some/file").is_err());
    }

    #[test]
    fn soak_takes_minutes_and_names() {
        for line in ["soak", "soak 3", "soak --only python", "soak 3 --only http --only fuzz"] {
            assert!(matches!(parsed(line), Ok(Chore::Soak(_))), "{line}");
        }
        assert_eq!(parsed("soak --help"), Ok(Chore::Help));
        assert!(parsed("soak 3 4").is_err() && parsed("soak long").is_err());
    }

    #[test]
    fn an_unknown_step_is_an_error_that_lists_the_steps() {
        assert!(parsed("test --only clippy").is_ok());
        let error = parsed("test --only clipy").unwrap_err();
        assert!(error.contains("clipy") && error.contains("format, clippy"), "{error}");
        assert!(parsed("test --only").is_err());
        assert!(parsed("test clippy").is_err());
        assert!(parsed("tset").is_err());
    }
}
