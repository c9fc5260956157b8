//! Prints jobs. Payloads and reasons come from anywhere, so control characters are escaped.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use pelton_jobs::JobInfo;
use serde_json::{Value, json};

use super::metrics::Queues;

/// Longer payloads are cut in lists.
const SHOWN: usize = 60;

/// Returns a line per job.
pub fn list(jobs: &[JobInfo]) -> String {
    let mut text = String::new();
    for job in jobs {
        let payload: String = job.payload.escape_ascii().to_string().chars().take(SHOWN).collect();
        let key = job.key.as_deref().map(|key| format!("  key {key}")).unwrap_or_default();
        let error = job.error.as_deref().map(|why| format!("  ({})", first_line(why))).unwrap_or_default();
        // Writing to memory cannot fail.
        let _ = writeln!(
            text,
            "{}  {}  {:<7}  attempt {}/{}{key}  {payload}{error}",
            job.id,
            time(job.enqueued),
            job.priority,
            job.attempt,
            job.attempts
        );
    }
    text
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().escape_debug().to_string()
}

fn time(millis: u64) -> String {
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(millis.min(1 << 45)))
}

/// Returns everything about a job, a line per property.
pub fn details(job: &JobInfo) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| _ = writeln!(text, "{name:<10} {value}");
    line("id", job.id.to_string());
    line("state", job.state.to_string());
    line("priority", job.priority.to_string());
    line("attempt", format!("{} of {}", job.attempt, job.attempts));
    line("enqueued", time(job.enqueued));
    if let Some(due) = job.due {
        line("due", time(due));
    }
    if let Some(key) = &job.key {
        line("key", key.escape_debug().to_string());
    }
    if let Some(worker) = &job.worker {
        line("worker", worker.escape_debug().to_string());
    }
    if job.fence > 0 {
        line("fence", job.fence.to_string());
    }
    if !job.progress.is_empty() {
        line("progress", job.progress.escape_ascii().to_string());
    }
    if let Some(error) = &job.error {
        line("error", error.escape_debug().to_string());
    }
    if let Some(result) = &job.result {
        line("result", result.escape_ascii().to_string());
    }
    line("payload", job.payload.escape_ascii().to_string());
    text
}

/// Returns a job as a line of JSON. Bytes that are not UTF-8 are replaced.
pub fn as_json(job: &JobInfo) -> String {
    let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes).into_owned());
    let document = json!({
        "id": job.id.as_str(),
        "state": job.state.name(),
        "priority": job.priority.name(),
        "attempt": job.attempt,
        "attempts": job.attempts,
        "enqueued": job.enqueued,
        "due": job.due,
        "key": job.key,
        "worker": job.worker,
        "fence": job.fence,
        "error": job.error,
        "progress": text(&job.progress),
        "result": job.result.as_deref().map(text),
        "payload": text(&job.payload),
    });
    format!("{document}\n")
}

/// Returns the statistics of queues, a line of JSON each.
pub fn queues_as_json(queues: &Queues) -> String {
    let line = |(name, stats): &(String, pelton_jobs::QueueStats)| {
        let document = json!({
            "queue": name,
            "ready": stats.ready,
            "blocked": stats.blocked,
            "delayed": stats.delayed,
            "running": stats.running,
            "dead": stats.dead,
            "oldest_ms": stats.oldest,
            "enqueued": stats.enqueued,
            "done": stats.done,
            "failed": stats.failed,
            "paused": stats.limits.paused,
        });
        format!("{document}\n")
    };
    queues.iter().map(line).collect()
}
