//! Development tasks: `cargo xtask --help`.

#![forbid(unsafe_code)]

mod erlang;
mod fuzz;
mod instructions;
mod python;
mod ruby;
mod shell;
mod soak;
mod test;
mod tools;
mod unsafe_code;

use std::ffi::OsString;
use std::process::ExitCode;

use shell::{Failure, Shell};
use test::Choice;

const HELP: &str = "\
Development tasks of Pelton.

Usage: cargo xtask <TASK>

  test                Runs everything that must pass before a change goes in: formatting, lints, documentation,
                      tests on every engine, models, fuzzing, examples, benchmarks. Installs missing tools first.
                      Stops at the first failure.
  test --quick        Runs a part of it, for every day: formatting, lints, and the unit and behaviour tests, mostly on the
                      best poller only and without load tests. Under 3 minutes on two cores once it is built.
  test --list         Lists the steps.
  test --only STEP    Runs one step. May be repeated.
  soak [MINUTES]      Opens and closes connections at random, in release mode and on every engine, and checks for
                      leaks; does the same with clients of an HTTP server; then fuzzes. 10 minutes each by default.
                      Then runs all tests of Python, on every installed version, however long that takes.
                      Installs missing tools first. Continues after a failure, and reports all failures at the end.
  soak --only PART    Runs only connections, http, tls, children, fuzz, ruby, python or erlang. May be repeated.
  bench NAME [ARGS]   Runs a benchmark in release mode, with its own arguments.
  fuzz [SECONDS] [TARGET]
                      Fuzzes one target or all of them, 60 s each by default. Keeps interesting input in
                      fuzz/corpus, and input that causes a failure in fuzz/artifacts. Needs a C++ compiler.
  fuzz TARGET --input FILE
                      Runs a target with one input.
  deny                Checks licences, advisories and sources of all dependencies. Needs cargo-deny.
  unsafe              Counts the unsafe code of the Python front end. Fails if there is more than its limit.
  help                Prints this help.

Examples:
  cargo xtask test                          what continuous integration runs
  cargo xtask test --quick                  before each commit
  cargo xtask test --only clippy            only the lints
  cargo xtask test --only python            the Python front end, on the installed versions of 3.11 to 3.13
  PELTON_PYTHONS='python3.12 python3.13' cargo xtask test --only python
                                            the same, on these versions
  cargo xtask test --only ruby              the Ruby front end, on the installed version
  cargo xtask test --only erlang            the Erlang front end, on the installed version
  cargo xtask soak 480                      overnight
  cargo xtask soak --only python            one to two hours
  cargo xtask bench wheel                   a few minutes; writes its results to bench/results
  cargo xtask bench wheel --only posts      one part of it
  cargo xtask bench wheel --help            its options
  cargo xtask fuzz 3600 lines               the target `lines` for an hour
  cargo xtask bench net                     connections, about ten minutes
  cargo xtask bench work                    deferring, actors, tasks, promises, files, about five minutes
  cargo xtask bench http                    HTTP servers, about fifteen minutes. Needs wrk; includes nginx and Apache if
                                            they are installed
  cargo xtask bench client                  HTTP clients, a few minutes. Needs libcurl4-openssl-dev; includes Node and aiohttp
                                            if they are installed
  cargo xtask bench tls                     TLS, a few minutes
  cargo xtask bench ruby                    EventMachine's API, against Debian's ruby-eventmachine, about three minutes
  cargo xtask bench erlang                  Python from Erlang, about a minute
  cargo xtask bench proxy                   proxies, a few minutes. Includes HAProxy, nginx and socat if they are installed
  cargo xtask bench python                  asyncio loops, about ten minutes. Installs uvloop and others to compare with

Exit codes: 0 success, 1 failure, 2 unknown task or option.
";

/// A parsed command line.
#[derive(Debug, PartialEq)]
enum Job {
    Help,
    List,
    Test(Choice),
    Soak(soak::Choice),
    Bench(Vec<OsString>),
    Fuzz(fuzz::Choice),
    Deny,
    Unsafe,
}

fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Job, String> {
    let mut arguments = arguments.into_iter();
    let Some(task) = arguments.next() else { return Ok(Job::Help) };
    match task.to_str() {
        Some("help" | "-h" | "--help") => Ok(Job::Help),
        Some("test") => parse_test(arguments),
        Some("soak") => {
            let arguments: Vec<OsString> = arguments.collect();
            if arguments.iter().any(|argument| argument == "-h" || argument == "--help") {
                return Ok(Job::Help);
            }
            soak::Choice::parse(arguments.into_iter()).map(Job::Soak)
        }
        // Everything after the name belongs to the benchmark, --help included.
        Some("bench") => Ok(Job::Bench(arguments.collect())),
        Some("fuzz") => fuzz::Choice::parse(arguments).map(Job::Fuzz),
        Some("unsafe") => match arguments.next() {
            None => Ok(Job::Unsafe),
            Some(other) => Err(format!("unsafe takes no arguments; unexpected {other:?}")),
        },
        Some("deny") => match arguments.next() {
            None => Ok(Job::Deny),
            Some(other) => Err(format!("deny takes no arguments; unexpected {other:?}")),
        },
        _ => Err(format!("there is no task {task:?}; the tasks are test, soak, bench, fuzz, deny, unsafe and help")),
    }
}

fn parse_test(mut arguments: impl Iterator<Item = OsString>) -> Result<Job, String> {
    let mut choice = Choice::default();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("-h" | "--help") => return Ok(Job::Help),
            Some("--list") => return Ok(Job::List),
            Some("--quick") => choice.quick(),
            Some("--only") => {
                let step = arguments.next().ok_or("--only needs the name of a step; see cargo xtask test --list")?;
                choice.only(&step.to_string_lossy())?;
            }
            _ => return Err(format!("unknown option {argument:?} of test; see cargo xtask --help")),
        }
    }
    Ok(Job::Test(choice))
}

fn bench(shell: &Shell, mut arguments: Vec<OsString>) -> Result<(), Failure> {
    if arguments.first().is_some_and(|name| name == "ruby") {
        return ruby::bench(shell, arguments.drain(1..));
    }
    if arguments.first().is_some_and(|name| name == "erlang") {
        return erlang::bench(shell, arguments.drain(1..));
    }
    let features = features_for(&arguments);
    let asks = arguments.iter().any(|argument| argument == "-h" || argument == "--help");
    if arguments.first().is_some_and(|name| name == "python") && !asks {
        arguments.extend(python::bench_arguments(shell)?);
    }
    if arguments.first().is_some_and(|name| name == "proxy" || name == "http") && !asks {
        // One of the contenders.
        shell.cargo("build --release -p pelton-cli").run()?;
    }
    let run = format!("run --release --manifest-path bench/Cargo.toml {features} --");
    shell.cargo(&run).args(arguments).run()
}

/// Returns the features for a benchmark with all its contenders. Some of these take long to build.
fn features_for(arguments: &[OsString]) -> &'static str {
    match arguments.first().and_then(|name| name.to_str()) {
        Some("work") => "--features actor-peers",
        Some("http") => "--features http-peers",
        Some("client") => "--features client-peers",
        Some("pyhost") => "--features pyhost",
        _ => "",
    }
}

/// Checks all workspaces with the same rules.
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
    let task = match parse(std::env::args_os().skip(1)) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let shell = Shell::new();
    let outcome = match task {
        Job::Help => {
            print!("{HELP}");
            Ok(())
        }
        Job::List => {
            test::list();
            Ok(())
        }
        Job::Test(choice) => test::run(&shell, &choice),
        Job::Soak(choice) => soak::run(&shell, &choice),
        Job::Bench(arguments) => bench(&shell, arguments),
        Job::Fuzz(choice) => fuzz::run(&shell, &choice),
        Job::Deny => deny(&shell),
        Job::Unsafe => unsafe_code::count(&shell),
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

    fn parsed(line: &str) -> Result<Job, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn without_a_task_it_prints_help() {
        assert_eq!(parsed(""), Ok(Job::Help));
        assert_eq!(parsed("test --help"), Ok(Job::Help));
    }

    #[test]
    fn arguments_after_bench_belong_to_the_benchmark() {
        assert_eq!(parsed("bench wheel --help"), Ok(Job::Bench(vec!["wheel".into(), "--help".into()])));
    }

    #[test]
    fn costly_contenders_are_built_only_where_they_compete() {
        assert_eq!(features_for(&["work".into(), "--quick".into()]), "--features actor-peers");
        assert_eq!(features_for(&["http".into()]), "--features http-peers");
        assert_eq!(features_for(&["pyhost".into()]), "--features pyhost");
        assert_eq!(features_for(&["net".into()]), "");
    }

    #[test]
    fn fuzz_takes_a_time_a_target_and_an_input() {
        for line in ["fuzz", "fuzz 5", "fuzz lines", "fuzz 5 lines", "fuzz lines 5", "fuzz lines --input some/file"] {
            assert!(matches!(parsed(line), Ok(Job::Fuzz(_))), "{line}");
        }
        let error = parsed("fuzz lnes").unwrap_err();
        assert!(error.contains("lnes") && error.contains("length_prefixed, lines"), "{error}");
        assert!(parsed("fuzz lines --input").is_err());
        assert!(parsed("fuzz --input some/file").is_err());
    }

    #[test]
    fn soak_takes_minutes_and_names() {
        for line in ["soak", "soak 3", "soak --only python", "soak 3 --only http --only fuzz"] {
            assert!(matches!(parsed(line), Ok(Job::Soak(_))), "{line}");
        }
        assert_eq!(parsed("soak --help"), Ok(Job::Help));
        assert!(parsed("soak 3 4").is_err() && parsed("soak long").is_err());
    }

    #[test]
    fn an_unknown_step_is_an_error_that_lists_the_steps() {
        assert!(parsed("test --only clippy").is_ok());
        let error = parsed("test --only clipy").unwrap_err();
        assert!(error.contains("clipy") && error.contains("format, clippy"), "{error}");
        assert!(parsed("test --only").is_err());
        assert!(parsed("test --quick").is_ok() && parsed("test --quick").ok() != parsed("test").ok());
        assert!(parsed("test clippy").is_err());
        assert!(parsed("tset").is_err());
    }
}
