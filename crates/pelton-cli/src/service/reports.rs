//! What the workers report, for `/metrics`.

use std::time::Duration;

use pelton::{Handle, Reactor, Stats, task};

/// A worker that does not report within this time is left out.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks all workers at once. Returns the answers with the number of their worker.
pub async fn ask<T: Send + 'static>(workers: &[Handle], question: fn(&mut Reactor) -> Option<T>) -> Vec<(usize, T)> {
    let replies: Vec<_> = workers.iter().map(|worker| worker.post_with_reply(question)).collect();
    let mut reports = Vec::new();
    for (number, reply) in replies.into_iter().enumerate() {
        match task::timeout(PATIENCE, reply).await {
            Ok(Ok(Some(report))) => reports.push((number, report)),
            _ => tracing::warn!(worker = number, "a worker did not report"),
        }
    }
    reports
}

/// Renders the statistics of the workers' reactors.
pub fn of_reactors<'a>(workers: impl Iterator<Item = (usize, &'a Stats)>) -> String {
    let texts: Vec<(usize, String)> = workers.map(|(worker, stats)| (worker, stats.to_prometheus())).collect();
    merge(&texts)
}

/// Merges texts that have the same families in the same order: each family is described once, followed by the samples of all
/// workers, labelled with the worker.
fn merge(texts: &[(usize, String)]) -> String {
    struct Family<'a> {
        comments: Vec<&'a str>,
        samples: Vec<String>,
    }
    let mut families: Vec<Family<'_>> = Vec::new();
    for (nth, (worker, text)) in texts.iter().enumerate() {
        let mut at = None;
        for line in text.lines().filter(|line| !line.is_empty()) {
            if line.starts_with("# HELP ") {
                let next = families.iter().position(|family| family.comments.first() == Some(&line));
                at = Some(next.unwrap_or_else(|| {
                    families.push(Family { comments: vec![line], samples: Vec::new() });
                    families.len() - 1
                }));
                continue;
            }
            let Some(family) = at.and_then(|at| families.get_mut(at)) else { continue };
            if line.starts_with('#') {
                if nth == 0 || !family.comments.contains(&line) {
                    family.comments.push(line);
                }
            } else {
                family.samples.push(labelled(line, *worker));
            }
        }
    }
    let mut merged = String::new();
    for Family { comments, samples } in families {
        for line in comments.into_iter().chain(samples.iter().map(String::as_str)) {
            merged.push_str(line);
            merged.push('\n');
        }
    }
    merged
}

/// Returns a sample with one more label.
fn labelled(sample: &str, worker: usize) -> String {
    let name_ends = sample.find(['{', ' ']).unwrap_or(sample.len());
    let (name, rest) = sample.split_at(name_ends);
    match rest.strip_prefix('{') {
        Some(labels) => format!("{name}{{worker=\"{worker}\",{labels}"),
        None => format!("{name}{{worker=\"{worker}\"}}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_described_once_and_samples_name_their_worker() {
        let text = |value| {
            format!(
                "# HELP a_total One.\n# TYPE a_total counter\na_total {value}\n# HELP b Two.\n# TYPE b gauge\n\
                 b{{kind=\"x\"}} {value}\nb{{kind=\"y\"}} 0\n"
            )
        };
        let merged = merge(&[(0, text(7)), (3, text(8))]);
        let expected = "# HELP a_total One.\n# TYPE a_total counter\na_total{worker=\"0\"} 7\na_total{worker=\"3\"} 8\n\
                        # HELP b Two.\n# TYPE b gauge\nb{worker=\"0\",kind=\"x\"} 7\nb{worker=\"0\",kind=\"y\"} 0\n\
                        b{worker=\"3\",kind=\"x\"} 8\nb{worker=\"3\",kind=\"y\"} 0\n";
        assert_eq!(merged, expected);
    }
}
