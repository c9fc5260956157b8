//! Counts with callgrind the instructions that our module executes per callback, task, watched descriptor and echoed message. Those
//! of the interpreter and the C library are left out: they depend on how these were built.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::callgrind::TOOL;

/// The function in which a loop runs. Callgrind counts while it runs, and writes a profile after it.
const RUN: &str = "pelton_asyncio::event_loop::run::until_stopped";

/// The rows, relative to this workspace.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/python/counted.py");

/// Part of the name of our module's file.
const MODULE: &str = "/_pelton";

/// What to count.
#[derive(Args, Clone, Debug)]
pub struct Counting {
    /// Python interpreter
    #[arg(long, value_name = "PROGRAM")]
    python: PathBuf,

    /// Directory to import pelton from
    #[arg(long, value_name = "DIR")]
    package: PathBuf,

    /// Fails if the module executes more than N instructions per operation of this row
    #[arg(long, value_name = "ROW=N", value_parser = limit)]
    at_most: Vec<(String, u64)>,
}

fn limit(text: &str) -> Result<(String, u64)> {
    let (row, limit) = text.split_once('=').context("it is not of the form ROW=N")?;
    Ok((row.to_owned(), limit.parse()?))
}

/// Prints the instructions of our module per operation, one line per row: the name and the number.
pub fn print(counting: &Counting) -> Result<()> {
    let directory = Directory::new()?;
    let output = Command::new(TOOL)
        .args(["--tool=callgrind", "--quiet", "--log-file=/dev/null", "--collect-atstart=no"])
        .args([format!("--toggle-collect={RUN}"), format!("--dump-after={RUN}")])
        .arg(format!("--callgrind-out-file={}", directory.profile().display()))
        .arg(&counting.python)
        .arg(PROGRAM)
        .env("PYTHONPATH", &counting.package)
        .env("PYTHONHASHSEED", "0")
        .env_remove("PELTON_ENGINE")
        .stderr(Stdio::inherit())
        .output()
        .context("run Python under valgrind")?;
    ensure!(output.status.success(), "{PROGRAM} failed under valgrind: {}", output.status);
    let mut too_many = Vec::new();
    let mut rows = Vec::new();
    for (line, part) in String::from_utf8(output.stdout)?.lines().zip(1..) {
        let (row, count) = line.split_once(' ').with_context(|| format!("a row printed {line:?}"))?;
        let profile = directory.profile().with_extension(part.to_string());
        let text = fs::read_to_string(&profile).with_context(|| format!("read {}", profile.display()))?;
        let each = executed_in(MODULE, &text) as f64 / count.parse::<f64>()?;
        ensure!(each > 0.0, "callgrind counted nothing in {row}");
        println!("{row} {each:.0}");
        rows.push(row.to_owned());
        if let Some((_, most)) = counting.at_most.iter().find(|(name, most)| name == row && each > *most as f64) {
            too_many.push(format!("{each:.0} instructions per operation of {row}, more than the limit of {most}"));
        }
    }
    if let Some((row, _)) = counting.at_most.iter().find(|(row, _)| !rows.contains(row)) {
        bail!("there is no row {row:?}");
    }
    if too_many.is_empty() { Ok(()) } else { bail!("{}", too_many.join("; ")) }
}

/// A temporary directory for profiles, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Directory> {
        let name = format!("pelton-bench-{}-{:x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Directory(path))
    }

    /// The last profile. Those before have a number behind the name.
    fn profile(&self) -> PathBuf {
        self.0.join("profile.0").with_extension("")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // It is temporary, and the system removes it in the end.
        let _ = fs::remove_dir_all(Path::new(&self.0));
    }
}

/// Returns the instructions executed in object files whose path contains `name`, without the functions that they call.
fn executed_in(name: &str, profile: &str) -> u64 {
    let mut names = HashMap::new();
    let (mut ours, mut after_call, mut total) = (false, false, 0);
    for line in profile.lines() {
        if let Some(object) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
            // The first mention of an object has a number and its name, further ones only the number.
            let (number, path) = object.split_once(' ').unwrap_or((object, ""));
            let is_ours = *names.entry(number).or_insert_with(|| path.contains(name));
            if line.starts_with("ob=") {
                ours = is_ours;
            }
        } else if line.starts_with("calls=") {
            after_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            // The line after a call has the cost of what was called.
            let cost = line.split_ascii_whitespace().nth(1).and_then(|cost| cost.parse::<u64>().ok());
            if ours && !std::mem::take(&mut after_call) {
                total += cost.unwrap_or(0);
            }
            after_call = false;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "\
events: Ir
ob=(1) /usr/lib/libpython3.12.so
fn=(1) call
10 100
cob=(2) /package/pelton/_pelton.so
cfn=(2) turn
calls=1 20
+1 5000
ob=(2)
fn=(2)
20 7
+3 30
cob=(1)
cfn=(1)
calls=2 10
* 900
-2 5
totals: 142
";

    #[test]
    fn only_the_instructions_of_the_module_itself_count() {
        assert_eq!(executed_in("/_pelton", PROFILE), 42);
        assert_eq!(executed_in("libpython", PROFILE), 100);
        assert_eq!(executed_in("nothing", PROFILE), 0);
    }

    #[test]
    fn a_limit_names_its_row() {
        assert_eq!(limit("tasks=1200").unwrap(), ("tasks".to_owned(), 1200));
        assert!(limit("tasks").is_err() && limit("tasks=many").is_err());
    }
}
