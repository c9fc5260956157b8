//! The cache: files in memory, open files, and names that do not exist.
//!
//! Files and missing names are separate, so a client that requests a million missing names evicts no file. Both evict the least
//! recently used entry.

use std::hash::RandomState;
use std::rc::Rc;

use lru::LruCache;
use pelton::Time;

use super::FileSettings;
use super::lookup::Resource;

/// Why there is nothing under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Absence {
    /// The name is a directory's but lacks the trailing slash.
    Directory,
    /// The status of the response.
    Status(u16),
}

/// What is known about a name.
#[derive(Debug)]
pub(super) enum Knowledge {
    Fresh(Rc<Resource>),
    Absent(Absence),
    /// Cached, but due to be checked against the disk.
    Stale(Rc<Resource>),
    Nothing,
}

struct Slot {
    resource: Rc<Resource>,
    fresh_until: Time,
    used: Time,
}

pub(super) struct Cache {
    found: LruCache<Box<[u8]>, Slot>,
    absent: LruCache<Box<[u8]>, (Absence, Time)>,
    /// The memory and descriptors used by `found`.
    memory: u64,
    open: usize,
}

impl Cache {
    pub(super) fn new() -> Cache {
        Cache {
            found: LruCache::unbounded_with_hasher(RandomState::new()),
            absent: LruCache::unbounded_with_hasher(RandomState::new()),
            memory: 0,
            open: 0,
        }
    }

    pub(super) fn get(&mut self, name: &[u8], now: Time) -> Knowledge {
        if let Some(slot) = self.found.get_mut(name) {
            slot.used = now;
            let resource = slot.resource.clone();
            return if now < slot.fresh_until { Knowledge::Fresh(resource) } else { Knowledge::Stale(resource) };
        }
        match self.absent.get(name) {
            Some((absence, fresh_until)) if now < *fresh_until => Knowledge::Absent(*absence),
            _ => Knowledge::Nothing,
        }
    }

    pub(super) fn found(&mut self, name: Box<[u8]>, resource: Rc<Resource>, now: Time, settings: &FileSettings) {
        self.forget(&name);
        let (memory, open) = weight(&resource);
        // A file larger than the cache would evict everything else.
        if memory > settings.memory || open > settings.open {
            return;
        }
        (self.memory, self.open) = (self.memory + memory, self.open + open);
        self.found.put(name, Slot { resource, fresh_until: now + settings.valid, used: now });
        while self.memory > settings.memory || self.open > settings.open || self.found.len() > settings.known {
            let Some((_, slot)) = self.found.pop_lru() else { break };
            self.release(&slot);
        }
    }

    pub(super) fn absent(&mut self, name: Box<[u8]>, absence: Absence, now: Time, settings: &FileSettings) {
        self.forget(&name);
        if settings.valid_missing.is_zero() {
            return;
        }
        self.absent.put(name, (absence, now + settings.valid_missing));
        while self.absent.len() > settings.missing {
            self.absent.pop_lru();
        }
    }

    /// Forgets what is known about a name.
    pub(super) fn forget(&mut self, name: &[u8]) {
        if let Some(slot) = self.found.pop(name) {
            self.release(&slot);
        }
        self.absent.pop(name);
    }

    /// Removes entries that have not been used for a long time. Returns whether any remain.
    pub(super) fn sweep(&mut self, now: Time, settings: &FileSettings) -> bool {
        while self.found.peek_lru().is_some_and(|(_, slot)| slot.used + settings.idle <= now) {
            let Some((_, slot)) = self.found.pop_lru() else { break };
            self.release(&slot);
        }
        while self.absent.peek_lru().is_some_and(|(_, (_, fresh_until))| *fresh_until <= now) {
            self.absent.pop_lru();
        }
        !self.found.is_empty() || !self.absent.is_empty()
    }

    fn release(&mut self, slot: &Slot) {
        let (memory, open) = weight(&slot.resource);
        (self.memory, self.open) = (self.memory - memory, self.open - open);
    }
}

fn weight(resource: &Resource) -> (u64, usize) {
    let weights = resource.forms.iter().map(|form| form.weight());
    weights.fold((0, 0), |sum, weight| (sum.0 + weight.0, sum.1 + weight.1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::representation::{Description, Representation};
    use crate::wire::Coding;
    use std::time::Duration;

    fn resource(size: usize, settings: &FileSettings) -> Rc<Resource> {
        let description = Description { coding: Coding::Identity, content_type: "a/b", varies: false, settings };
        let form = Representation::of_bytes(vec![0; size].into(), "\"a\"".to_owned(), &description);
        Rc::new(Resource { forms: vec![form], stamps: None, listing: None })
    }

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    fn has(cache: &mut Cache, name: &str, now: Time) -> bool {
        matches!(cache.get(name.as_bytes(), now), Knowledge::Fresh(_) | Knowledge::Stale(_))
    }

    #[test]
    fn least_recently_used_entry_is_evicted() {
        let settings = FileSettings { memory: 100, known: 3, ..FileSettings::default() };
        let mut cache = Cache::new();
        for name in ["a", "b", "c"] {
            cache.found(name.as_bytes().into(), resource(10, &settings), at(0), &settings);
        }
        assert!(has(&mut cache, "a", at(1)));
        cache.found(b"d"[..].into(), resource(10, &settings), at(1), &settings);
        assert!(!has(&mut cache, "b", at(1)), "at most three entries are kept");
        assert!(has(&mut cache, "c", at(1)) && has(&mut cache, "a", at(1)));
        cache.found(b"e"[..].into(), resource(85, &settings), at(1), &settings);
        assert!(has(&mut cache, "e", at(1)) && has(&mut cache, "a", at(1)) && !has(&mut cache, "d", at(1)));
        cache.found(b"f"[..].into(), resource(101, &settings), at(1), &settings);
        assert!(
            !has(&mut cache, "f", at(1)) && has(&mut cache, "e", at(1)),
            "a file larger than the cache is not cached"
        );
        cache.found(b"e"[..].into(), resource(20, &settings), at(1), &settings);
        assert_eq!(cache.memory, 30);
    }

    #[test]
    fn found_and_missing_entries_expire() {
        let settings = FileSettings::default();
        let mut cache = Cache::new();
        cache.found(b"a"[..].into(), resource(10, &settings), at(0), &settings);
        cache.absent(b"b"[..].into(), Absence::Status(404), at(0), &settings);
        assert!(matches!(cache.get(b"a", at(999)), Knowledge::Fresh(_)));
        assert!(matches!(cache.get(b"a", at(1000)), Knowledge::Stale(_)));
        assert!(matches!(cache.get(b"b", at(999)), Knowledge::Absent(Absence::Status(404))));
        assert!(matches!(cache.get(b"b", at(1000)), Knowledge::Nothing));
        cache.absent(b"a"[..].into(), Absence::Directory, at(1000), &settings);
        assert!(matches!(cache.get(b"a", at(1000)), Knowledge::Absent(Absence::Directory)));
        assert_eq!(cache.memory, 0);
    }

    #[test]
    fn missing_names_are_bounded_and_evict_no_files() {
        let settings = FileSettings { missing: 10, ..FileSettings::default() };
        let mut cache = Cache::new();
        cache.found(b"a"[..].into(), resource(10, &settings), at(0), &settings);
        for number in 0..1000 {
            cache.absent(number.to_string().into_bytes().into(), Absence::Status(404), at(0), &settings);
        }
        assert_eq!(cache.absent.len(), 10);
        assert!(has(&mut cache, "a", at(0)));
    }

    #[test]
    fn unused_entries_are_swept() {
        let settings = FileSettings::default();
        let mut cache = Cache::new();
        cache.found(b"a"[..].into(), resource(10, &settings), at(0), &settings);
        cache.found(b"b"[..].into(), resource(10, &settings), at(0), &settings);
        assert!(has(&mut cache, "a", at(30_000)));
        assert!(cache.sweep(at(60_000), &settings));
        assert!(has(&mut cache, "a", at(60_000)) && !has(&mut cache, "b", at(60_000)));
        assert!(!cache.sweep(at(120_000), &settings));
        assert_eq!(cache.memory, 0);
    }
}
