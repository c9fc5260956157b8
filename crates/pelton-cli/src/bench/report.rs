//! The results of a load, as text and as JSON.

use std::fmt::{self, Write};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::load::Plan;
use super::tally::{Errors, Tally};
use crate::units::{show_bytes, show_duration};

/// Percentiles of the latency distribution that are reported.
const PERCENTILES: [f64; 7] = [50.0, 75.0, 90.0, 99.0, 99.9, 99.99, 100.0];

/// Number of bars in the histogram, and their width.
const BARS: usize = 14;
const BAR_WIDTH: usize = 44;

/// Above this share of its threads' time, the load generator itself may be the bottleneck.
const BUSY: f64 = 0.9;

#[derive(Serialize)]
pub struct Report {
    url: String,
    address: String,
    threads: usize,
    connections: usize,
    pipeline: usize,
    keep_alive: bool,
    rate: Option<f64>,
    seconds: f64,
    sent: u64,
    completed: u64,
    unsent: u64,
    requests_per_second: f64,
    received_bytes: u64,
    received_bytes_per_second: f64,
    body_bytes: u64,
    connections_made: u64,
    status: Classes,
    errors: Errors,
    latency_seconds: Latency,
    /// Processor time of the load generator, as a share of what its threads could use.
    own_cpu: f64,
    first_fault: Option<String>,
    #[serde(skip)]
    histogram: Histogram<u64>,
}

#[derive(Serialize)]
struct Classes {
    #[serde(rename = "2xx")]
    success: u64,
    #[serde(rename = "3xx")]
    redirect: u64,
    #[serde(rename = "4xx")]
    client: u64,
    #[serde(rename = "5xx")]
    server: u64,
}

#[derive(Serialize)]
struct Latency {
    /// Counted from when a request was due. At a fixed rate that may be earlier than when it was sent.
    corrected: bool,
    mean: f64,
    deviation: f64,
    min: f64,
    percentiles: Vec<(f64, f64)>,
}

fn seconds(nanoseconds: f64) -> f64 {
    nanoseconds / 1e9
}

impl Report {
    pub fn new(url: &str, plan: &Plan, tally: Tally, took: Duration, cpu: Duration) -> Report {
        let per_second = |count: u64| count as f64 / took.as_secs_f64().max(1e-9);
        let latency = &tally.latency;
        let at = |percentile: f64| seconds(latency.value_at_percentile(percentile) as f64);
        let [success, redirect, client, server] = tally.classes;
        Report {
            url: url.to_owned(),
            address: plan.address.to_string(),
            threads: plan.threads,
            connections: plan.connections,
            pipeline: plan.pipeline,
            keep_alive: plan.keep_alive,
            rate: plan.rate,
            seconds: took.as_secs_f64(),
            sent: tally.sent,
            completed: tally.completed,
            unsent: tally.unsent,
            requests_per_second: per_second(tally.completed),
            received_bytes: tally.received_bytes,
            received_bytes_per_second: per_second(tally.received_bytes),
            body_bytes: tally.body_bytes,
            connections_made: tally.connections,
            status: Classes { success, redirect, client, server },
            errors: tally.errors,
            latency_seconds: Latency {
                corrected: plan.rate.is_some(),
                mean: seconds(latency.mean()),
                deviation: seconds(latency.stdev()),
                min: seconds(latency.min() as f64),
                percentiles: PERCENTILES.map(|percentile| (percentile, at(percentile))).to_vec(),
            },
            own_cpu: cpu.as_secs_f64() / took.as_secs_f64().max(1e-9) / plan.threads as f64,
            first_fault: tally.first_fault,
            histogram: tally.latency,
        }
    }

    /// Returns whether any request was answered.
    pub fn is_success(&self) -> bool {
        self.completed > 0
    }

    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a report is valid JSON");
        text.push('\n');
        text
    }

    pub fn to_text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("writing to a String cannot fail");
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        writeln!(text, "{} requests in {:.2} s, {} received", self.completed, self.seconds, {
            show_bytes(self.received_bytes as f64)
        })?;
        writeln!(text, "  {:.0} requests/s, {}/s", self.requests_per_second, {
            show_bytes(self.received_bytes_per_second)
        })?;
        if self.completed > 0 {
            self.write_latency(text)?;
        }
        self.write_errors(text)?;
        if self.own_cpu > BUSY {
            writeln!(
                text,
                "\nThe load generator used {:.0} % of its {} threads: it may be the bottleneck. Try more threads (-t).",
                self.own_cpu * 100.0,
                self.threads
            )?;
        } else {
            writeln!(text, "\nThe load generator used {:.0} % of its threads.", self.own_cpu * 100.0)?;
        }
        Ok(())
    }

    fn write_latency(&self, text: &mut String) -> fmt::Result {
        let show = |seconds: f64| show_duration(Duration::from_secs_f64(seconds));
        let latency = &self.latency_seconds;
        let from = if latency.corrected { "when they were due" } else { "when they were sent" };
        writeln!(text, "\nLatency, from {from}")?;
        writeln!(
            text,
            "  mean {}, standard deviation {}, min {}",
            show(latency.mean),
            show(latency.deviation),
            show(latency.min)
        )?;
        for (percentile, value) in &latency.percentiles {
            let name = if *percentile == 100.0 { "max".to_owned() } else { format!("p{percentile}") };
            writeln!(text, "  {name:<7}{:>10}", show(*value))?;
        }
        self.write_bars(text)
    }

    /// Draws how many requests took how long, on a logarithmic scale.
    fn write_bars(&self, text: &mut String) -> fmt::Result {
        let histogram = &self.histogram;
        let least = histogram.min().max(1) as f64;
        let most = histogram.value_at_percentile(99.99).max(2) as f64;
        let step = (most / least).powf(1.0 / BARS as f64).max(1.05);
        let mut rows = Vec::new();
        let mut below = 0;
        let mut bound = least;
        while below < most as u64 {
            bound *= step;
            let upper = (bound as u64).max(below + 1);
            rows.push((upper, histogram.count_between(below + 1, upper)));
            below = upper;
        }
        let highest = rows.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
        writeln!(text)?;
        for (upper, count) in rows {
            let bar = "█".repeat((count as f64 / highest as f64 * BAR_WIDTH as f64).round() as usize);
            writeln!(text, "  {:>10} │{bar:<BAR_WIDTH$} {count}", show_duration(Duration::from_nanos(upper)))?;
        }
        Ok(())
    }

    fn write_errors(&self, text: &mut String) -> fmt::Result {
        let Errors { connect, reset, timeout, malformed, status } = self.errors;
        let kinds = [
            (connect, "connections failed to open"),
            (reset, "requests were cut off: the connection was closed or reset"),
            (timeout, "requests took too long"),
            (malformed, "responses were malformed"),
            (status, "responses had a status of 400 or more"),
            (self.unsent, "requests were due but could not be sent"),
        ];
        if kinds.iter().any(|(count, _)| *count > 0) {
            writeln!(text, "\nErrors")?;
        }
        for (count, what) in kinds.iter().filter(|(count, _)| *count > 0) {
            writeln!(text, "  {count} {what}")?;
        }
        if let Some(fault) = &self.first_fault {
            writeln!(text, "  first error: {fault}")?;
        }
        Ok(())
    }
}
