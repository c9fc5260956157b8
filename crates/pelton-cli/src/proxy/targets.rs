//! The targets and their groups: one per name in TLS hellos, and one for everybody else. All workers share them.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use pelton::{Endpoint, Group};

use super::options::{Balance, Health};

pub struct Targets {
    all: Arc<pelton::Targets>,
    /// With the name in TLS hellos. `None` for everybody else.
    groups: Vec<(Option<String>, Group)>,
}

impl Targets {
    /// Makes groups of targets: one per name, and one without a name.
    pub fn new(to: &[Endpoint], by_name: &[(String, Endpoint)], balance: Balance, health: &Health) -> Targets {
        let mut all = pelton::Targets::new(balance.into(), health.max_failures, health.down_time);
        let mut groups: Vec<(Option<String>, Group)> = Vec::new();
        let unnamed = to.iter().map(|endpoint| (None, endpoint));
        for (name, endpoint) in unnamed.chain(by_name.iter().map(|(name, endpoint)| (Some(name), endpoint))) {
            let target = all.add(endpoint.clone());
            match groups.iter_mut().find(|(known, _)| known.as_ref() == name) {
                Some((_, group)) => group.add(target),
                None => groups.push((name.cloned(), Group::new([target]))),
            }
        }
        Targets { all: Arc::new(all), groups }
    }

    /// Returns the group for a name of a TLS hello: its own, that of the nearest wildcard, or the one without a name.
    pub fn group_for(&self, name: Option<&str>) -> Option<usize> {
        let find = |wanted: Option<&str>| self.groups.iter().position(|(name, _)| name.as_deref() == wanted);
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

    /// Chooses a target of a group, other than those that were `tried`.
    pub fn choose(&self, group: usize, client: Option<IpAddr>, tried: &[usize]) -> Option<usize> {
        self.all.choose(&self.groups[group].1, client, tried)
    }
}

impl Deref for Targets {
    type Target = Arc<pelton::Targets>;
    fn deref(&self) -> &Arc<pelton::Targets> {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn names_find_their_group() {
        let second = Duration::from_secs(1);
        let health = Health { check_interval: second, max_failures: 2, down_time: second, retries: 3 };
        let target = |port: u16| -> Endpoint { format!("127.0.0.1:{port}").parse().unwrap() };
        let named = [
            ("www.example.org".to_owned(), target(1)),
            ("*.example.org".to_owned(), target(2)),
            ("*.b.example.org".to_owned(), target(3)),
            ("www.example.org".to_owned(), target(2)),
        ];
        let targets = Targets::new(&[target(9)], &named, Balance::Least, &health);
        let name = |name| targets.group_for(name).map(|group| targets.groups[group].0.as_deref());
        assert_eq!(name(Some("WWW.example.org.")), Some(Some("www.example.org")));
        assert_eq!(name(Some("a.example.org")), Some(Some("*.example.org")));
        assert_eq!(name(Some("a.b.example.org")), Some(Some("*.b.example.org")));
        assert_eq!(name(Some("a.a.example.org")), Some(Some("*.example.org")));
        assert_eq!((name(Some("example.org")), name(Some("")), name(None)), (Some(None), Some(None), Some(None)));
        assert_eq!(targets.all().len(), 4);
        let targets = Targets::new(&[], &named, Balance::Least, &health);
        assert_eq!((targets.group_for(None), targets.group_for(Some("example.com"))), (None, None));
    }
}
