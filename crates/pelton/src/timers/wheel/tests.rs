use super::*;
use std::time::Duration;

const NANO: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);
/// An arbitrary time in which no group is zero or about to overflow.
const START: Time = Time::from_nanos(0x1234_5678_9abc_def0);

/// Returns the values of all timers due at `now`, removed from the wheel.
fn fire<T>(wheel: &mut Wheel<T>, now: Time) -> Vec<T> {
    wheel.expire(now);
    take_due(wheel)
}

fn take_due<T>(wheel: &mut Wheel<T>) -> Vec<T> {
    wheel.check();
    let mut values = Vec::new();
    while let Some(due) = wheel.next_due() {
        values.push(wheel.cancel(due.key).unwrap());
    }
    wheel.check();
    values
}

impl<T> Wheel<T> {
    fn check(&self) {
        let mut refs: Vec<Ref> = Vec::new();
        for (number, level) in self.levels.iter().enumerate() {
            for index in (0..SLOTS).filter(|&index| level.len(index) == 0) {
                assert!(level.occupied().all(|occupied| occupied != index) && !level.is_doubtful(index));
                assert_eq!(level.earliest(index), u64::MAX);
            }
            for index in level.occupied() {
                let here = level.refs(index);
                assert!(here.iter().all(|each| self.position(each.deadline) == Some((number, index))));
                assert!(here.iter().all(|each| each.deadline >= level.earliest(index)));
                let earliest = here.iter().filter(|each| is_live(each, &self.orders)).map(|each| each.deadline).min();
                assert!(level.is_doubtful(index) || earliest == Some(level.earliest(index)));
                refs.extend(here);
            }
        }
        assert!(self.near.iter().all(|each| self.position(each.deadline).is_none()));
        refs.extend(&self.near);
        assert!(refs.iter().all(|each| each.deadline >= self.soonest));
        assert!(self.batch.is_sorted());
        refs.extend(&self.batch);
        refs.extend(&self.late);
        let live = refs.iter().filter(|each| is_live(each, &self.orders)).count();
        let armed = self.timers.iter().filter(|(key, _)| self.orders[key.index as usize] != DISARMED).count();
        assert_eq!((live, refs.len() - live), (armed, self.dead));
        assert!(self.dead <= DEAD_PER_TIMER * self.len() + DEAD_SLACK);
    }
}

#[test]
fn timers_fire_in_order_of_deadline_and_ties_in_the_order_set() {
    let mut wheel = Wheel::new(START);
    wheel.insert(START + SECOND * 2, "c");
    wheel.insert(START + SECOND, "a");
    let moved = wheel.insert(START + SECOND, "moved");
    wheel.insert(START + SECOND, "b");
    wheel.insert(START + SECOND * 2, "d");
    wheel.reset(moved, START + SECOND);
    assert_eq!(fire(&mut wheel, START + SECOND * 3), ["a", "b", "moved", "c", "d"]);
    assert!(wheel.is_empty());
}

#[test]
fn no_timer_fires_early_not_even_within_its_tick() {
    let mut wheel = Wheel::new(START);
    for shift in 0..60 {
        let deadline = Time::from_nanos(START.as_nanos() + (1 << shift));
        wheel.insert(deadline, shift);
        assert_eq!(wheel.next_deadline(), Some(deadline));
        assert_eq!(fire(&mut wheel, deadline - NANO), []);
        assert_eq!(fire(&mut wheel, deadline), [shift]);
        wheel = Wheel::new(START);
    }
    // The same tick, one nanosecond apart.
    let deadline = START + SECOND;
    for nanos in 0..10 {
        wheel.insert(deadline + NANO * nanos, nanos);
    }
    for nanos in 0..10 {
        assert_eq!(wheel.next_deadline(), Some(deadline + NANO * nanos));
        assert_eq!(fire(&mut wheel, deadline + NANO * nanos), [nanos]);
    }
}

#[test]
fn zero_past_and_farthest_deadlines_work() {
    let mut wheel = Wheel::new(START);
    wheel.insert(Time::MAX, "never");
    wheel.insert(START - SECOND, "past");
    wheel.insert(Time::ZERO, "zero");
    assert_eq!(wheel.next_deadline(), Some(Time::ZERO));
    assert_eq!(fire(&mut wheel, START), ["zero", "past"]);
    assert_eq!(wheel.next_deadline(), Some(Time::MAX));
    assert_eq!(fire(&mut wheel, Time::MAX - NANO), Vec::<&str>::new());
    assert_eq!(fire(&mut wheel, Time::MAX), ["never"]);
    wheel.insert(Time::MAX, "again");
    assert_eq!(fire(&mut wheel, Time::MAX), ["again"]);
    assert_eq!(wheel.next_deadline(), None);

    let mut wheel = Wheel::new(Time::ZERO);
    wheel.insert(Time::ZERO, "zero");
    assert_eq!(fire(&mut wheel, Time::ZERO), ["zero"]);
}

#[test]
fn a_clock_that_goes_backwards_does_no_harm() {
    let mut wheel = Wheel::new(START);
    wheel.insert(START + SECOND, 1);
    wheel.insert(START + SECOND * 3, 3);
    assert_eq!(fire(&mut wheel, START + SECOND), [1]);
    wheel.insert(START + SECOND - NANO, 0);
    assert_eq!(fire(&mut wheel, START), []);
    assert_eq!(fire(&mut wheel, START + SECOND - NANO), [0]);
    assert_eq!(fire(&mut wheel, START + SECOND * 3), [3]);
}

#[test]
fn timer_cancelled_after_it_was_collected_is_not_returned() {
    let mut wheel = Wheel::new(START);
    let keys: Vec<_> = (0..4).map(|n| wheel.insert(START + SECOND, n)).collect();
    wheel.expire(START + SECOND);
    assert_eq!(wheel.next_due().unwrap().key, keys[0]);
    assert_eq!((wheel.cancel(keys[0]), wheel.cancel(keys[1]), wheel.cancel(keys[3])), (Some(0), Some(1), Some(3)));
    assert_eq!(wheel.next_deadline(), Some(START + SECOND));
    assert_eq!(take_due(&mut wheel), [2]);
    assert_eq!(wheel.cancel(keys[1]), None);
}

#[test]
fn a_timer_reset_after_it_was_collected_waits_for_its_new_deadline() {
    let mut wheel = Wheel::new(START);
    let (a, b) = (wheel.insert(START + SECOND, "a"), wheel.insert(START + SECOND, "b"));
    wheel.expire(START + SECOND);
    assert!(wheel.reset(a, START + SECOND * 2));
    assert!(wheel.reset(b, START));
    assert_eq!(take_due(&mut wheel), Vec::<&str>::new());
    assert_eq!((wheel.deadline(a), wheel.deadline(b)), (Some(START + SECOND * 2), Some(START)));
    assert_eq!(fire(&mut wheel, START + SECOND), ["b"]);
    assert_eq!(fire(&mut wheel, START + SECOND * 2), ["a"]);
}

#[test]
fn timers_set_while_firing_wait_for_the_next_expire() {
    let mut wheel = Wheel::new(START);
    wheel.insert(START + SECOND, "first");
    wheel.insert(START + SECOND, "second");
    wheel.expire(START + SECOND);
    wheel.next_due();
    wheel.insert(START, "set while firing");
    assert_eq!(wheel.next_deadline(), Some(START));
    assert_eq!(take_due(&mut wheel), ["second"]);
    assert_eq!(fire(&mut wheel, START + SECOND), ["set while firing"]);
}

#[test]
fn undrained_timers_are_merged_with_later_ones() {
    for (waiting, fresh) in [(1, 100), (100, 1), (50, 50), (100, 0)] {
        let mut wheel = Wheel::new(START);
        let late = START + SECOND;
        for n in 0..waiting {
            wheel.insert(late + NANO * n * 10, n * 10);
        }
        wheel.expire(late + SECOND);
        for n in 0..fresh {
            wheel.insert(late + NANO * (n * 10 + 5), n * 10 + 5);
        }
        wheel.expire(late + SECOND);
        let mut all: Vec<u32> = (0..waiting).map(|n| n * 10).chain((0..fresh).map(|n| n * 10 + 5)).collect();
        all.sort();
        assert_eq!(wheel.next_deadline(), Some(late));
        assert_eq!(take_due(&mut wheel), all);
    }
}

#[test]
fn a_periodic_timer_keeps_key_and_value() {
    let mut wheel = Wheel::new(START);
    let key = wheel.insert(START + SECOND, 0);
    for period in 1..100 {
        let now = START + SECOND * period;
        wheel.expire(now);
        assert_eq!(wheel.next_due(), Some(Due { key, deadline: now }));
        assert_eq!((wheel.deadline(key), wheel.get(key), wheel.len()), (None, Some(&(period - 1)), 1));
        assert_eq!((wheel.next_due(), wheel.next_deadline()), (None, None));
        *wheel.get_mut(key).unwrap() += 1;
        assert!(wheel.reset(key, now + SECOND));
        assert_eq!(wheel.deadline(key), Some(now + SECOND));
        wheel.check();
    }
    assert_eq!(wheel.cancel(key), Some(99));
    assert!(!wheel.reset(key, START));
    assert_eq!((wheel.get(key), wheel.deadline(key)), (None, None));
    assert_eq!(wheel.get_mut(key), None);
}

#[test]
fn next_deadline_is_exact_after_the_earliest_timer_is_removed() {
    let mut wheel = Wheel::new(START);
    let keys: Vec<_> = (1..=64).map(|n| wheel.insert(START + SECOND * 3600 + NANO * n, n)).collect();
    for n in 1..=64 {
        assert_eq!(wheel.next_deadline(), Some(START + SECOND * 3600 + NANO * n));
        if n % 2 == 0 {
            wheel.cancel(keys[n as usize - 1]);
        } else {
            wheel.reset(keys[n as usize - 1], START + SECOND * 3700);
        }
        wheel.check();
    }
    // Also if the dead reference of the removed timer was filed again.
    let earliest = wheel.insert(START + SECOND * 60, 0);
    wheel.insert(START + SECOND * 60 + NANO, 1);
    wheel.cancel(earliest);
    wheel.insert(START + SECOND * 59, 2);
    assert_eq!(fire(&mut wheel, START + SECOND * 59), [2]);
    assert_eq!(wheel.next_deadline(), Some(START + SECOND * 60 + NANO));
}

#[test]
fn next_deadline_of_a_crowd_is_never_late_and_leads_to_the_timer() {
    let mut wheel = Wheel::new(START);
    let deadline = |n: u32| START + SECOND * 3600 + Duration::from_micros(1) * n;
    let keys: Vec<_> = (0..10_000).map(|n| wheel.insert(deadline(n), n)).collect();
    for key in &keys[..4000] {
        wheel.cancel(*key);
    }
    let mut wakes = 0;
    loop {
        let next = wheel.next_deadline().unwrap();
        assert!(next <= deadline(4000));
        wakes += 1;
        if let [first, ..] = fire(&mut wheel, next)[..] {
            assert_eq!((first, next), (4000, deadline(4000)));
            break;
        }
    }
    assert!(wakes <= LEVELS, "{wakes} early wake-ups");
}

#[test]
fn invariants_hold_over_many_operations() {
    let mut wheel = Wheel::new(Time::ZERO);
    let mut seed = 1u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let (mut keys, mut now) = (Vec::new(), Time::ZERO);
    for step in 0..20_000 {
        let delay = Duration::from_nanos(random(1 << 20) << random(24));
        match random(10) {
            0..4 => keys.push(wheel.insert(now + delay, step)),
            4..6 if !keys.is_empty() => drop(wheel.cancel(keys.swap_remove(random(keys.len() as u64) as usize))),
            6..8 if !keys.is_empty() => drop(wheel.reset(keys[random(keys.len() as u64) as usize], now + delay)),
            8 => drop(wheel.next_deadline()),
            _ => {
                now += delay / 16;
                wheel.expire(now);
                for _ in 0..random(8) {
                    wheel.next_due();
                }
            }
        }
        if step % 16 == 0 {
            wheel.check();
        }
    }
}

#[test]
fn iterating_finds_timers_armed_or_not_and_none_that_were_cancelled() {
    let mut wheel = Wheel::new(START);
    let fired = wheel.insert(START, "fired");
    let cancelled = wheel.insert(START + SECOND, "cancelled");
    let armed = wheel.insert(START + SECOND, "armed");
    wheel.expire(START);
    assert_eq!(wheel.next_due().map(|due| due.key), Some(fired));
    wheel.cancel(cancelled);
    let mut found: Vec<(TimerKey, &str)> = wheel.iter().map(|(key, value)| (key, *value)).collect();
    found.sort_by_key(|(_, value)| *value);
    assert_eq!(found, [(armed, "armed"), (fired, "fired")]);
}
