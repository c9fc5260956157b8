//! What the descriptors of this process are for.
//!
//! The system allows so many and no more. If connections took all of them, no file could be opened, nobody could be told that the server
//! is full, and the admin address would not answer. So each of these has its share, and connections get the rest.

/// What control and handing over need beside their listeners: signals, the socket pair and the pipe of a new process, its log.
const CONTROL: u64 = 8;

/// Clients of the admin address, at most.
const ADMIN: u64 = 16;

/// What a worker has beside its listeners: its poller, its loopbreaker, a spare one, and the directory that it serves.
const WORKER: u64 = 4;

/// One look-up on each of the four threads of a worker's file lane: the directory, the file, and its three compressed forms.
const LOOK_UPS: u64 = 4 * 5;

/// Files that a worker holds open, at most.
const OPEN_FILES: u64 = 256;

/// Newcomers of a worker that are told that the server is full: as many as it accepts in one turn, and as many that linger.
const NEWCOMERS: u64 = 2 * 64;

/// With fewer than this for clients and files, it is no server.
const LEAST: u64 = 12;

/// Whom the descriptors are for, besides connections.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// How many connections were asked for.
    pub connections: u64,
    pub workers: u64,
    /// Listening sockets, of all places together.
    pub listeners: u64,
    /// Whether files are served.
    pub files: bool,
}

/// How many there are for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Connections, of all workers together.
    pub connections: usize,
    /// Connections of each worker that were answered with 503 and linger.
    pub turned_away: usize,
    /// Files that each worker holds open.
    pub open_files: usize,
    /// Connections of the admin address.
    pub admin: usize,
}

impl Budget {
    /// Divides `limit` descriptors, of which so many are `open` already. Fails with an explanation if there are not enough.
    pub fn new(limit: u64, open: u64, needs: Needs) -> Result<Budget, String> {
        let Needs { connections, workers, listeners, files } = needs;
        // Each listener has a copy on a worker, and one more when it is passed on to a new process.
        let fixed = open + CONTROL + workers * WORKER + listeners.max(workers) + listeners;
        let free = limit.saturating_sub(fixed);
        if free < LEAST {
            let least = fixed + LEAST;
            return Err(format!(
                "this process may have {limit} descriptors, but needs at least {least} with these options; raise the \
                 limit (ulimit -n, or LimitNOFILE= in a systemd unit)"
            ));
        }
        let admin = ADMIN.min(free / 6);
        let newcomers = (workers * NEWCOMERS).min(free / 4);
        let for_files = if files { (workers * (LOOK_UPS + OPEN_FILES)).min(free / 4) } else { 0 };
        let left = free - admin - newcomers - for_files;
        let each = |of_all: u64| of_all / workers;
        Ok(Budget {
            connections: number(connections.min(left)),
            turned_away: number(each(newcomers) / 2).max(1),
            open_files: number(each(for_files).saturating_sub(LOOK_UPS).clamp(1, OPEN_FILES)),
            admin: number(admin),
        })
    }
}

fn number(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// How many descriptors are open.
pub fn open() -> u64 {
    // The one that this takes counts too, which does no harm.
    std::fs::read_dir("/dev/fd").map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs = Needs { connections: 16_384, workers: 1, listeners: 2, files: true };

    #[test]
    fn connections_get_what_is_left() {
        let budget = Budget::new(1024, 12, NEEDS).unwrap();
        assert_eq!((budget.turned_away, budget.admin), (64, 16));
        assert!((600..800).contains(&budget.connections) && budget.open_files > 200, "{budget:?}");
        let budget = Budget::new(1 << 20, 12, NEEDS).unwrap();
        assert_eq!(budget, Budget { connections: 16_384, turned_away: 64, open_files: 256, admin: 16 });
        let budget = Budget::new(u64::MAX, 12, Needs { connections: u64::from(u32::MAX), ..NEEDS }).unwrap();
        assert_eq!(budget.connections as u64, u64::from(u32::MAX));
    }

    #[test]
    fn all_shares_together_are_no_more_than_there_are() {
        for workers in [1, 2, 16, 1024] {
            for listeners in [1, workers, 5 * workers] {
                for limit in (0..4096).chain([20_000, 1 << 20]) {
                    for files in [false, true] {
                        let needs = Needs { workers, listeners, files, ..NEEDS };
                        let Ok(budget) = Budget::new(limit, 12, needs) else {
                            assert!(limit < 12 + CONTROL + workers * WORKER + 2 * listeners.max(workers) + LEAST);
                            continue;
                        };
                        assert!(budget.connections > 0 && budget.admin > 0, "{limit}: {budget:?}");
                        let shares = budget.connections + budget.admin + workers as usize * budget.turned_away;
                        assert!(shares as u64 <= limit - 12 + workers, "{limit}: {budget:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn too_few_are_refused_with_the_number_that_it_takes() {
        let why = Budget::new(20, 12, NEEDS).unwrap_err();
        let needed: u64 = why.split("at least ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(Budget::new(needed - 1, 12, NEEDS).is_err() && Budget::new(needed, 12, NEEDS).is_ok(), "{why}");
    }
}
