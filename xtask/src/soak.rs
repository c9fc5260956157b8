//! The soak: runs for as long as you like what the tests run for seconds.

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use crate::shell::{Failure, Look, Shell};
use crate::{erlang, fuzz, python, ruby, tools};

/// Long enough for a leak of a few bytes per connection to show, short enough to wait for.
const DEFAULT_MINUTES: NonZeroU64 = NonZeroU64::new(10).unwrap();

/// Parts that can be selected by name.
const NAMES: [&str; 9] = ["connections", "http", "tls", "children", "jobs", "fuzz", "ruby", "python", "erlang"];

/// What to run, and for how long.
#[derive(Debug, PartialEq)]
pub struct Choice {
    /// For all engines together; the same again for HTTP, and for fuzzing.
    minutes: NonZeroU64,
    /// All parts if none is named.
    only: Vec<&'static str>,
}

impl Choice {
    /// Parses the arguments: a number of minutes, and names.
    pub fn parse(mut arguments: impl Iterator<Item = OsString>) -> Result<Choice, String> {
        let mut choice = Choice { minutes: DEFAULT_MINUTES, only: Vec::new() };
        let mut counted = false;
        while let Some(argument) = arguments.next() {
            if argument == "--only" {
                let name = arguments.next().unwrap_or_default();
                let known = NAMES.into_iter().find(|known| name == *known);
                let names = NAMES.join(", ");
                choice.only.push(known.ok_or_else(|| format!("--only takes one of {names}, not {name:?}"))?);
            } else if counted {
                return Err(format!("soak takes one number of minutes; unexpected {argument:?}"));
            } else {
                let number = argument.to_str().and_then(|text| text.parse().ok());
                choice.minutes =
                    number.ok_or_else(|| format!("soak takes a number of minutes, at least 1, not {argument:?}"))?;
                counted = true;
            }
        }
        Ok(choice)
    }

    fn takes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.contains(&name)
    }

    fn seconds(&self) -> u64 {
        self.minutes.get().saturating_mul(60)
    }
}

/// Reports progress and the result of each part. A failure does not stop the next part: nobody wants to wait hours to learn of
/// one failure at a time.
pub struct Progress<'a> {
    shell: &'a Shell,
    parts: usize,
    done: Vec<(String, Duration, Option<Failure>)>,
}

impl<'a> Progress<'a> {
    pub fn new(shell: &'a Shell, parts: usize) -> Progress<'a> {
        Progress { shell, parts, done: Vec::new() }
    }

    /// Runs one part, and returns its result on success.
    pub fn part<T>(&mut self, title: impl Into<String>, run: impl FnOnce() -> Result<T, Failure>) -> Option<T> {
        let title = title.into();
        let number = format!("[{}/{}]", self.done.len() + 1, self.parts);
        println!("\n{} {title}", self.shell.paint(Look::Bold, number));
        let start = Instant::now();
        let outcome = run();
        let time = start.elapsed();
        let (given, failure) = match outcome {
            Ok(given) => {
                println!("{} {title}, in {}", self.shell.paint(Look::Green, "ok"), minutes(time));
                (Some(given), None)
            }
            Err(failure) => {
                println!("{} {title}, after {}: {failure}", self.shell.paint(Look::Red, "FAILED"), minutes(time));
                (None, Some(failure))
            }
        };
        self.done.push((title, time, failure));
        given
    }

    /// Prints a summary, and fails if any part failed.
    pub fn finish(self) -> Result<(), Failure> {
        println!();
        for (title, time, failure) in &self.done {
            let (look, word) = if failure.is_none() { (Look::Green, "ok    ") } else { (Look::Red, "FAILED") };
            println!("{} {:>10}  {title}", self.shell.paint(look, word), minutes(*time));
        }
        let failures: Vec<String> = self
            .done
            .iter()
            .filter_map(|(title, _, failure)| Some(format!("{title}: {}", failure.as_ref()?)))
            .collect();
        if failures.is_empty() { Ok(()) } else { Err(Failure::new(failures.join("\n"))) }
    }
}

fn minutes(time: Duration) -> String {
    format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60)
}

/// Each fuzz target runs for this fraction of the time.
const PER_FUZZ_TARGET: u64 = 5;

/// Opens and closes connections at random, then runs clients of an HTTP server and of a TLS server, in release mode, then fuzzes
/// codecs and protocols. Each prints its progress. The long tests of Python come last.
pub fn run(shell: &Shell, choice: &Choice) -> Result<(), Failure> {
    // Both first: a missing tool or Python should show now, not in an hour.
    tools::provide(shell)?;
    let pythons = if choice.takes("python") { python::find(shell)? } else { Vec::new() };
    // TLS has two.
    let ours =
        NAMES.iter().filter(|name| **name != "python" && choice.takes(name)).count() + usize::from(choice.takes("tls"));
    if ours > 0 {
        println!(
            "Connections take {0} min, divided equally among the engines; HTTP takes the same again, and so do TLS and fuzzing. \
             Hostile Python programs take the same for each version; the rest of Python takes as long as it needs.",
            choice.minutes
        );
    }
    let seconds = choice.seconds();
    let mut progress = Progress::new(shell, ours + pythons.len() * python::SOAK_PARTS);
    if choice.takes("connections") {
        let words = "test --release -p pelton --test churn -- --nocapture --test-threads 1";
        progress.part("connections opened and closed at random, on every engine", || {
            shell.cargo(words).env("PELTON_CHURN_SECONDS", seconds.to_string()).run()
        });
    }
    if choice.takes("http") {
        let words = "test --release -p pelton-http --test soak -- --nocapture";
        progress.part("clients of an HTTP server", || {
            shell.cargo(words).env("PELTON_SOAK_SECONDS", seconds.to_string()).run()
        });
    }
    if choice.takes("tls") {
        progress.part("clients of a TLS server that leave at any moment", || {
            let words = "test --release -p pelton-tls --test soak -- --nocapture";
            shell.cargo(words).env("PELTON_SOAK_SECONDS", seconds.to_string()).run()
        });
        progress.part("a TLS server as testssl.sh sees it", || {
            shell.cargo("test --release -p pelton-tls --test strangers -- --ignored").run()
        });
    }
    if choice.takes("children") {
        let words = "test --release -p pelton --test children -- crowds --nocapture";
        progress
            .part("ten thousand short child processes", || shell.cargo(words).env("PELTON_CHILDREN", "10000").run());
    }
    if choice.takes("jobs") {
        let words = "test --release -p pelton-jobs --test jobs -- chaos --nocapture";
        progress.part("a hundred thousand jobs through workers that are killed", || {
            shell.cargo(words).env("PELTON_SOAK_JOBS", "100000").run()
        });
    }
    if choice.takes("fuzz") {
        let each = u32::try_from(seconds / PER_FUZZ_TARGET).unwrap_or(u32::MAX);
        progress.part("codecs and protocols with generated input", || fuzz::run(shell, &fuzz::Choice::each_for(each)));
    }
    if choice.takes("ruby") {
        ruby::soak(shell, &mut progress);
    }
    if choice.takes("erlang") {
        progress.part("Erlang processes, contexts and applications that come and go", || erlang::soak(shell, seconds));
    }
    for python in pythons {
        python::soak(shell, python, seconds, &mut progress);
    }
    progress.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Choice, String> {
        Choice::parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn the_number_of_minutes_is_optional() {
        assert_eq!(parsed("").unwrap().minutes, DEFAULT_MINUTES);
        assert_eq!(parsed("90").unwrap().minutes.get(), 90);
        for wrong in ["0", "-1", "ten", "1.5"] {
            let error = parsed(wrong).unwrap_err();
            assert!(error.contains("minutes") && error.contains(&format!("{wrong:?}")), "{error}");
        }
        assert!(parsed("3 4").is_err());
    }

    #[test]
    fn parts_can_be_named() {
        let choice = parsed("--only python 3 --only http").unwrap();
        assert!(choice.takes("python") && choice.takes("http") && !choice.takes("fuzz"));
        assert_eq!(choice.minutes.get(), 3);
        assert!(NAMES.iter().all(|name| parsed("").unwrap().takes(name)));
        let error = parsed("--only pyhton").unwrap_err();
        assert!(error.contains("pyhton") && error.contains("connections, http"), "{error}");
        assert!(parsed("--only").is_err());
    }

    #[test]
    fn failures_are_reported_at_the_end_and_stop_nothing() {
        let shell = Shell::new();
        let mut progress = Progress::new(&shell, 3);
        assert_eq!(progress.part("first", || Ok(1)), Some(1));
        assert_eq!(progress.part("second", || Err::<(), _>(Failure::new("it broke"))), None);
        assert_eq!(progress.part("third", || Ok(3)), Some(3));
        let failure = progress.finish().unwrap_err().to_string();
        assert_eq!(failure, "second: it broke");
    }
}
