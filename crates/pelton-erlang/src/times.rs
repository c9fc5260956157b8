//! How long native functions take on schedulers, for benchmarks and tests.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

static MEASURED: AtomicBool = AtomicBool::new(false);

/// Counts by powers of two: up to 1 ns, 2 ns, 4 ns and so on.
static COUNTS: [AtomicU64; 40] = [const { AtomicU64::new(0) }; 40];

/// Begins or ends measuring, and forgets what was measured.
pub(crate) fn measure(on: bool) {
    COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    MEASURED.store(on, Ordering::Relaxed);
}

/// Returns upper bounds in nanoseconds and how many calls took at most that long, but longer than the bound before.
pub(crate) fn counts() -> Vec<(u64, u64)> {
    let counts = COUNTS.iter().enumerate().map(|(power, count)| (1_u64 << power, count.load(Ordering::Relaxed)));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Measures the time until it is dropped.
pub(crate) struct Timed(Option<Instant>);

impl Timed {
    #[inline]
    pub(crate) fn begin() -> Timed {
        Timed(MEASURED.load(Ordering::Relaxed).then(Instant::now))
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        if let Some(begun) = self.0 {
            let power = begun.elapsed().as_nanos().max(1).next_power_of_two().trailing_zeros() as usize;
            COUNTS[power.min(COUNTS.len() - 1)].fetch_add(1, Ordering::Relaxed);
        }
    }
}
