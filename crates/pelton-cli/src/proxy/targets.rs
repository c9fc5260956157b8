//! The targets: which of them are up, and which one a client gets. All workers share them.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pelton::Endpoint;

use super::options::{Balance, Health};

/// A target, with what is known of it.
pub struct Target {
    pub endpoint: Endpoint,
    /// Connections to it now.
    pub connections: AtomicUsize,
    /// Connections that were established.
    pub connected: AtomicU64,
    /// Attempts that failed.
    pub failed: AtomicU64,
    /// Failures in a row.
    failures: AtomicU32,
    /// Until when it is not used, in milliseconds since the start. 0 if it is used.
    down_until: AtomicU64,
    /// The last check failed.
    check_failed: AtomicBool,
}

impl Target {
    fn new(endpoint: Endpoint) -> Target {
        Target {
            endpoint,
            connections: AtomicUsize::new(0),
            connected: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            down_until: AtomicU64::new(0),
            check_failed: AtomicBool::new(false),
        }
    }
}

/// Targets for the same clients.
pub struct Group {
    /// The name in TLS hellos. `None` for everybody else.
    pub name: Option<String>,
    /// Their indices.
    members: Vec<usize>,
    /// Counts choices, for one after the other.
    next: AtomicUsize,
}

/// All targets.
pub struct Targets {
    pub all: Vec<Target>,
    pub groups: Vec<Group>,
    balance: Balance,
    started: Instant,
    max_failures: u32,
    down_time: Duration,
}

impl Targets {
    /// Makes groups of targets: one per name, and one without a name.
    pub fn new(to: &[Endpoint], by_name: &[(String, Endpoint)], balance: Balance, health: &Health) -> Targets {
        let mut targets = Targets {
            all: Vec::new(),
            groups: Vec::new(),
            balance,
            started: Instant::now(),
            max_failures: health.max_failures,
            down_time: health.down_time,
        };
        for endpoint in to {
            targets.add(None, endpoint);
        }
        for (name, endpoint) in by_name {
            targets.add(Some(name), endpoint);
        }
        targets
    }

    fn add(&mut self, name: Option<&str>, endpoint: &Endpoint) {
        // A target of several groups has one health.
        let index = self.all.iter().position(|target| target.endpoint == *endpoint).unwrap_or_else(|| {
            self.all.push(Target::new(endpoint.clone()));
            self.all.len() - 1
        });
        match self.groups.iter_mut().find(|group| group.name.as_deref() == name) {
            Some(group) => group.members.push(index),
            None => {
                let name = name.map(str::to_owned);
                self.groups.push(Group { name, members: vec![index], next: AtomicUsize::new(0) });
            }
        }
    }

    /// Returns the group for a name of a TLS hello: its own, that of the nearest wildcard, or the one without a name.
    pub fn group_for(&self, name: Option<&str>) -> Option<usize> {
        let find = |wanted: Option<&str>| self.groups.iter().position(|group| group.name.as_deref() == wanted);
        let name = name.map(|name| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase());
        let by_name = name.as_deref().and_then(|name| {
            let mut found = find(Some(name));
            let mut rest = name;
            while let (None, Some((_, parent))) = (found, rest.split_once('.')) {
                found = find(Some(&format!("*.{parent}")));
                rest = parent;
            }
            found
        });
        by_name.or_else(|| find(None))
    }

    /// Returns whether the choice depends on the client's address.
    pub fn needs_client(&self) -> bool {
        self.balance == Balance::Hash
    }

    fn now(&self) -> u64 {
        // Never 0, which means "used".
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Returns whether a target is used.
    pub fn is_up(&self, target: &Target) -> bool {
        !target.check_failed.load(Relaxed) && target.down_until.load(Relaxed) <= self.now()
    }

    /// Chooses a target of a group, other than those that were `tried`.
    pub fn choose(&self, group: usize, client: Option<IpAddr>, tried: &[usize]) -> Option<usize> {
        let group = &self.groups[group];
        let untried = || group.members.iter().copied().filter(|index| !tried.contains(index));
        let mut candidates: Vec<usize> = untried().filter(|index| self.is_up(&self.all[*index])).collect();
        if candidates.is_empty() {
            // All are down. One that has only failed clients may be up again, and trying it costs little.
            candidates = untried().filter(|index| !self.all[*index].check_failed.load(Relaxed)).collect();
        }
        if candidates.is_empty() {
            return None;
        }
        let turn = group.next.fetch_add(1, Relaxed);
        match (self.balance, client) {
            (Balance::Least, _) => {
                // Among equals, one after the other.
                let count = candidates.len();
                let ordered = (0..count).map(|step| candidates[(turn + step) % count]);
                ordered.min_by_key(|index| self.all[*index].connections.load(Relaxed))
            }
            (Balance::Hash, Some(client)) => {
                // The highest score wins: a target that goes down moves only its own clients.
                candidates.into_iter().max_by_key(|index| score(client, &self.all[*index].endpoint))
            }
            (Balance::RoundRobin | Balance::Hash, _) => Some(candidates[turn % candidates.len()]),
        }
    }

    /// Records that a connection was established.
    pub fn succeeded(&self, index: usize) {
        let target = &self.all[index];
        target.connected.fetch_add(1, Relaxed);
        target.failures.store(0, Relaxed);
        target.down_until.store(0, Relaxed);
    }

    /// Records that a connection could not be established.
    pub fn has_failed(&self, index: usize) {
        let target = &self.all[index];
        target.failed.fetch_add(1, Relaxed);
        if target.failures.fetch_add(1, Relaxed) + 1 >= self.max_failures {
            let until = self.now().saturating_add(u64::try_from(self.down_time.as_millis()).unwrap_or(u64::MAX));
            if target.down_until.swap(until, Relaxed) == 0 {
                tracing::warn!(target = %target.endpoint, "a target has failed repeatedly and is not used");
            }
        }
    }

    /// Records the outcome of a check. Returns whether it changed anything.
    pub fn checked(&self, index: usize, accepted: bool) -> bool {
        let target = &self.all[index];
        if accepted {
            target.failures.store(0, Relaxed);
            target.down_until.store(0, Relaxed);
        }
        target.check_failed.swap(!accepted, Relaxed) == accepted
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

    fn health() -> Health {
        let second = Duration::from_secs(1);
        Health { check_interval: second, max_failures: 2, down_time: Duration::from_secs(3600), retries: 3 }
    }

    fn endpoints(count: u16) -> Vec<Endpoint> {
        (0..count).map(|port| format!("127.0.0.1:{}", 1000 + port).parse().unwrap()).collect()
    }

    #[test]
    fn least_connections_and_turns_are_balanced() {
        let targets = Targets::new(&endpoints(3), &[], Balance::Least, &health());
        targets.all[0].connections.store(2, Relaxed);
        targets.all[1].connections.store(1, Relaxed);
        assert_eq!(targets.choose(0, None, &[]), Some(2));
        assert_eq!(targets.choose(0, None, &[2]), Some(1));
        assert_eq!(targets.choose(0, None, &[0, 1, 2]), None);
        let targets = Targets::new(&endpoints(3), &[], Balance::RoundRobin, &health());
        let chosen: Vec<_> = (0..6).map(|_| targets.choose(0, None, &[]).unwrap()).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_hash_moves_only_the_clients_of_a_target_that_goes_down() {
        let targets = Targets::new(&endpoints(4), &[], Balance::Hash, &health());
        let clients: Vec<IpAddr> = (0..200).map(|last| IpAddr::from([192, 0, 2, last])).collect();
        let choose = |client: &IpAddr| targets.choose(0, Some(*client), &[]).unwrap();
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
        let targets = Targets::new(&endpoints(2), &[], Balance::RoundRobin, &health());
        targets.has_failed(0);
        targets.succeeded(0);
        targets.has_failed(0);
        assert!(targets.is_up(&targets.all[0]));
        targets.has_failed(0);
        assert!(!targets.is_up(&targets.all[0]));
        assert!((0..4).all(|_| targets.choose(0, None, &[]) == Some(1)));
        // If no other is left, it is tried all the same, unless a check has failed.
        assert_eq!(targets.choose(0, None, &[1]), Some(0));
        assert!(targets.checked(0, false) && !targets.checked(0, false));
        assert_eq!(targets.choose(0, None, &[1]), None);
        assert!(targets.checked(0, true));
        assert!(targets.is_up(&targets.all[0]));
    }

    #[test]
    fn names_find_their_group() {
        let target = |port: u16| -> Endpoint { format!("127.0.0.1:{port}").parse().unwrap() };
        let named = [
            ("www.example.org".to_owned(), target(1)),
            ("*.example.org".to_owned(), target(2)),
            ("*.b.example.org".to_owned(), target(3)),
            ("www.example.org".to_owned(), target(2)),
        ];
        let targets = Targets::new(&[target(9)], &named, Balance::Least, &health());
        let name = |name| targets.group_for(name).map(|group| targets.groups[group].name.as_deref());
        assert_eq!(name(Some("WWW.example.org.")), Some(Some("www.example.org")));
        assert_eq!(name(Some("a.example.org")), Some(Some("*.example.org")));
        assert_eq!(name(Some("a.b.example.org")), Some(Some("*.b.example.org")));
        assert_eq!(name(Some("a.a.example.org")), Some(Some("*.example.org")));
        assert_eq!((name(Some("example.org")), name(Some("")), name(None)), (Some(None), Some(None), Some(None)));
        assert_eq!(targets.all.len(), 4);
        let targets = Targets::new(&[], &named, Balance::Least, &health());
        assert_eq!((targets.group_for(None), targets.group_for(Some("example.com"))), (None, None));
    }
}
