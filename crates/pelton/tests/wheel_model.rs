//! Compares the timer wheel with a simple model: two sorted maps.

use std::collections::BTreeMap;

use pelton::{Due, Time, TimerKey, Wheel};
use proptest::prelude::*;
use proptest::sample::Index;

/// Up to this many timers, `next_deadline` is exact.
const EXACT: usize = 64;

#[derive(Clone, Debug)]
enum Step {
    Insert(When),
    InsertMany(u16, When),
    Cancel(Index),
    CancelMany(u16),
    Reset(Index, When),
    Expire(When),
    Drain(u8, After),
    NextDeadline,
}

/// A time relative to the current one.
#[derive(Clone, Copy, Debug)]
enum When {
    In(u64),
    Ago(u64),
    /// Close to the next change of the bits from this one up.
    Turn(u8, i8),
    /// Close to the earliest deadline.
    Next(i8),
    Zero,
    Max,
}

/// An operation on an existing timer.
#[derive(Clone, Copy, Debug)]
enum After {
    Cancel,
    Keep,
    Reset(When),
}

/// Up to about `2^most` nanoseconds, each power of two equally likely.
fn span(most: u8) -> impl Strategy<Value = u64> {
    (0..most, any::<u64>()).prop_map(|(bits, random)| (1 << bits) | (random & ((1 << bits) - 1)))
}

fn deadline() -> impl Strategy<Value = When> {
    prop_oneof![
        12 => span(50).prop_map(When::In),
        6 => span(30).prop_map(When::In),
        1 => span(64).prop_map(When::In),
        2 => span(40).prop_map(When::Ago),
        4 => (16..50u8, -2..3i8).prop_map(|(bit, off)| When::Turn(bit, off)),
        3 => (-1..2i8).prop_map(When::Next),
        1 => Just(When::Zero),
        1 => Just(When::Max),
    ]
}

fn clock() -> impl Strategy<Value = When> {
    prop_oneof![
        20 => span(34).prop_map(When::In),
        5 => span(48).prop_map(When::In),
        10 => (-1..2i8).prop_map(When::Next),
        6 => (16..48u8, -2..3i8).prop_map(|(bit, off)| When::Turn(bit, off)),
        2 => span(40).prop_map(When::Ago),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => deadline().prop_map(Step::Insert),
        8 => any::<Index>().prop_map(Step::Cancel),
        8 => (any::<Index>(), deadline()).prop_map(|(which, when)| Step::Reset(which, when)),
        12 => clock().prop_map(Step::Expire),
        8 => (0..9u8, deadline()).prop_map(|(count, when)| Step::Drain(count, After::Reset(when))),
        8 => (0..30u8).prop_map(|count| Step::Drain(count, After::Cancel)),
        2 => (0..9u8).prop_map(|count| Step::Drain(count, After::Keep)),
        8 => Just(Step::NextDeadline),
    ]
}

/// A few steps that create crowds, rare because each is worth hundreds.
fn rough_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        400 => step(),
        2 => (1..400u16, deadline()).prop_map(|(count, when)| Step::InsertMany(count, when)),
        3 => (1..400u16).prop_map(Step::CancelMany),
    ]
}

/// The deadline, and a sequence number that counts all settings.
type Rank = (Time, u64);

#[derive(Default)]
struct Model {
    /// The state of every timer so far; `None` once it is gone.
    timers: Vec<Option<Option<Rank>>>,
    armed: BTreeMap<Rank, usize>,
    collected: BTreeMap<Rank, usize>,
    held: usize,
    set: u64,
}

impl Model {
    fn disarm(&mut self, timer: usize) {
        if let Some(rank) = self.timers[timer].unwrap() {
            assert!(self.armed.remove(&rank).or(self.collected.remove(&rank)).is_some());
            self.timers[timer] = Some(None);
        }
    }

    fn arm(&mut self, timer: usize, deadline: Time) {
        self.disarm(timer);
        self.set += 1;
        self.armed.insert((deadline, self.set), timer);
        self.timers[timer] = Some(Some((deadline, self.set)));
    }

    fn remove(&mut self, timer: usize) {
        self.disarm(timer);
        self.timers[timer] = None;
        self.held -= 1;
    }

    fn next_deadline(&self) -> Option<Time> {
        self.armed.keys().next().into_iter().chain(self.collected.keys().next()).map(|rank| rank.0).min()
    }
}

struct Run {
    now: Time,
    wheel: Wheel<usize>,
    /// By number of the timer, which is also its value.
    keys: Vec<TimerKey>,
    model: Model,
}

impl Run {
    fn time(&self, when: When) -> Time {
        let now = self.now.as_nanos();
        let near = |time: u64, off: i8| time.saturating_add_signed(off.into());
        Time::from_nanos(match when {
            When::In(nanos) => now.saturating_add(nanos),
            When::Ago(nanos) => now.saturating_sub(nanos),
            When::Turn(bit, off) => near(((now >> bit) + 1).checked_shl(bit.into()).unwrap_or(u64::MAX), off),
            When::Next(off) => near(self.model.next_deadline().unwrap_or(self.now).as_nanos(), off),
            When::Zero => 0,
            When::Max => u64::MAX,
        })
    }

    fn insert(&mut self, deadline: Time) {
        let timer = self.keys.len();
        self.keys.push(self.wheel.insert(deadline, timer));
        self.model.timers.push(Some(None));
        self.model.held += 1;
        self.model.arm(timer, deadline);
    }

    fn cancel(&mut self, timer: usize) {
        let there = self.model.timers[timer].is_some();
        assert_eq!(self.wheel.cancel(self.keys[timer]), there.then_some(timer));
        if there {
            self.model.remove(timer);
        }
    }

    fn reset(&mut self, timer: usize, deadline: Time) {
        let there = self.model.timers[timer].is_some();
        assert_eq!(self.wheel.reset(self.keys[timer], deadline), there);
        if there {
            self.model.arm(timer, deadline);
        }
    }

    fn expire(&mut self, now: Time) {
        self.wheel.expire(now);
        self.now = now;
        let later = match now {
            Time::MAX => BTreeMap::new(),
            _ => self.model.armed.split_off(&(Time::from_nanos(now.as_nanos() + 1), 0)),
        };
        self.model.collected.append(&mut self.model.armed);
        self.model.armed = later;
    }

    fn drain(&mut self, count: u8, after: After) {
        for _ in 0..count {
            let due = self.wheel.next_due();
            let first = self.model.collected.first_key_value().map(|(&(deadline, _), &timer)| (deadline, timer));
            assert_eq!(due, first.map(|(deadline, timer)| Due { key: self.keys[timer], deadline }));
            let Some((_, timer)) = first else { return };
            self.model.disarm(timer);
            match after {
                After::Cancel => self.cancel(timer),
                After::Keep => {}
                After::Reset(when) => self.reset(timer, self.time(when)),
            }
        }
    }

    fn check_next_deadline(&mut self) {
        let (found, expected) = (self.wheel.next_deadline(), self.model.next_deadline());
        if self.model.held <= EXACT {
            assert_eq!(found, expected);
        } else {
            assert_eq!(found.is_some(), expected.is_some());
            assert!(found <= expected, "{found:?} is later than {expected:?}");
        }
    }

    /// An existing timer, more likely a recent one.
    fn pick(&self, which: Index) -> Option<usize> {
        let recent = self.keys.len().min(if which.index(4) == 0 { usize::MAX } else { 100 });
        (recent > 0).then(|| self.keys.len() - recent + which.index(recent))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Insert(when) => self.insert(self.time(when)),
            Step::InsertMany(count, when) => {
                let deadline = self.time(when).as_nanos();
                for n in 0..u64::from(count) {
                    self.insert(Time::from_nanos(deadline.saturating_add(n * 7919 % 1000)));
                }
            }
            Step::Cancel(which) => {
                if let Some(timer) = self.pick(which) {
                    self.cancel(timer);
                }
            }
            Step::CancelMany(count) => {
                let timers: Vec<usize> = self.model.armed.values().take(count.into()).copied().collect();
                for timer in timers {
                    self.cancel(timer);
                }
            }
            Step::Reset(which, when) => {
                if let Some(timer) = self.pick(which) {
                    self.reset(timer, self.time(when));
                }
            }
            Step::Expire(when) => self.expire(self.time(when)),
            Step::Drain(count, after) => self.drain(count, after),
            Step::NextDeadline => self.check_next_deadline(),
        }
        assert_eq!((self.wheel.len(), self.wheel.is_empty()), (self.model.held, self.model.held == 0));
    }

    fn check_every_timer(&mut self) {
        for (timer, &key) in self.keys.iter().enumerate() {
            let known = self.model.timers[timer];
            assert_eq!(self.wheel.get(key), known.map(|_| &timer));
            assert_eq!(self.wheel.deadline(key), known.flatten().map(|(deadline, _)| deadline));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn wheel_matches_two_sorted_maps(
        start in prop_oneof![Just(0), span(40), span(62), any::<u64>()],
        steps in prop::collection::vec(rough_step(), 1..1000),
    ) {
        let now = Time::from_nanos(start);
        let mut run = Run { now, wheel: Wheel::new(now), keys: Vec::new(), model: Model::default() };
        for step in steps {
            run.step(step);
        }
        run.check_every_timer();
        run.check_next_deadline();
        // In the end all timers fire in order.
        run.expire(Time::MAX);
        while !run.model.collected.is_empty() {
            run.drain(100, After::Cancel);
        }
        assert!(run.wheel.next_due().is_none());
    }
}
