//! The counters of all workers, in Prometheus's text format.

use std::fmt::{self, Write};

use pelton::{Stats, Targets};
use pelton_http::ServerStats;
use pelton_tls::Failure;

use super::observe::{BUCKETS, Counts};
use crate::proxy::admin::target_label;
use crate::service::reports::of_reactors;

/// The report of one worker.
pub struct Report {
    pub reactor: Stats,
    pub server: ServerStats,
    pub counts: Counts,
    pub connections: usize,
}

/// Renders all metrics, by worker.
pub fn render(
    reports: &[(usize, Report)],
    tls: Option<&pelton_tls::Server>,
    targets: Option<&Targets>,
    log_lines_dropped: Option<u64>,
) -> String {
    let mut text = String::new();
    write_http(&mut text, reports, log_lines_dropped).expect("writing to a String cannot fail");
    if let Some(tls) = tls {
        write_tls(&mut text, tls).expect("writing to a String cannot fail");
    }
    if let Some(targets) = targets {
        write_targets(&mut text, targets).expect("writing to a String cannot fail");
    }
    text.push_str(&of_reactors(reports.iter().map(|(worker, report)| (*worker, &report.reactor))));
    text
}

type Value = fn(&Report) -> u64;

fn write_http(text: &mut String, reports: &[(usize, Report)], log_lines_dropped: Option<u64>) -> fmt::Result {
    head(text, "pelton_http_responses_total", "counter", "Responses, by the first digit of their status.")?;
    for (worker, report) in reports {
        for (class, count) in (2..).zip(report.counts.answered) {
            writeln!(text, "pelton_http_responses_total{{worker=\"{worker}\",class=\"{class}xx\"}} {count}")?;
        }
    }
    let families: [(&str, &str, &str, Value); 8] = [
        ("requests_total", "counter", "Requests received.", |report| report.server.requests),
        ("unanswered_total", "counter", "Requests whose client disconnected before the response.", |report| {
            report.counts.unanswered
        }),
        ("refused_total", "counter", "Input refused before it was a request.", |report| report.server.refused),
        ("requests_in_flight", "gauge", "Requests in progress.", |report| report.counts.in_flight),
        ("response_body_bytes_total", "counter", "Bytes of response bodies.", |report| report.counts.bytes),
        ("connections", "gauge", "Open connections.", |report| report.connections as u64),
        ("connections_total", "counter", "Connections accepted.", |report| report.server.accepted),
        ("connections_refused_total", "counter", "Connections refused because of a limit.", |report| {
            report.server.turned_away
        }),
    ];
    for (name, kind, help, value) in families {
        head(text, &format!("pelton_http_{name}"), kind, help)?;
        for (worker, report) in reports {
            writeln!(text, "pelton_http_{name}{{worker=\"{worker}\"}} {}", value(report))?;
        }
    }
    head(text, "pelton_http_request_seconds", "histogram", "Time from a request's head to its response.")?;
    for (worker, Report { counts, .. }) in reports {
        let mut so_far = 0;
        for (bound, count) in BUCKETS.iter().zip(counts.times) {
            so_far += count;
            let bound = bound.as_secs_f64();
            writeln!(text, "pelton_http_request_seconds_bucket{{worker=\"{worker}\",le=\"{bound}\"}} {so_far}")?;
        }
        let all: u64 = counts.times.iter().sum();
        writeln!(text, "pelton_http_request_seconds_bucket{{worker=\"{worker}\",le=\"+Inf\"}} {all}")?;
        let sum = counts.time.as_secs_f64();
        writeln!(text, "pelton_http_request_seconds_sum{{worker=\"{worker}\"}} {sum}")?;
        writeln!(text, "pelton_http_request_seconds_count{{worker=\"{worker}\"}} {all}")?;
    }
    if let Some(dropped) = log_lines_dropped {
        head(text, "pelton_log_lines_dropped_total", "counter", "Access log lines that were dropped.")?;
        writeln!(text, "pelton_log_lines_dropped_total {dropped}")?;
    }
    Ok(())
}

fn write_tls(text: &mut String, tls: &pelton_tls::Server) -> fmt::Result {
    let stats = tls.stats();
    head(text, "pelton_tls_handshakes_total", "counter", "Completed TLS handshakes, including resumed ones.")?;
    writeln!(text, "pelton_tls_handshakes_total {}", stats.completed)?;
    head(text, "pelton_tls_resumed_total", "counter", "TLS handshakes that resumed a session.")?;
    writeln!(text, "pelton_tls_resumed_total {}", stats.resumed)?;
    head(text, "pelton_tls_handshakes_in_flight", "gauge", "TLS handshakes in progress.")?;
    writeln!(text, "pelton_tls_handshakes_in_flight {}", stats.in_flight)?;
    head(text, "pelton_tls_handshakes_failed_total", "counter", "TLS handshakes that failed.")?;
    for how in Failure::ALL {
        writeln!(text, "pelton_tls_handshakes_failed_total{{reason=\"{}\"}} {}", how.name(), stats.failed(how))?;
    }
    head(text, "pelton_tls_certificate_expiry_days", "gauge", "Days until a certificate expires.")?;
    for certificate in tls.certificates().iter() {
        // Names in certificates have no quotes or backslashes: webpki has checked them.
        let name = certificate.names.first().map_or("", String::as_str);
        let days = certificate.time_left().as_secs_f64() / 86_400.0;
        let fingerprint = &certificate.fingerprint.to_string()[..16];
        writeln!(
            text,
            "pelton_tls_certificate_expiry_days{{name=\"{name}\",fingerprint=\"{fingerprint}\"}} {days:.2}"
        )?;
    }
    Ok(())
}

fn write_targets(text: &mut String, targets: &Targets) -> fmt::Result {
    type OfTarget = fn(&Targets, usize) -> u64;
    let families: [(&str, &str, &str, OfTarget); 4] = [
        ("up", "gauge", "Whether a target is used.", |targets, number| u64::from(targets.is_up(number))),
        ("requests", "gauge", "Requests that a target has in progress.", |targets, number| {
            targets.all()[number].busy() as u64
        }),
        ("responses_total", "counter", "Responses of a target.", |targets, number| targets.all()[number].successes()),
        ("failures_total", "counter", "Requests that a target did not answer completely.", |targets, number| {
            targets.all()[number].failures()
        }),
    ];
    for (name, kind, help, value) in families {
        head(text, &format!("pelton_http_target_{name}"), kind, help)?;
        for (number, target) in targets.all().iter().enumerate() {
            writeln!(text, "pelton_http_target_{name}{} {}", target_label(target), value(targets, number))?;
        }
    }
    Ok(())
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_of_a_report_is_described_once() {
        let report = || Report {
            reactor: pelton::Reactor::new().unwrap().stats(),
            server: ServerStats::default(),
            counts: Counts::default(),
            connections: 1,
        };
        let text = render(&[(0, report()), (1, report())], None, None, Some(3));
        let mut described: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        let all = described.len();
        described.sort_unstable();
        described.dedup();
        assert_eq!(described.len(), all);
        assert!(text.contains("pelton_turns_total{worker=\"1\"} 0\n"), "{text}");
        assert!(text.contains("pelton_http_connections{worker=\"1\"} 1\n"), "{text}");
        assert!(text.contains("pelton_log_lines_dropped_total 3\n"), "{text}");
    }
}
