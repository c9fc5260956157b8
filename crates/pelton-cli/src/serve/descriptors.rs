//! Divides the descriptors of this process.
//!
//! The system limits them. If connections took all of them, no file could be opened, new clients could not be told that the
//! server is full, and the admin address would not answer. So each of these has a share, and connections get the rest.

use pelton::{DescriptorLimit, EngineKind, LaneSettings, Reactor};

use super::options::Options;
use crate::service::places::Place;

/// `select` cannot watch descriptors from this number on.
const MOST_WITH_SELECT: u64 = 1024;

/// Control and handover, besides their listeners: signals, the socket pair and the pipe of a new process, its log.
const CONTROL: u64 = 8;

/// Maximum number of clients of the admin address, including those that shake hands.
const ADMIN: u64 = 16;

/// Maximum number of clients that shake hands. They count as connections only afterwards.
const HANDSHAKES: u64 = 2_048;

/// A worker, besides its listeners: its poller, its loopbreaker, a spare descriptor, and the directory that it serves.
const WORKER: u64 = 4;

/// One look-up on a thread of the file lane: the directory, which may be reopened, the file, its three compressed forms, and one
/// more while one of them is opened for reading.
const LOOK_UP: u64 = 6;

/// Maximum number of threads of a worker's file lane.
const LOOK_UPS: u64 = LaneSettings::FILES.threads as u64;

/// Maximum number of files that a worker keeps open for later requests.
const KEPT: u64 = 256;

/// Open files of a worker, kept or being sent. There may be more if connections leave descriptors unused.
const OPEN_FILES: u64 = 2 * KEPT;

/// Connections of a worker that are refused because the server is full: as many as it accepts in one turn, and as many that
/// linger.
const NEWCOMERS: u64 = 2 * 64;

/// Below this many of each, a server is useless: clients, handshakes, admin clients, and, per worker, refused connections, files
/// and connections to other servers.
const LEAST_CONNECTIONS: u64 = 4;
const LEAST_HANDSHAKES: u64 = 4;
const LEAST_ADMIN: u64 = 2;
const LEAST_UPSTREAM: u64 = 2;
const LEAST_NEWCOMERS: u64 = 2;
const LEAST_FILES: u64 = LOOK_UP + 1;

/// Divides the descriptors that this process may have. Logs a warning if connections get fewer than requested.
pub fn divide(
    options: &Options,
    limit: &DescriptorLimit,
    control: &Reactor,
    (places, admin): (&[Place], Option<&Place>),
) -> Result<Budget, String> {
    let most = match control.engine_name() {
        name if name == EngineKind::Select.name() => limit.now().min(MOST_WITH_SELECT),
        _ => limit.now(),
    };
    let workers = options.server.workers();
    let copies = places.iter().map(|place| place.sockets().max(workers)).chain(admin.map(Place::sockets));
    let needs = Needs {
        connections: u64::from(options.limits.max_connections),
        workers: workers as u64,
        listeners: places.iter().chain(admin).map(Place::sockets).sum::<usize>() as u64,
        copies: copies.sum::<usize>() as u64,
        files: options.dir.is_some(),
        tls: options.tls.is_on(),
        proxies: options.proxy.is_on(),
    };
    let budget = Budget::new(most, open(), needs)?;
    if (budget.connections as u64) < needs.connections {
        tracing::warn!(
            connections = budget.connections,
            asked_for = needs.connections,
            descriptors = most,
            "fewer connections than requested: the descriptor limit is too low"
        );
    }
    Ok(budget)
}

/// The needs of everything besides connections.
#[derive(Clone, Copy, Debug)]
struct Needs {
    /// Requested number of connections.
    connections: u64,
    workers: u64,
    /// Listening sockets of all places, including the copies that the reactors adopt.
    listeners: u64,
    copies: u64,
    /// Whether files are served.
    files: bool,
    /// Whether there are handshakes.
    tls: bool,
    /// Whether requests are forwarded: then a client may need a second descriptor.
    proxies: bool,
}

/// The shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Connections, over all workers.
    pub connections: usize,
    /// Connections per worker that were answered with 503 and linger.
    pub turned_away: usize,
    /// Threads per worker that look up files.
    pub look_ups: usize,
    /// Open files per worker, including those being sent.
    pub open_files: usize,
    /// Files that each worker keeps open for later requests.
    pub kept_files: usize,
    /// Connections of the admin address.
    pub admin: usize,
    /// Handshakes in progress, over all workers.
    pub handshakes: usize,
    /// Connections of each worker to the servers that it forwards to.
    pub upstream: usize,
}

impl Budget {
    /// Divides `limit` descriptors, `open` of which are in use already. Fails with an explanation if there are too few.
    fn new(limit: u64, open: u64, needs: Needs) -> Result<Budget, String> {
        let Needs { connections, workers, listeners, copies, files, tls, proxies } = needs;
        // The listeners themselves are open already. Each gets one more copy when it is passed on to a new process.
        let fixed = open + CONTROL + workers * WORKER + copies + listeners;
        let free = limit.saturating_sub(fixed);
        let least_newcomers = workers * LEAST_NEWCOMERS;
        let least_files = if files { workers * LEAST_FILES } else { 0 };
        let least_handshakes = if tls { LEAST_HANDSHAKES } else { 0 };
        let least_upstream = if proxies { workers * LEAST_UPSTREAM } else { 0 };
        let least = LEAST_CONNECTIONS + least_upstream + least_handshakes + LEAST_ADMIN + least_newcomers + least_files;
        if free < least {
            let least = fixed + least;
            return Err(format!(
                "this process may have {limit} descriptors, but needs at least {least} with these options; raise the \
                 limit (ulimit -n, or LimitNOFILE= in a systemd unit)"
            ));
        }
        let spare = free - least;
        let admin = (LEAST_ADMIN + spare / 6).min(ADMIN);
        let newcomers = (least_newcomers + spare / 4).min(workers * NEWCOMERS);
        let most_files = workers * (LOOK_UPS * LOOK_UP + OPEN_FILES);
        let for_files = if files { (least_files + spare / 4).min(most_files) } else { 0 };
        // Handshakes are short: an eighth of the connections keeps all of them coming.
        let most_handshakes = (connections / 8).clamp(LEAST_HANDSHAKES, HANDSHAKES);
        let handshakes = if tls { (least_handshakes + spare / 8).min(most_handshakes) } else { 0 };
        let left = free - admin - newcomers - for_files - handshakes;
        // As many as there are clients, but each worker has some.
        let upstream = if proxies { (left / 2).min(connections).max(least_upstream) / workers } else { 0 };
        let left = left - upstream * workers;
        let connections = connections.min(left);
        // Files get what connections do not need.
        let files_each = if files { (for_files + left - connections) / workers } else { 0 };
        let look_ups = (files_each / 2 / LOOK_UP).clamp(1, LOOK_UPS);
        let open_files = files_each.saturating_sub(look_ups * LOOK_UP);
        Ok(Budget {
            connections: number(connections),
            turned_away: number(newcomers / workers / 2).max(1),
            look_ups: number(look_ups),
            open_files: number(open_files),
            kept_files: number((open_files / 2).min(KEPT)),
            admin: number(admin),
            handshakes: number(handshakes),
            upstream: number(upstream),
        })
    }
}

fn number(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Returns how many descriptors are open.
fn open() -> u64 {
    // This counts the one it uses itself, which does no harm.
    std::fs::read_dir("/dev/fd").map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs =
        Needs { connections: 16_384, workers: 1, listeners: 2, copies: 2, files: true, tls: false, proxies: false };

    #[test]
    fn connections_get_the_remaining_descriptors() {
        let budget = Budget::new(1024, 12, NEEDS).unwrap();
        assert_eq!((budget.turned_away, budget.admin, budget.look_ups), (64, 16, 4));
        assert!((550..800).contains(&budget.connections) && budget.open_files > 200, "{budget:?}");
        assert_eq!(budget.kept_files, budget.open_files / 2);
        let needs = Needs { connections: 100, ..NEEDS };
        assert!(Budget::new(1024, 12, needs).unwrap().open_files > 600, "files get what connections do not need");
        let budget = Budget::new(1 << 20, 12, NEEDS).unwrap();
        assert_eq!((budget.connections, budget.turned_away, budget.admin), (16_384, 64, 16));
        assert_eq!((budget.look_ups, budget.kept_files), (4, 256));
        let budget = Budget::new(u64::MAX, 12, Needs { connections: u64::from(u32::MAX), ..NEEDS }).unwrap();
        assert_eq!((budget.connections as u64, budget.handshakes), (u64::from(u32::MAX), 0));
    }

    #[test]
    fn handshakes_have_a_share_with_tls() {
        let tls = Needs { tls: true, ..NEEDS };
        assert_eq!(Budget::new(1 << 20, 12, tls).unwrap().handshakes, 2_048);
        let small = Budget::new(1024, 12, tls).unwrap();
        let plain = Budget::new(1024, 12, NEEDS).unwrap();
        assert!((100..140).contains(&small.handshakes), "{small:?}");
        assert!(small.connections + small.handshakes <= plain.connections + 1, "{small:?} {plain:?}");
        assert_eq!(Budget::new(1024, 12, Needs { connections: 4, ..tls }).unwrap().handshakes, 4);
    }

    const SHAPES: [(bool, bool, bool); 6] = [
        (false, false, false),
        (true, false, false),
        (false, true, false),
        (true, true, false),
        (false, false, true),
        (true, true, true),
    ];

    #[test]
    fn the_shares_never_exceed_the_limit() {
        for workers in [1, 2, 16, 1024] {
            for listeners in [1, workers, 5 * workers] {
                for limit in (0..4096).chain([20_000, 1 << 20]) {
                    for (files, tls, proxies) in SHAPES {
                        let needs = Needs { workers, listeners, copies: 2 * workers, files, tls, proxies, ..NEEDS };
                        let fixed = 12 + CONTROL + workers * (WORKER + 2) + listeners;
                        let Ok(budget) = Budget::new(limit, 12, needs) else {
                            let least = LEAST_NEWCOMERS + if files { LEAST_FILES } else { 0 };
                            let handshakes = if tls { LEAST_HANDSHAKES } else { 0 };
                            let least = least + if proxies { LEAST_UPSTREAM } else { 0 };
                            let all = LEAST_CONNECTIONS + handshakes + LEAST_ADMIN + workers * least;
                            assert!(limit < fixed + all);
                            continue;
                        };
                        assert!(
                            budget.connections > 0 && budget.admin > 0 && budget.turned_away > 0,
                            "{limit}: {budget:?}"
                        );
                        // As many may be accepted in a turn as linger.
                        let look_ups = if files { budget.look_ups * LOOK_UP as usize } else { 0 };
                        let each = 2 * budget.turned_away + budget.open_files + look_ups + budget.upstream;
                        assert_eq!(budget.upstream > 0, proxies, "{limit}: {budget:?}");
                        let shares = budget.connections + budget.handshakes + budget.admin + workers as usize * each;
                        assert_eq!(budget.handshakes > 0, tls, "{limit}: {budget:?}");
                        assert!(fixed + shares as u64 <= limit, "{limit}: {budget:?}");
                        assert_eq!(budget.open_files > 0, files, "{limit}: {budget:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn too_few_descriptors_are_refused_with_the_number_needed() {
        let why = Budget::new(20, 12, NEEDS).unwrap_err();
        let needed: u64 = why.split("at least ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(Budget::new(needed - 1, 12, NEEDS).is_err() && Budget::new(needed, 12, NEEDS).is_ok(), "{why}");
    }
}
