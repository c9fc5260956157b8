//! The namespaces of processes. A process gets one at its first use, and it goes when the process ends.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pelton_python::host::{Host, Namespace};
use rustler::{Encoder, Env, LocalPid, Monitor, Resource, ResourceArc};

use crate::environment::RawTerm;

/// Parts of the table, so that schedulers rarely wait for each other.
const PARTS: usize = 16;

/// All namespaces of a host, by process. It monitors the processes.
pub(crate) struct Spaces {
    parts: [Mutex<HashMap<RawTerm, Namespace>>; PARTS],
}

impl Spaces {
    pub(crate) fn new() -> ResourceArc<Spaces> {
        ResourceArc::new(Spaces { parts: std::array::from_fn(|_| Mutex::new(HashMap::new())) })
    }

    fn part(&self, process: RawTerm) -> MutexGuard<'_, HashMap<RawTerm, Namespace>> {
        // The lower bits of the term of a process are a tag.
        self.parts[(process >> 4) % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        (0..PARTS).map(|part| self.part(part << 4).len()).sum()
    }
}

/// Returns the number of a process, which selects its loop.
pub(crate) fn number(env: Env<'_>, process: LocalPid) -> usize {
    process.encode(env).as_c_arg() >> 4
}

/// Returns the namespace of a process. Returns `None` if the process has ended.
pub(crate) fn of(env: Env<'_>, spaces: &ResourceArc<Spaces>, host: &Host, process: LocalPid) -> Option<Namespace> {
    let term = process.encode(env).as_c_arg();
    if let Some(namespace) = spaces.part(term).get(&term) {
        return Some(namespace.clone());
    }
    let namespace = host.namespace_on(number(env, process));
    spaces.part(term).insert(term, namespace.clone());
    if spaces.monitor(Some(env), &process).is_none() {
        spaces.part(term).remove(&term);
        return None;
    }
    Some(namespace)
}

#[rustler::resource_impl]
impl Resource for Spaces {
    const IMPLEMENTS_DOWN: bool = true;

    fn down<'a>(&'a self, env: Env<'a>, process: LocalPid, _: Monitor) {
        let term = process.encode(env).as_c_arg();
        let namespace = self.part(term).remove(&term);
        // Its loop is told through its queue, after the calls that were submitted before.
        drop(namespace);
    }
}
