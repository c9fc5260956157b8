//! Prints progress and results.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use super::transfer::Outcome;
use crate::{logging, units};

/// What is printed, and what was received so far.
pub struct Report {
    json: bool,
    /// The progress line is shown.
    shows: bool,
    transfers: usize,
    finished: usize,
    received: u64,
    total: u64,
    began: Instant,
    is_drawn: bool,
}

impl Report {
    pub fn new(json: bool, quiet: bool, transfers: usize) -> Report {
        let shows = !json && !quiet && io::stderr().is_terminal();
        let began = Instant::now();
        Report { json, shows, transfers, finished: 0, received: 0, total: 0, began, is_drawn: false }
    }

    pub fn received(&mut self, bytes: u64, total: Option<u64>) {
        self.received += bytes;
        self.total += total.unwrap_or(0);
    }

    /// Draws the progress line.
    pub fn progress(&mut self) {
        if !self.shows {
            return;
        }
        const WIDTH: usize = 24;
        let part = if self.total > 0 { (self.received as f64 / self.total as f64).min(1.0) } else { 0.0 };
        let filled = (part * WIDTH as f64) as usize;
        let rate = self.received as f64 / self.began.elapsed().as_secs_f64().max(0.001);
        let line = format!(
            "[{}{}] {} of {}, {} of {} files, {}/s",
            "#".repeat(filled),
            " ".repeat(WIDTH - filled),
            size(self.received as f64),
            size(self.total as f64),
            self.finished,
            self.transfers,
            size(rate)
        );
        // Progress that cannot be shown is not worth an error.
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
        self.is_drawn = true;
    }

    /// Removes the progress line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    pub fn finished(&mut self, outcome: &Outcome) {
        self.finished += 1;
        self.clear();
        if self.json {
            return self.print(&json(outcome));
        }
        if let Some(error) = &outcome.error {
            return logging::fail(error);
        }
        match &outcome.path {
            Some(path) if path.as_os_str() == "-" => {}
            Some(path) => {
                let took = units::show_duration(outcome.took);
                self.print(&format!("{}: {} in {took}", path.display(), size(outcome.bytes as f64)));
            }
            None => {
                let mut text = format!(
                    "{} {}\n",
                    outcome.final_url.as_deref().unwrap_or(&outcome.url),
                    outcome.status.unwrap_or(0)
                );
                for (name, value) in &outcome.fields {
                    text += &format!("{name}: {}\n", value.escape_debug());
                }
                self.print(&text);
            }
        }
    }

    fn print(&self, line: &str) {
        // Nobody reads it any more.
        let _ = writeln!(io::stdout(), "{line}");
    }
}

fn json(outcome: &Outcome) -> String {
    let fields: Vec<_> = outcome.fields.iter().map(|(name, value)| serde_json::json!([name, value])).collect();
    serde_json::json!({
        "url": outcome.url,
        "final_url": outcome.final_url,
        "status": outcome.status,
        "fields": fields,
        "file": outcome.path.as_ref().map(|path| path.display().to_string()),
        "bytes": outcome.bytes,
        "sha256": outcome.sha256,
        "seconds": outcome.took.as_secs_f64(),
        "error": outcome.error,
        "code": outcome.code,
    })
    .to_string()
}

/// Formats a number of bytes.
fn size(bytes: f64) -> String {
    let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit as f64) {
        Some((unit, name)) => format!("{:.1} {name}", bytes / *unit as f64),
        None => format!("{bytes:.0} bytes"),
    }
}
