//! `pelton-bench`: pelton against its peers.
//!
//! `harness`, `mark`, `machine`, `report`, `results` and `plot` know nothing of what is measured; each benchmark is a
//! module of contests next to them and a subcommand here.

#[cfg(not(target_os = "linux"))]
compile_error!("the benchmarks compare with bare eventfd and epoll loops, which only Linux has");

mod harness;
mod machine;
mod mark;
mod plot;
mod report;
mod results;
mod wheel;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};

use harness::Standing;

/// Pelton measured against its peers.
///
/// Every benchmark runs its contenders in many short windows, interleaved (A, B, C, A, B, C, ...), after one round that
/// does not count. The table gives the best and the median window, processor time per operation, and the ratio to the
/// best contender that is not pelton in the same run. Pelton's rows are held to a stated mark: `win`, `tie` (within
/// 15 % of the mark) or `lose`. A contender that did not do all of its work is an error.
#[derive(Parser)]
#[command(name = "pelton-bench", version)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// The wheel alone: timers, posts from other threads, wake-ups, idle turns, the cost of statistics.
    ///
    /// Examples:
    ///   pelton-bench wheel                              everything, a few minutes
    ///   pelton-bench wheel --quick                      does it all build and run? a few seconds
    ///   pelton-bench wheel --only posts --windows 30    one part, more carefully
    #[command(verbatim_doc_comment)]
    Wheel {
        #[command(flatten)]
        output: Output,
        #[command(flatten)]
        load: wheel::Load,
    },
}

#[derive(Args)]
struct Output {
    /// Where to write the JSON and the SVG [default: bench/results; with --quick, bench/target/quick]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn main() -> Result<()> {
    match Cli::parse().bench {
        Bench::Wheel { output, load } => {
            // A smoke run must never replace a measurement.
            let default = if load.quick { "target/quick" } else { "results" };
            let out = output.out.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(default));
            let machine = machine::Machine::this();
            let standings = wheel::run(&load)?;
            publish("wheel", "Pelton's wheel against its peers", &out, machine, &standings)
        }
    }
}

/// Prints the table and leaves `<bench>.json` and `<bench>.svg` in `out`.
fn publish(bench: &str, title: &str, out: &Path, machine: machine::Machine, standings: &[Standing]) -> Result<()> {
    let commit = machine::commit(Path::new(env!("CARGO_MANIFEST_DIR")));
    let results = results::Results::new(bench, commit, machine, standings);
    std::fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let write = |extension: &str, text: String| {
        let path = out.join(bench).with_extension(extension);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    };
    write("json", results.to_json()?)?;
    write("svg", plot::svg(title, &results.caption(), standings))?;
    print!("{}", report::table(standings));
    println!("\n{}", results.caption());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
