//! The JSON format of results, the same for every benchmark.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::harness::{self, Standing};
use crate::machine::Machine;

/// Incremented whenever a field changes its meaning.
const SCHEMA: u32 = 1;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    schema: u32,
    bench: String,
    commit: Option<String>,
    machine: Machine,
    rows: Vec<Row>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Row {
    case: String,
    contender: String,
    version: String,
    unit: String,
    best: f64,
    median: f64,
    windows: usize,
    /// Per operation, of the cheapest window.
    cpu_us: Option<f64>,
    /// Per operation; null if not counted.
    syscalls: Option<f64>,
}

impl Results {
    pub fn new(bench: &str, commit: Option<String>, machine: Machine, standings: &[Standing]) -> Self {
        let rows = standings.iter().flat_map(|standing| standing.rows.iter().map(|row| Row::new(standing, row)));
        Self { schema: SCHEMA, bench: bench.to_owned(), commit, machine, rows: rows.collect() }
    }

    pub fn to_json(&self) -> Result<String> {
        let json = serde_json::to_string_pretty(self).context("turn the results into JSON")?;
        Ok(json + "\n")
    }

    /// Describes the origin of the numbers, in one line.
    pub fn caption(&self) -> String {
        let Machine { cores, cpu, kernel } = &self.machine;
        let windows = self.rows.iter().map(|row| row.windows).max().unwrap_or(0);
        // Ten digits are enough to identify a commit; `-dirty` has to stay.
        let commit = self.commit.as_deref().map_or("no commit".into(), |commit| {
            let (hash, rest) = commit.split_once('-').map_or((commit, ""), |(hash, _)| (hash, "-dirty"));
            format!("commit {}{rest}", &hash[..hash.len().min(10)])
        });
        format!("{cores} cores, {cpu}, {kernel}; {windows} interleaved windows; {commit}")
    }
}

impl Row {
    fn new(standing: &Standing, row: &harness::Row) -> Self {
        Self {
            case: standing.case.name.clone(),
            contender: row.contender.to_owned(),
            version: row.version.clone(),
            unit: standing.case.unit.to_owned(),
            best: rounded(row.best),
            median: rounded(row.median),
            windows: row.windows,
            cpu_us: row.cpu_us.map(rounded),
            syscalls: row.syscalls.map(rounded),
        }
    }
}

/// Rounds to five significant digits: more would be noise, and would clutter every diff between two files.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Better, Case, Side};

    #[test]
    fn json_has_the_agreed_fields_and_reads_back() {
        let row = harness::Row {
            contender: "tokio mpsc",
            version: "1.0.0".into(),
            side: Side::Peer,
            best: 7.123456789,
            median: 6.5,
            windows: 9,
            cpu_us: Some(0.25),
            syscalls: None,
        };
        let standing = Standing { case: Case::new("posts, 1 thread", "M/s", Better::Higher), rows: vec![row] };
        let machine = Machine { cores: 2, cpu: "Fast 9000".into(), kernel: "Linux 6.1".into() };
        let results = Results::new("wheel", Some("0123456789abcdef-dirty".into()), machine, &[standing]);
        assert_eq!(results.caption(), "2 cores, Fast 9000, Linux 6.1; 9 interleaved windows; commit 0123456789-dirty");

        let json = results.to_json().unwrap();
        assert_eq!(serde_json::from_str::<Results>(&json).unwrap(), results);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["schema"], 1);
        assert_eq!(value["machine"]["cores"], 2);
        assert_eq!(
            value["rows"][0],
            serde_json::json!({
                "case": "posts, 1 thread", "contender": "tokio mpsc", "version": "1.0.0", "unit": "M/s",
                "best": 7.1235, "median": 6.5, "windows": 9, "cpu_us": 0.25, "syscalls": null
            })
        );
    }
}
