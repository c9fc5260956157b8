//! Allocations of the timer wheel.

use std::time::Duration;

use allocation_counter::measure;
use pelton::{Time, TimerKey, Wheel};

const SECOND: Duration = Duration::from_secs(1);
/// Memory kept for reuse: blocks, and capacity of the batch and the heaps.
const SMALL: i64 = 320 * 1024;

/// Bytes that are held afterwards but were not before.
fn left_by(run: impl FnOnce()) -> i64 {
    measure(run).bytes_current
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 20
}

fn shuffle(keys: &mut [TimerKey]) {
    let mut seed = 2;
    for last in (1..keys.len()).rev() {
        keys.swap(last, random(&mut seed) as usize % (last + 1));
    }
}

fn fill(wheel: &mut Wheel<u64>, now: Time, count: usize) -> Vec<TimerKey> {
    let mut seed = 1;
    (0..count).map(|_| wheel.insert(now + Duration::from_nanos(random(&mut seed) % 60_000_000_000), 0)).collect()
}

fn fire_all(wheel: &mut Wheel<u64>) {
    while let Some(due) = wheel.next_due() {
        wheel.cancel(due.key);
    }
}

#[test]
fn removed_timers_hold_no_memory() {
    let now = Time::ZERO + SECOND * 12_345;
    let mut wheel = Wheel::new(now);

    for order in ["first to last", "last to first", "in any order"] {
        let left = left_by(|| {
            let mut keys = fill(&mut wheel, now, 1_000_000);
            match order {
                "first to last" => {}
                "last to first" => keys.reverse(),
                _ => shuffle(&mut keys),
            }
            for key in keys {
                wheel.cancel(key);
            }
            wheel.next_deadline();
        });
        assert!(left < SMALL, "a million cancelled {order}: {left} bytes left");
    }

    let left = left_by(|| {
        fill(&mut wheel, now, 1_000_000);
        wheel.expire(now + SECOND * 60);
        fire_all(&mut wheel);
        wheel.next_deadline();
    });
    assert!(left < SMALL, "a million fired: {left} bytes left");

    let left = left_by(|| {
        let mut keys = fill(&mut wheel, now, 10);
        for n in 0..1_000_000 {
            let key = wheel.insert(now + SECOND * 3600 + Duration::from_nanos(n), n);
            wheel.reset(keys[n as usize % 10], now + SECOND * 1800);
            wheel.cancel(std::mem::replace(&mut keys[(n as usize + 5) % 10], key));
        }
        for key in keys {
            wheel.cancel(key);
        }
        wheel.next_deadline();
    });
    assert!(left < SMALL, "a million set and soon cancelled: {left} bytes left");
    assert!(wheel.is_empty());
}

#[test]
fn few_remaining_timers_do_not_keep_the_memory_of_many() {
    let now = Time::ZERO + SECOND * 12_345;
    let left = measure(|| {
        let mut wheel = Wheel::new(now);
        let few = fill(&mut wheel, now, 10);
        let mut many = fill(&mut wheel, now, 200_000);
        shuffle(&mut many);
        let held = measure(|| {
            for key in &many {
                wheel.cancel(*key);
            }
            // As a loop does before each wait.
            for _ in 0..100 {
                wheel.next_deadline();
            }
        });
        assert!(-held.bytes_current > 8 * 1024 * 1024, "only {} bytes were given back", -held.bytes_current);
        for key in few {
            assert!(wheel.cancel(key).is_some());
        }
    });
    assert_eq!(left.bytes_current, 0);
}

#[test]
fn rearming_timers_forever_allocates_nothing() {
    let now = Time::ZERO + SECOND * 12_345;
    for count in [1, 10, 1_000, 20_000] {
        let mut now = now;
        let mut wheel = Wheel::new(now);
        let keys: Vec<TimerKey> = fill(&mut wheel, now, count);
        let mut seed = 1;
        let mut turns = |wheel: &mut Wheel<u64>, turns: u64| {
            measure(|| {
                for _ in 0..turns {
                    now += Duration::from_millis(10);
                    wheel.expire(now);
                    while let Some(due) = wheel.next_due() {
                        wheel.reset(due.key, now + Duration::from_nanos(random(&mut seed) % 60_000_000_000));
                    }
                    let key = keys[random(&mut seed) as usize % count];
                    wheel.reset(key, now + Duration::from_nanos(random(&mut seed) % 60_000_000_000));
                    wheel.next_deadline();
                }
            })
            .count_total
        };
        // Long enough to have reached the maximum number of occupied slots.
        turns(&mut wheel, 400_000);
        let allocations = turns(&mut wheel, 100_000);
        assert_eq!(allocations, 0, "with {count} timers rearmed forever");
    }
}
