//! The timer wheel.
//!
//! The 64 bits of a deadline are split into a part below a *tick* and eight groups of six bits, one per level:
//!
//! ```text
//!  63    58 57    52 51    46 45    40 39    34 33    28 27    22 21    16 15            0
//! +--------+--------+--------+--------+--------+--------+--------+--------+---------------+
//! |level 7 |level 6 |level 5 |level 4 |level 3 |level 2 |level 1 |level 0 |  within tick  |
//! +--------+--------+--------+--------+--------+--------+--------+--------+---------------+
//!  9 years  52 days  20 h     19 min   17 s     268 ms   4.2 ms   65.5 µs   a slot's width
//! ```
//!
//! A timer is filed at the level of the highest group in which its deadline differs from the current tick, in the slot
//! that this group names. Timers of the current tick or an earlier one are in a small heap, `near`. It follows that
//!
//! - at each level only slots after the current tick's own are occupied, and slots are never shared by two rounds;
//! - everything in `near` comes before everything in level 0, that before everything in level 1, and so on;
//! - when the tick advances and `top` is the highest group that changes, all levels below `top` are over, and so are
//!   the slots of `top` before the new one. Only the timers of the new slot must be filed again, each directly where it
//!   belongs. No other timer moves, so a timer's position follows from its deadline and the current tick alone.
//!
//! A slot holds 24-byte references in blocks, so filing again reads memory sequentially and does not touch the timers
//! themselves. Cancelling or re-arming a timer leaves its reference behind as a *dead* one. It is recognised by its
//! `order`, which a timer gets anew each time it is set. Once dead references far outnumber timers, all of them are
//! swept.

use std::collections::BinaryHeap;
use std::fmt;
use std::mem;

use crate::Time;
use crate::reactor::slots::{Key, Slots};

mod level;
mod pile;

use level::{LEVELS, Level, SLOTS, group, top_level};
use pile::{Pool, Ref};

/// A tick is 2^16 ns, 65.5 µs: short enough that few timers share one, long enough that eight levels span 64 bits.
const TICK_BITS: u32 = 16;
/// The `order` of a timer that is not armed.
const DISARMED: u64 = 0;

/// How many dead references are tolerated, per timer and in addition. A sweep visits all references, dead and live,
/// which amortises to one and a half visits per dead one.
const DEAD_PER_TIMER: usize = 2;
const DEAD_SLACK: usize = 64;
/// A slot with at most this many references is searched for its earliest live one. This bounds the cost of one
/// `next_deadline`.
const SEARCH_LIMIT: usize = 256;
/// References for which the batch and the heaps keep memory, beyond two per timer: 24 KiB each.
const KEEP: usize = 1024;

/// If fewer timers were set since, the reference of a cancelled timer is likely to be the last in its slot, and is
/// looked for there.
const RECENT: u64 = 1024;

/// How many of the next timers are fetched into the cache at a time.
const FETCH: usize = 16;

/// The initial capacity of these, so that a wheel with few timers never has to grow them.
const FEW: usize = 16;

const _: () = assert!(64 + 64 * DEAD_PER_TIMER + DEAD_SLACK <= SEARCH_LIMIT, "`next_deadline` guarantees this");

/// Identifies a timer of a [`Wheel`], from [`insert`](Wheel::insert) to [`cancel`](Wheel::cancel), also after it fired
/// or was re-armed. Afterwards it refers to no timer, unless it is kept while hundreds of millions (2^28) of other
/// timers are set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerKey(Key);

/// A due timer, as returned by [`Wheel::next_due`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Due {
    /// The timer.
    pub key: TimerKey,
    /// Its deadline, never later than the `now` passed to [`Wheel::expire`].
    pub deadline: Time,
}

/// Timers with values, in a hierarchical timer wheel.
///
/// The wheel has no clock: callers pass the time. [`expire`](Wheel::expire) collects the timers that are due.
/// [`next_due`](Wheel::next_due) returns them one by one, ordered by deadline and, for equal deadlines, in the order in
/// which they were set. A returned timer is disarmed but stays in the wheel with its value and key, so that it can be
/// armed again. Call [`cancel`](Wheel::cancel) to remove it.
///
/// Deadlines are exact to the nanosecond, and no timer fires early. Inserting, cancelling, re-arming and firing take
/// constant time (amortised, and apart from sorting timers that are due together). They do not allocate once the wheel
/// has grown to its load. Cancelling a timer returns its value at once. Its memory serves other timers, or is returned
/// to the system by [`next_deadline`](Wheel::next_deadline), which is called when there is time for that.
///
/// ```
/// use pelton::{Time, Wheel};
/// use std::time::Duration;
///
/// let start = Time::from_nanos(1_000_000);
/// let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
///
/// let mut wheel = Wheel::new(start);
/// let tick = wheel.insert(start + second, "tick");
/// let tea = wheel.insert(start + minute, "tea is ready");
/// let bomb = wheel.insert(start + minute, "bang");
/// assert_eq!(wheel.cancel(bomb), Some("bang"));
///
/// assert_eq!(wheel.next_deadline(), Some(start + second));
/// wheel.expire(start + second);
/// while let Some(due) = wheel.next_due() {
///     assert_eq!((due.key, wheel.get(due.key)), (tick, Some(&"tick")));
///     wheel.reset(due.key, due.deadline + minute); // once more, in a minute
/// }
///
/// wheel.expire(start + minute);
/// let due = wheel.next_due().unwrap();
/// assert_eq!(wheel.cancel(due.key), Some("tea is ready"));
/// assert_eq!(wheel.next_due(), None);
/// assert_eq!(wheel.next_deadline(), Some(start + second + minute));
/// ```
pub struct Wheel<T> {
    timers: Slots<Timer<T>>,
    /// For each timer, at its index, the order of the reference that stands for it, or `DISARMED`. Separate from the
    /// timers, because a sweep needs only the orders, and those of all timers. This reduces the memory that it reads.
    orders: Vec<u64>,
    /// The latest order assigned.
    order: u64,
    /// The tick that all timers are filed relative to: that of the latest `now` at which something could be due.
    tick: u64,
    /// No reference outside the batch has an earlier deadline. The timer with this deadline may be gone.
    soonest: u64,
    /// The number of dead references in all places.
    dead: usize,
    /// References for the current tick or earlier.
    near: BinaryHeap<Ref>,
    levels: Box<[Level; LEVELS]>,
    /// Collected references, sorted, with the next one last.
    batch: Vec<Ref>,
    /// References collected while most of an earlier batch was still waiting.
    late: BinaryHeap<Ref>,
    pool: Pool,
}

struct Timer<T> {
    deadline: u64,
    value: T,
}

impl<T> Wheel<T> {
    /// Creates an empty wheel. `now` should be the current time, but any other works too.
    pub fn new(now: Time) -> Wheel<T> {
        Wheel {
            timers: Slots::new(),
            orders: Vec::new(),
            order: DISARMED,
            tick: now.as_nanos() >> TICK_BITS,
            soonest: u64::MAX,
            dead: 0,
            near: BinaryHeap::with_capacity(FEW),
            levels: Box::new([const { Level::EMPTY }; LEVELS]),
            batch: Vec::with_capacity(FEW),
            late: BinaryHeap::new(),
            pool: Pool::EMPTY,
        }
    }

    /// Returns the number of timers, armed or not.
    pub fn len(&self) -> usize {
        self.timers.len()
    }

    /// Returns whether there are no timers.
    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }

    /// Sets a timer. If `deadline` has passed, the next [`expire`](Wheel::expire) collects it.
    pub fn insert(&mut self, deadline: Time, value: T) -> TimerKey {
        let deadline = deadline.as_nanos();
        self.order += 1;
        let key = self.timers.insert(Timer { deadline, value });
        match self.orders.get_mut(key.index as usize) {
            Some(order) => *order = self.order,
            None => {
                debug_assert_eq!(self.orders.len(), key.index as usize, "the slab assigns indexes in order");
                self.orders.push(self.order);
            }
        }
        self.arm(Ref { deadline, order: self.order, key });
        TimerKey(key)
    }

    /// Removes a timer, armed or not, and returns its value, or `None` if it is gone.
    pub fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let timer = self.timers.take(key.0)?;
        let order = mem::replace(&mut self.orders[key.0.index as usize], DISARMED);
        self.disown(timer.deadline, order);
        Some(timer.value)
    }

    /// Arms a timer for `deadline`, whether it was armed, collected or had fired. Returns `false` if it is gone.
    ///
    /// Among timers with the same deadline it counts as set now.
    pub fn reset(&mut self, key: TimerKey, deadline: Time) -> bool {
        let Some(timer) = self.timers.get_mut(key.0) else { return false };
        let deadline = deadline.as_nanos();
        self.order += 1;
        let old_order = mem::replace(&mut self.orders[key.0.index as usize], self.order);
        let old_deadline = mem::replace(&mut timer.deadline, deadline);
        self.disown(old_deadline, old_order);
        self.arm(Ref { deadline, order: self.order, key: key.0 });
        true
    }

    /// Returns when a timer will fire, or `None` if it is gone, or has fired and was not armed again.
    pub fn deadline(&self, key: TimerKey) -> Option<Time> {
        let timer = self.timers.get(key.0)?;
        (self.orders[key.0.index as usize] != DISARMED).then(|| Time::from_nanos(timer.deadline))
    }

    /// Returns a timer's value, or `None` if it is gone.
    pub fn get(&self, key: TimerKey) -> Option<&T> {
        self.timers.get(key.0).map(|timer| &timer.value)
    }

    /// Returns a timer's value mutably, or `None` if it is gone.
    pub fn get_mut(&mut self, key: TimerKey) -> Option<&mut T> {
        self.timers.get_mut(key.0).map(|timer| &mut timer.value)
    }

    /// Returns an iterator over all timers, armed or not, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (TimerKey, &T)> {
        self.timers.iter().map(|(key, timer)| (TimerKey(key), &timer.value))
    }

    /// Returns the earliest deadline of all armed timers, which is when to call [`expire`](Wheel::expire) next.
    ///
    /// Collected timers that have not been returned yet count too. The result may be too early, never too late, if the
    /// earliest timer was cancelled or re-armed and more than 256 others are set for about the same time. Finding the
    /// earliest of them is then deferred until that time. With up to 64 timers the result is always exact.
    pub fn next_deadline(&mut self) -> Option<Time> {
        while self.first_collected().is_some_and(|first| !is_live(first, &self.orders)) {
            self.pop_collected();
            self.dead -= 1;
        }
        while self.near.peek().is_some_and(|first| !is_live(first, &self.orders)) {
            self.near.pop();
            self.dead -= 1;
        }
        self.give_back();
        let collected = self.first_collected().map(|first| first.deadline);
        let armed = self.near.peek().map(|first| first.deadline).or_else(|| self.earliest_in_slots());
        self.soonest = armed.unwrap_or(u64::MAX);
        collected.into_iter().chain(armed).min().map(Time::from_nanos)
    }

    /// Returns whether a timer may be due at `now`. This is cheap, and may return `true` for a timer that was cancelled.
    #[inline]
    pub(crate) fn is_due(&self, now: Time) -> bool {
        now.as_nanos() >= self.soonest || self.first_collected().is_some()
    }

    /// Collects all armed timers with a deadline of `now` or earlier, for [`next_due`](Wheel::next_due) to return.
    ///
    /// Timers set after this call are not among them, even if their deadline has passed. They wait for the next call.
    /// Timers left from an earlier call are merged with the new ones, in order. It is harmless if `now` is earlier than
    /// in the previous call.
    #[inline]
    pub fn expire(&mut self, now: Time) {
        if now.as_nanos() >= self.soonest {
            self.collect(now.as_nanos());
        }
    }

    /// Returns the next collected timer and disarms it, or returns `None` if there are no more.
    ///
    /// Skips timers that were cancelled or re-armed after they were collected.
    pub fn next_due(&mut self) -> Option<Due> {
        while let Some(Ref { deadline, order, key }) = self.pop_collected() {
            if let Some(current) = self.orders.get_mut(key.index as usize)
                && *current == order
            {
                *current = DISARMED;
                return Some(Due { key: TimerKey(key), deadline: Time::from_nanos(deadline) });
            }
            self.dead -= 1;
        }
        None
    }

    /// Returns the level and slot for a deadline after the current tick, or `None` if it belongs in `near` or has been
    /// collected.
    fn position(&self, deadline: u64) -> Option<(usize, usize)> {
        let tick = deadline >> TICK_BITS;
        if tick <= self.tick {
            return None;
        }
        let level = top_level(tick ^ self.tick);
        Some((level, group(tick, level)))
    }

    fn arm(&mut self, new: Ref) {
        self.soonest = self.soonest.min(new.deadline);
        self.file(new);
    }

    fn file(&mut self, new: Ref) {
        let Some((level, index)) = self.position(new.deadline) else { return self.near.push(new) };
        debug_assert!(index > group(self.tick, level), "slots up to the current one are over");
        self.levels[level].push(index, new, &mut self.pool);
    }

    /// Accounts for the reference, if any, of a timer that was just removed or re-armed.
    fn disown(&mut self, deadline: u64, order: u64) {
        if order == DISARMED {
            return;
        }
        if let Some((level, index)) = self.position(deadline) {
            let level = &mut self.levels[level];
            level.doubt(index, deadline);
            // The reference of a timeout that is set and soon cancelled is still the last in its slot.
            if self.order - order < RECENT && level.pop_if_last(index, order, &mut self.pool) {
                return;
            }
        }
        self.dead += 1;
        if self.dead > DEAD_PER_TIMER * self.timers.len() + DEAD_SLACK {
            self.sweep();
        }
    }

    #[inline(never)]
    fn collect(&mut self, now: u64) {
        let waiting = self.batch.len();
        if now >> TICK_BITS > self.tick {
            self.advance(now);
        } else {
            while self.near.peek().is_some_and(|first| first.deadline <= now) {
                self.batch.extend(self.near.pop());
            }
        }
        if waiting > self.batch.len() - waiting {
            // Sorting many waiting references for a few new ones, call after call, would be quadratic.
            self.late.extend(self.batch.drain(waiting..));
        } else {
            self.batch.sort_unstable();
        }
        self.soonest = match self.near.peek() {
            Some(first) => first.deadline,
            None => self.first_slot().map_or(u64::MAX, |(level, index)| self.levels[level].earliest(index)),
        };
        debug_assert!(self.soonest > now || self.soonest == u64::MAX);
        self.fetch();
    }

    /// Advances to the tick of `now`, a later one, and moves due references from `near` and the slots to the batch.
    fn advance(&mut self, now: u64) {
        let tick = now >> TICK_BITS;
        let top = top_level(tick ^ self.tick);
        let here = group(tick, top);
        self.batch.extend(self.near.drain());
        for level in 0..top {
            self.empty_slots(level, SLOTS);
        }
        self.empty_slots(top, here);

        self.tick = tick;
        let mut refs = self.levels[top].take(here);
        while let Some(block) = refs.pop_block() {
            for moved in block.refs() {
                if moved.deadline <= now {
                    self.batch.push(*moved);
                } else {
                    self.file(*moved);
                }
            }
            self.pool.put(block);
        }
        if self.dead > 0 {
            // Dead references have been filed again without a check, into slots that were all empty.
            self.levels[..top].iter_mut().for_each(Level::doubt_all);
        }
    }

    /// Moves all references from the slots of a level before slot `end` to the batch.
    fn empty_slots(&mut self, level: usize, end: usize) {
        for index in self.levels[level].occupied().take_while(|&index| index < end) {
            let mut refs = self.levels[level].take(index);
            while let Some(block) = refs.pop_block() {
                self.batch.extend_from_slice(block.refs());
                self.pool.put(block);
            }
        }
    }

    /// Returns the next collected reference, dead or live.
    fn first_collected(&self) -> Option<&Ref> {
        self.late.peek().max(self.batch.last())
    }

    /// Pops the next collected reference, dead or live.
    fn pop_collected(&mut self) -> Option<Ref> {
        if self.batch.len().is_multiple_of(FETCH) {
            self.fetch();
        }
        if self.late.peek() > self.batch.last() { self.late.pop() } else { self.batch.pop() }
    }

    /// Prefetches the next timers. They are scattered in memory, and waiting for all of them at once takes much less
    /// time than one after the other.
    #[inline]
    fn fetch(&self) {
        let next = &self.batch[self.batch.len().saturating_sub(FETCH)..];
        let there = next.iter().filter(|each| is_live(each, &self.orders) && self.timers.get(each.key).is_some());
        std::hint::black_box(there.count());
    }

    /// Returns the first occupied slot.
    fn first_slot(&self) -> Option<(usize, usize)> {
        self.levels.iter().enumerate().find_map(|(level, slots)| Some((level, slots.occupied().next()?)))
    }

    /// Returns the earliest deadline in the slots, or an earlier time if finding it would take too long.
    fn earliest_in_slots(&mut self) -> Option<u64> {
        loop {
            let (level, index) = self.first_slot()?;
            let level = &mut self.levels[level];
            if !level.is_doubtful(index) || level.len(index) > SEARCH_LIMIT {
                return Some(level.earliest(index));
            }
            self.dead -= level.retain(index, &mut self.pool, |each| is_live(each, &self.orders));
        }
    }

    /// Removes all dead references, and releases the memory that this frees.
    #[cold]
    fn sweep(&mut self) {
        for level in self.levels.iter_mut() {
            for index in level.occupied() {
                level.retain(index, &mut self.pool, |each| is_live(each, &self.orders));
            }
        }
        self.near.retain(|each| is_live(each, &self.orders));
        self.late.retain(|each| is_live(each, &self.orders));
        self.batch.retain(|each| is_live(each, &self.orders));
        self.dead = 0;
    }

    /// Releases memory that the current timers are unlikely to need. This is not done while many timers fire or are
    /// cancelled, because the memory would soon be needed again.
    fn give_back(&mut self) {
        self.timers.trim();
        let enough = self.timers.len() * 2 + KEEP;
        let slots = self.timers.places();
        if self.orders.capacity() > slots * 4 + KEEP {
            self.orders.truncate(slots);
            self.orders.shrink_to(slots * 2);
        }
        if self.batch.capacity() > enough {
            self.batch.shrink_to(enough);
        }
        for heap in [&mut self.near, &mut self.late] {
            if heap.capacity() > enough {
                heap.shrink_to(enough);
            }
        }
        self.pool.trim(self.timers.len());
    }
}

impl<T> fmt::Debug for Wheel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[inline]
fn is_live(each: &Ref, orders: &[u64]) -> bool {
    orders.get(each.key.index as usize).is_some_and(|order| *order == each.order)
}

#[cfg(test)]
mod tests;
