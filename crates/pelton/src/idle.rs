//! Idle work: what runs when there is nothing else to do.

use std::collections::VecDeque;
use std::panic::Location;

use crate::Reactor;
use crate::callback::{CallbackKind, Site};
use crate::slots::{Key, Slots};

/// Names idle work, to [cancel](Reactor::cancel_idle) it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IdleId(Key);

enum Work {
    Once(Box<dyn FnOnce(&mut Reactor)>),
    Repeating(Box<dyn FnMut(&mut Reactor)>),
    /// Repeating work, while it runs.
    Running,
}

struct Idle {
    place: &'static Location<'static>,
    work: Work,
}

/// Idle work, in the order in which it is to run.
#[derive(Default)]
pub(crate) struct Idles {
    work: Slots<Idle>,
    /// Cancelled work leaves its key here until its turn.
    order: VecDeque<Key>,
}

impl Idles {
    pub(crate) fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.work.len()
    }
}

impl Reactor {
    /// Runs `f` once, in the first turn in which no timer, tick or event has run. Until then the loop polls instead of
    /// sleeping.
    #[track_caller]
    pub fn when_idle(&mut self, f: impl FnOnce(&mut Reactor) + 'static) -> IdleId {
        self.add_idle(Location::caller(), Work::Once(Box::new(f)))
    }

    /// Runs `f` in every turn in which no timer, tick or event has run, until it is [cancelled](Reactor::cancel_idle).
    ///
    /// **As long as there is such work the loop never sleeps**: it polls, runs the work, and polls again, and so keeps a
    /// core busy. That is what it is for (computing something in small steps between events). Cancel it when it is done.
    #[track_caller]
    pub fn whenever_idle(&mut self, f: impl FnMut(&mut Reactor) + 'static) -> IdleId {
        self.add_idle(Location::caller(), Work::Repeating(Box::new(f)))
    }

    fn add_idle(&mut self, place: &'static Location<'static>, work: Work) -> IdleId {
        let key = self.idles.work.insert(Idle { place, work });
        if self.is_over() {
            self.idles.work.remove(key);
        } else {
            self.idles.order.push_back(key);
        }
        IdleId(key)
    }

    /// Cancels idle work, also from inside it. `false` if it has run or was cancelled already.
    pub fn cancel_idle(&mut self, id: IdleId) -> bool {
        self.callbacks.ended(id);
        self.idles.work.remove(id.0).is_some()
    }

    /// Runs the idle work there is now, each piece once.
    pub(crate) fn run_idle_work(&mut self) {
        for _ in 0..self.idles.order.len() {
            let Some(key) = self.idles.order.pop_front() else { break };
            let Some(idle) = self.idles.work.get_mut(key) else { continue };
            let site = Site { kind: CallbackKind::Idle, place: idle.place, source: Some(IdleId(key).into()) };
            match std::mem::replace(&mut idle.work, Work::Running) {
                Work::Once(f) => {
                    // Its label outlives it, for the reports.
                    self.idles.work.remove(key);
                    let outcome = self.call(site, f);
                    let label = self.callbacks.label(site.source);
                    self.callbacks.ended(IdleId(key));
                    if let Err(panic) = outcome {
                        self.fault(site, label, panic);
                    }
                }
                Work::Repeating(mut f) => {
                    let outcome = self.call(site, &mut f);
                    match (outcome, self.idles.work.get_mut(key)) {
                        (Ok(()), Some(idle)) => {
                            idle.work = Work::Repeating(f);
                            self.idles.order.push_back(key);
                        }
                        // Cancelled by itself.
                        (Ok(()), None) => {}
                        (Err(panic), _) => {
                            let label = self.callbacks.label(site.source);
                            self.cancel_idle(IdleId(key));
                            self.fault(site, label, panic);
                        }
                    }
                }
                Work::Running => {}
            }
        }
    }
}
