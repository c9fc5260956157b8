//! Counters of a running load.

use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest latency recorded. Longer ones count as this one.
const LONGEST: Duration = Duration::from_secs(300);

/// Latencies keep three significant digits.
const DIGITS: u8 = 3;

/// Counts of one thread, or of all.
pub struct Tally {
    /// The latencies, in nanoseconds.
    pub latency: Histogram<u64>,
    pub sent: u64,
    pub completed: u64,
    /// Responses, by the first digit of the status, from 2 to 5.
    pub classes: [u64; 4],
    /// Bytes of bodies.
    pub body_bytes: u64,
    /// All bytes.
    pub received_bytes: u64,
    pub connections: u64,
    pub errors: Errors,
    /// Requests that were due, at a fixed rate, but could not be sent.
    pub unsent: u64,
    /// What was wrong with the first malformed response, or why the first connection failed.
    pub first_fault: Option<String>,
}

/// Failures by kind. All but the first count requests.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Errors {
    /// Connections that failed to open.
    pub connect: u64,
    /// The connection was closed or reset before the response was complete.
    pub reset: u64,
    /// The response was not complete in time.
    pub timeout: u64,
    /// The server sent something that is not a valid response.
    pub malformed: u64,
    /// Responses with a status of 400 or more; they also count as completed.
    pub status: u64,
}

impl Tally {
    pub fn new() -> Tally {
        let longest = LONGEST.as_nanos() as u64;
        Tally {
            latency: Histogram::new_with_bounds(1, longest, DIGITS).expect("the bounds are in order"),
            sent: 0,
            completed: 0,
            classes: [0; 4],
            body_bytes: 0,
            received_bytes: 0,
            connections: 0,
            errors: Errors::default(),
            unsent: 0,
            first_fault: None,
        }
    }

    pub fn answered(&mut self, status: u16, body: u64, latency: Duration) {
        self.completed += 1;
        self.body_bytes += body;
        self.classes[usize::from(status / 100).clamp(2, 5) - 2] += 1;
        self.errors.status += u64::from(status >= 400);
        self.latency.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: Tally) {
        self.latency.add(&other.latency).expect("both have the same bounds");
        self.sent += other.sent;
        self.completed += other.completed;
        for (class, more) in self.classes.iter_mut().zip(other.classes) {
            *class += more;
        }
        self.body_bytes += other.body_bytes;
        self.received_bytes += other.received_bytes;
        self.connections += other.connections;
        let errors = other.errors;
        self.errors.connect += errors.connect;
        self.errors.reset += errors.reset;
        self.errors.timeout += errors.timeout;
        self.errors.malformed += errors.malformed;
        self.errors.status += errors.status;
        self.unsent += other.unsent;
        self.first_fault = self.first_fault.take().or(other.first_fault);
    }
}
