//! The thread of a host that runs Python, as code on that thread finds it: to serve calls while it waits.

use std::cell::RefCell;
use std::sync::Arc;

use super::callables::Callables;
use super::execute::Place;
use super::loops::HostedLoop;
use super::workers::Workers;

/// What calls need of their thread.
struct Current {
    home: Arc<HostedLoop>,
    workers: Arc<Workers>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// Makes this thread one that runs calls for a host, and returns where it runs them.
pub(crate) fn become_thread_of(home: &Arc<HostedLoop>, workers: Arc<Workers>) -> Place {
    let current = Current { home: home.clone(), workers };
    let place = place(&current);
    CURRENT.with(|here| *here.borrow_mut() = Some(current));
    place
}

/// Ends it. What is left of the namespaces is dropped, so the interpreter lock is held.
pub(crate) fn leave() {
    let before = CURRENT.with(|here| here.borrow_mut().take());
    if let Some(current) = before {
        current.home.namespaces.clear();
    }
}

fn place(current: &Current) -> Place {
    Place {
        home: current.home.clone(),
        workers: current.workers.clone(),
        callables: Callables::default(),
        namespaces: current.home.namespaces.clone(),
    }
}

/// Returns a place for calls inside the one that this thread is making, with the same namespaces.
pub(crate) fn inner_place() -> Option<Place> {
    CURRENT.with(|here| here.borrow().as_ref().map(place))
}

/// Returns the shared state of this thread, if it belongs to a host.
pub(crate) fn home() -> Option<Arc<HostedLoop>> {
    CURRENT.with(|here| here.borrow().as_ref().map(|current| current.home.clone()))
}
