//! Several servers for the same work: which of them are up, and which one is used next.

mod checks;

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::Endpoint;

/// How [`Targets`] are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Balance {
    /// The target with the least work in progress. Equal ones take turns.
    #[default]
    Least,
    /// One after the other.
    RoundRobin,
    /// By the client's address: a client gets the same target as long as that is up. Without an address, one after the other.
    Hash,
}

/// Servers that can stand in for each other. All threads share them.
///
/// A target that fails several times in a row is not used for a while. [`check_every`](Targets::check_every) also checks whether
/// targets accept connections.
///
/// ```
/// use pelton::{Balance, Group, Targets};
/// use std::time::Duration;
///
/// let mut targets = Targets::new(Balance::RoundRobin, 1, Duration::from_secs(10));
/// let group = Group::new([targets.add("192.0.2.1:80".parse()?), targets.add("192.0.2.2:80".parse()?)]);
/// assert_eq!(targets.choose(&group, None, &[]), Some(0));
/// targets.failed(1);
/// assert_eq!(targets.choose(&group, None, &[]), Some(0), "the other one is down");
/// # Ok::<(), pelton::BadEndpoint>(())
/// ```
pub struct Targets {
    all: Vec<Target>,
    balance: Balance,
    started: Instant,
    max_failures: u32,
    down_time: Duration,
}

/// A target, with what is known of it.
#[derive(Debug)]
pub struct Target {
    endpoint: Endpoint,
    busy: AtomicUsize,
    succeeded: AtomicU64,
    failed: AtomicU64,
    /// Failures in a row.
    failures: AtomicU32,
    /// Until when it is not used, in milliseconds since the start. 0 if it is used.
    down_until: AtomicU64,
    check_failed: AtomicBool,
    /// A check is in progress.
    checking: AtomicBool,
}

impl Target {
    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Connections or requests to it now.
    pub fn busy(&self) -> usize {
        self.busy.load(Relaxed)
    }

    /// How often it was reached.
    pub fn successes(&self) -> u64 {
        self.succeeded.load(Relaxed)
    }

    /// How often it has failed.
    pub fn failures(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    /// Counts work that begins.
    pub fn begin(&self) {
        self.busy.fetch_add(1, Relaxed);
    }

    /// Counts work that has ended.
    pub fn end(&self) {
        self.busy.fetch_sub(1, Relaxed);
    }
}

/// Targets for the same clients. A target may be in several groups.
#[derive(Debug)]
pub struct Group {
    members: Vec<usize>,
    /// Counts choices, for one after the other.
    next: AtomicUsize,
}

impl Group {
    /// Creates a group of these targets, which [`Targets::add`] has numbered.
    pub fn new(members: impl IntoIterator<Item = usize>) -> Group {
        Group { members: members.into_iter().collect(), next: AtomicUsize::new(0) }
    }

    /// Adds a target.
    pub fn add(&mut self, target: usize) {
        self.members.push(target);
    }

    /// The numbers of its targets.
    pub fn members(&self) -> &[usize] {
        &self.members
    }
}

impl Targets {
    /// Creates a collection without targets. After `max_failures` failures in a row, a target is not used for `down_time`, or
    /// until a check succeeds.
    pub fn new(balance: Balance, max_failures: u32, down_time: Duration) -> Targets {
        Targets { all: Vec::new(), balance, started: Instant::now(), max_failures, down_time }
    }

    /// Adds a target and returns its number. An endpoint that was added before keeps its number, and so has one health.
    pub fn add(&mut self, endpoint: Endpoint) -> usize {
        if let Some(known) = self.all.iter().position(|target| target.endpoint == endpoint) {
            return known;
        }
        self.all.push(Target {
            endpoint,
            busy: AtomicUsize::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            down_until: AtomicU64::new(0),
            check_failed: AtomicBool::new(false),
            checking: AtomicBool::new(false),
        });
        self.all.len() - 1
    }

    /// All targets, by their numbers.
    pub fn all(&self) -> &[Target] {
        &self.all
    }

    /// Whether the choice depends on the client's address.
    pub fn needs_client(&self) -> bool {
        self.balance == Balance::Hash
    }

    fn now(&self) -> u64 {
        // Never 0, which means "used".
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Whether a target is used.
    pub fn is_up(&self, number: usize) -> bool {
        let target = &self.all[number];
        // Most are up, and need no look at the clock.
        let until = target.down_until.load(Relaxed);
        !target.check_failed.load(Relaxed) && (until == 0 || until <= self.now())
    }

    /// Chooses a target of a group, other than those that were `tried`.
    pub fn choose(&self, group: &Group, client: Option<IpAddr>, tried: &[usize]) -> Option<usize> {
        let untried = || group.members.iter().copied().filter(|index| !tried.contains(index));
        // All may be down. One that has only failed clients may be up again, and trying it costs little.
        let is_candidate: fn(&Targets, usize) -> bool = match untried().any(|index| self.is_up(index)) {
            true => Targets::is_up,
            false => |targets, index| !targets.all[index].check_failed.load(Relaxed),
        };
        let candidates = || untried().filter(|index| is_candidate(self, *index));
        let turn = group.next.fetch_add(1, Relaxed);
        if let (Balance::Hash, Some(client)) = (self.balance, client) {
            // The highest score wins: a target that goes down moves only its own clients.
            return candidates().max_by_key(|index| score(client, &self.all[*index].endpoint));
        }
        // Others may change the health meanwhile, so there may be fewer candidates than were counted.
        let count = candidates().count();
        let mut ordered = candidates().cycle().skip(turn.checked_rem(count)?).take(count);
        match self.balance {
            Balance::Least => ordered.min_by_key(|index| self.all[*index].busy()),
            Balance::RoundRobin | Balance::Hash => ordered.next(),
        }
    }

    /// Records that a target was reached.
    pub fn succeeded(&self, number: usize) {
        let target = &self.all[number];
        target.succeeded.fetch_add(1, Relaxed);
        target.is_fine();
    }

    /// Records that a target was not reached.
    pub fn failed(&self, number: usize) {
        let target = &self.all[number];
        target.failed.fetch_add(1, Relaxed);
        if target.failures.fetch_add(1, Relaxed).saturating_add(1) >= self.max_failures {
            let until = self.now().saturating_add(u64::try_from(self.down_time.as_millis()).unwrap_or(u64::MAX));
            if target.down_until.swap(until, Relaxed) == 0 {
                tracing::warn!(target = %target.endpoint, "a target has failed repeatedly and is not used");
            }
        }
    }

    /// Records the outcome of a check. Returns whether it changed anything.
    pub fn checked(&self, number: usize, accepted: bool) -> bool {
        let target = &self.all[number];
        if accepted {
            target.is_fine();
        }
        target.check_failed.swap(!accepted, Relaxed) == accepted
    }
}

impl Target {
    fn is_fine(&self) {
        // Usually nothing changes, and other processors keep their copies.
        if self.failures.load(Relaxed) != 0 {
            self.failures.store(0, Relaxed);
        }
        if self.down_until.load(Relaxed) != 0 {
            self.down_until.store(0, Relaxed);
        }
    }
}

impl fmt::Debug for Targets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|target| &target.endpoint)).finish()
    }
}

fn score(client: IpAddr, endpoint: &Endpoint) -> u64 {
    let mut hasher = DefaultHasher::new();
    (client, endpoint.to_string()).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(count: u16, balance: Balance) -> (Targets, Group) {
        let mut targets = Targets::new(balance, 2, Duration::from_secs(3600));
        let members = (0..count).map(|port| targets.add(format!("127.0.0.1:{}", 1000 + port).parse().unwrap()));
        let group = Group::new(members.collect::<Vec<_>>());
        (targets, group)
    }

    #[test]
    fn least_busy_and_turns_are_balanced() {
        let (least, group) = targets(3, Balance::Least);
        least.all[0].busy.store(2, Relaxed);
        least.all[1].busy.store(1, Relaxed);
        assert_eq!(least.choose(&group, None, &[]), Some(2));
        assert_eq!(least.choose(&group, None, &[2]), Some(1));
        assert_eq!(least.choose(&group, None, &[0, 1, 2]), None);
        let (turns, group) = targets(3, Balance::RoundRobin);
        let chosen: Vec<_> = (0..6).map(|_| turns.choose(&group, None, &[]).unwrap()).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn equally_busy_targets_take_turns() {
        let (least, group) = targets(3, Balance::Least);
        let chosen: Vec<_> = (0..6).map(|_| least.choose(&group, None, &[]).unwrap()).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_hash_moves_only_the_clients_of_a_target_that_goes_down() {
        let (targets, group) = targets(4, Balance::Hash);
        let clients: Vec<IpAddr> = (0..200).map(|last| IpAddr::from([192, 0, 2, last])).collect();
        let choose = |client: &IpAddr| targets.choose(&group, Some(*client), &[]).unwrap();
        let before: Vec<_> = clients.iter().map(choose).collect();
        assert_eq!(before, clients.iter().map(choose).collect::<Vec<_>>());
        assert!((0..4).all(|index| before.iter().filter(|chosen| **chosen == index).count() > 20), "{before:?}");
        targets.checked(2, false);
        for (client, before) in clients.iter().zip(before) {
            let now = choose(client);
            assert!(now == before || before == 2 && now != 2);
        }
    }

    #[test]
    fn failures_in_a_row_take_a_target_down_and_a_success_brings_it_back() {
        let (targets, group) = targets(2, Balance::RoundRobin);
        targets.failed(0);
        targets.succeeded(0);
        targets.failed(0);
        assert!(targets.is_up(0));
        targets.failed(0);
        assert!(!targets.is_up(0));
        assert!((0..4).all(|_| targets.choose(&group, None, &[]) == Some(1)));
        // If no other is left, it is tried all the same, unless a check has failed.
        assert_eq!(targets.choose(&group, None, &[1]), Some(0));
        assert!(targets.checked(0, false) && !targets.checked(0, false));
        assert_eq!(targets.choose(&group, None, &[1]), None);
        assert!(targets.checked(0, true));
        assert!(targets.is_up(0));
    }

    #[test]
    fn an_endpoint_has_one_number() {
        let (mut targets, _) = targets(2, Balance::Least);
        assert_eq!(targets.add("127.0.0.1:1001".parse().unwrap()), 1);
        assert_eq!(targets.all().len(), 2);
    }
}
