//! Timers: setting and cancelling a million of them, and firing a million.
//!
//! Deadlines are spread evenly over a minute, from the same seed for everybody. Each timer owns a boxed callback with 16 captured
//! bytes, allocated when it is set and freed when it is cancelled or fires. Timers are cancelled in the order in which they were
//! set, like timeouts of requests. Time is virtual, so firing a minute's worth takes only as long as the work: once with the
//! clock jumping past the last deadline, once with it advancing by a millisecond at a time, as in a loop.

mod ours;
mod peers;

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Result, ensure};

use crate::harness::{Better, Case, Contender, Contest, Readings, Side, Stopwatch};
use crate::machine::{std_version, version};
use crate::mark::Mark;

const SPREAD_MS: u64 = 60_000;
const NS_PER_MS: u64 = 1_000_000;
const SEED: u64 = 0x5eed;

/// What a timer owns: 16 bytes, like a callback that knows its connection and its reason.
struct Work {
    fired: Rc<Cell<u64>>,
    number: u64,
}

impl Work {
    fn run(self) {
        self.fired.set(self.fired.get() + self.number);
    }
}

type Callback = Box<dyn FnOnce()>;

/// A set of timers. Times are nanoseconds since the set was created.
trait Timers {
    type Key;

    fn insert(&mut self, deadline: u64, work: Work) -> Self::Key;

    /// Drops the callback without firing it. `None` if this set cannot cancel.
    fn cancel(&mut self, key: Self::Key) -> Option<bool>;
}

/// Timers with a settable clock.
trait Fire: Timers {
    /// Fires everything that is due at each reading of the clock in turn.
    fn fire(&mut self, readings: &[u64]);
}

/// Returns the contests: setting and cancelling `count` timers together, and firing them with either clock. Firing is separate,
/// so that no contender fires into a heap fragmented by its own cancelling.
pub fn contests(count: usize) -> Vec<Contest<'static>> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let deadlines: Rc<[u64]> = (0..count).map(|_| random.u64(1..=SPREAD_MS * NS_PER_MS)).collect();
    // Two more milliseconds, because DelayQueue rounds up.
    let by_millisecond: Rc<[u64]> = (1..=SPREAD_MS + 2).map(|ms| ms * NS_PER_MS).collect();
    let one_jump: Rc<[u64]> = by_millisecond.iter().copied().next_back().into_iter().collect();
    vec![
        setting(&deadlines),
        firing("timers fire all, one jump", &deadlines, &one_jump),
        firing("timers fire all, by ms", &deadlines, &by_millisecond),
    ]
}

fn half_of(contender: &'static str) -> Mark {
    Mark::Times { factor: 0.5, against: vec![contender] }
}

fn setting(deadlines: &Rc<[u64]>) -> Contest<'static> {
    fn entrant<T: Timers + 'static>(
        entry: Entry,
        deadlines: &Rc<[u64]>,
        make: fn() -> Result<T>,
    ) -> Contender<'static> {
        let deadlines = deadlines.clone();
        let Entry(name, version, side) = entry;
        Contender::new(name, version, side, move || set_and_cancel(&mut make()?, &deadlines))
    }
    Contest {
        name: "timers".into(),
        cases: vec![
            Case::new("timers insert+cancel", "ns", Better::Lower).mark(half_of(peers::DELAY_QUEUE)),
            Case::new("timers insert", "ns", Better::Lower).table_only(),
            Case::new("timers cancel", "ns", Better::Lower).table_only(),
        ],
        contenders: vec![
            entrant(Entry::delay_queue(), deadlines, peers::Delayed::new),
            entrant(Entry::binary_heap(), deadlines, || Ok(peers::Heap::default())),
            entrant(Entry::tree_map(), deadlines, || Ok(peers::Tree::default())),
            entrant(Entry::wheel(), deadlines, || Ok(ours::WheelTimers::new())),
            entrant(Entry::reactor(), deadlines, ours::ReactorTimers::new),
        ],
    }
}

/// A reactor cannot take part: its clock is real, and firing a minute's worth would take a minute.
fn firing(name: &'static str, deadlines: &Rc<[u64]>, readings: &Rc<[u64]>) -> Contest<'static> {
    let shared = (deadlines.clone(), readings.clone());
    fn entrant<T: Fire + 'static>(
        entry: Entry,
        (deadlines, readings): &(Rc<[u64]>, Rc<[u64]>),
        make: fn() -> Result<T>,
    ) -> Contender<'static> {
        let (deadlines, readings) = (deadlines.clone(), readings.clone());
        let Entry(name, version, side) = entry;
        Contender::new(name, version, side, move || fire(&mut make()?, &deadlines, &readings))
    }
    Contest {
        name: name.into(),
        cases: vec![Case::new(name, "ns", Better::Lower).mark(half_of(peers::BINARY_HEAP))],
        contenders: vec![
            entrant(Entry::delay_queue(), &shared, peers::Delayed::new),
            entrant(Entry::binary_heap(), &shared, || Ok(peers::Heap::default())),
            entrant(Entry::tree_map(), &shared, || Ok(peers::Tree::default())),
            entrant(Entry::wheel(), &shared, || Ok(ours::WheelTimers::new())),
        ],
    }
}

/// The name, version and side of a contender.
struct Entry(&'static str, String, Side);

impl Entry {
    fn delay_queue() -> Self {
        Self(peers::DELAY_QUEUE, version("tokio-util"), Side::Peer)
    }

    fn binary_heap() -> Self {
        Self(peers::BINARY_HEAP, std_version(), Side::Peer)
    }

    fn tree_map() -> Self {
        Self("std BTreeMap", std_version(), Side::Peer)
    }

    fn wheel() -> Self {
        Self("pelton Wheel", version("pelton"), Side::Ours)
    }

    fn reactor() -> Self {
        Self("pelton Reactor", version("pelton"), Side::Ours)
    }
}

/// Measures both steps together and each alone.
fn set_and_cancel<T: Timers>(timers: &mut T, deadlines: &[u64]) -> Result<Readings> {
    let count = deadlines.len() as u64;
    let fired = Rc::new(Cell::new(0));
    let mut keys = Vec::with_capacity(deadlines.len());
    let watch = Stopwatch::start();
    for (number, &deadline) in deadlines.iter().enumerate() {
        keys.push(timers.insert(deadline, Work { fired: fired.clone(), number: number as u64 }));
    }
    let setting = watch.stop();

    let mut cancelled = 0;
    let mut able = true;
    let watch = Stopwatch::start();
    for key in keys {
        match timers.cancel(key) {
            Some(true) => cancelled += 1,
            Some(false) => {}
            None => {
                able = false;
                break;
            }
        }
    }
    let cancelling = watch.stop();
    let insert = Some(setting.cpu_ns_each(count));
    if !able {
        return Ok(vec![None, insert, None]);
    }
    ensure!(cancelled == count, "cancelled {cancelled} of {count} timers");
    ensure!(fired.get() == 0 && Rc::strong_count(&fired) == 1, "a cancelled timer fired or was kept");
    Ok(vec![Some((setting + cancelling).cpu_ns_each(count)), insert, Some(cancelling.cpu_ns_each(count))])
}

fn fire<T: Fire>(timers: &mut T, deadlines: &[u64], readings: &[u64]) -> Result<Readings> {
    let count = deadlines.len() as u64;
    let fired = Rc::new(Cell::new(0));
    for (number, &deadline) in deadlines.iter().enumerate() {
        timers.insert(deadline, Work { fired: fired.clone(), number: number as u64 });
    }
    let watch = Stopwatch::start();
    timers.fire(readings);
    let elapsed = watch.stop();
    // Every callback adds its own number and drops the counter: together these show that each ran exactly once.
    let expected = count * count.saturating_sub(1) / 2;
    let left = Rc::strong_count(&fired) - 1;
    ensure!(fired.get() == expected && left == 0, "of {count} timers {left} were left, or some fired twice");
    Ok(vec![Some(elapsed.cpu_ns_each(count))])
}
