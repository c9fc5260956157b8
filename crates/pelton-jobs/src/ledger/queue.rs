//! The jobs of one queue.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::job::Start;
use crate::store::{
    Cancelled, Enqueued, Finished, Held, JobInfo, Limits, Outcome, QueueStats, Request, Response, State, Take, Taken,
    TakenJob,
};
use crate::{Error, Job, JobId, Priority};

/// Numbers begin far from zero: jobs that are put back go in front of the others.
const FIRST_NUMBER: u64 = 1 << 40;

#[derive(Default, Serialize, Deserialize)]
pub(super) struct Queue {
    jobs: HashMap<JobId, Entry>,
    /// By priority, then by a number that grows.
    ready: [BTreeMap<u64, JobId>; Priority::ALL.len()],
    delayed: BTreeSet<(u64, u64, JobId)>,
    /// Leases of running jobs, by their end.
    leases: BTreeSet<(u64, JobId)>,
    /// Unfinished jobs of a key that have become ready, in order. Only the first one is ready, running or waits to be retried.
    keys: HashMap<String, VecDeque<JobId>>,
    unique: HashMap<String, JobId>,
    dead: BTreeMap<u64, JobId>,
    /// Results, by the end of their time.
    kept: BTreeSet<(u64, JobId)>,
    repeats: BTreeMap<String, Repeat>,
    limits: Limits,
    /// The time at which the rate limit is used up to its end ("theoretical arrival time"), in microseconds.
    rate_time: u64,
    sequence: u64,
    totals: Totals,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    job: Job,
    place: Place,
    attempt: u32,
    fence: u64,
    enqueued: u64,
    error: Option<String>,
    progress: Vec<u8>,
    cancel: bool,
}

/// Where a job is, with what finds it there.
#[derive(Clone, Serialize, Deserialize)]
enum Place {
    Ready { number: u64, since: u64 },
    Blocked,
    Delayed { due: u64, number: u64 },
    Running { worker: String, until: u64 },
    Dead { number: u64 },
    Done { until: u64, result: Vec<u8> },
}

#[derive(Serialize, Deserialize)]
struct Repeat {
    every: u64,
    next: u64,
    job: Job,
}

#[derive(Default, Serialize, Deserialize)]
struct Totals {
    enqueued: u64,
    done: u64,
    failed: u64,
    buried: u64,
    taken_over: u64,
    stale: u64,
    cancelled: u64,
}

impl Queue {
    pub(super) fn apply(&mut self, now: u64, fence: &mut u64, request: Request) -> Result<Response, Error> {
        Ok(match request {
            Request::Enqueue { queue, id, job } => Response::Enqueued(self.enqueue(now, &queue, id, job)?),
            Request::Take(take) => Response::Taken(self.take(now, fence, &take)),
            Request::Finish { id, fence, outcome, .. } => Response::Finished(self.finish(now, &id, fence, outcome)),
            Request::Renew { jobs, lease, .. } => {
                Response::Renewed(jobs.iter().map(|(id, fence)| self.renew(now, id, *fence, lease)).collect())
            }
            Request::Progress { id, fence, progress, .. } => Response::Finished(match self.held(&id, fence) {
                Some(entry) => {
                    entry.progress = progress;
                    Finished::Counted
                }
                None => Finished::Stale,
            }),
            Request::Cancel { id, .. } => Response::Cancelled(self.cancel(now, &id)),
            Request::Requeue { id: Some(id), .. } => Response::Count(self.requeue(now, &id)),
            Request::Requeue { id: None, .. } => {
                let dead: Vec<JobId> = self.dead.values().cloned().collect();
                Response::Count(dead.iter().map(|id| self.requeue(now, id)).sum())
            }
            Request::Purge { state, .. } => Response::Count(self.purge(now, state)),
            Request::Repeat { name, every, job, .. } => Response::Count(self.repeat(now, name, every, job)),
            Request::Configure { limits, .. } => {
                self.limits = limits;
                Response::Count(1)
            }
            Request::Inspect { id, .. } => {
                self.forget_results(now);
                Response::Info(self.jobs.get(&id).map(|entry| Box::new(entry.info(&id))))
            }
            Request::List { state, skip, count, .. } => {
                self.forget_results(now);
                let found = self.in_state(state).into_iter().skip(skip as usize).take(count as usize);
                Response::List(found.filter_map(|id| Some(self.jobs.get(&id)?.info(&id))).collect())
            }
            Request::Stats { .. } => Response::Stats(Box::new(self.stats(now))),
            Request::Leave { .. } | Request::Queues | Request::Recover => Response::Count(0),
        })
    }

    fn enqueue(&mut self, now: u64, queue: &str, id: JobId, job: Job) -> Result<Enqueued, Error> {
        if self.jobs.contains_key(&id) {
            return Ok(Enqueued { id, new: true });
        }
        if let Some(other) = job.unique.as_ref().and_then(|unique| self.unique.get(unique)) {
            return Ok(Enqueued { id: other.clone(), new: false });
        }
        let unfinished = (self.jobs.len() - self.dead.len() - self.kept.len()) as u64;
        if let Some(most) = self.limits.most.filter(|most| unfinished >= *most) {
            return Err(Error::Full { queue: queue.to_owned(), most });
        }
        self.totals.enqueued += 1;
        if let Some(unique) = &job.unique {
            self.unique.insert(unique.clone(), id.clone());
        }
        let due = match job.start {
            Start::Now => now,
            Start::In(delay) => now.saturating_add(delay),
            Start::At(time) => time,
        };
        let entry = Entry {
            job,
            place: Place::Blocked,
            attempt: 0,
            fence: 0,
            enqueued: now,
            error: None,
            progress: Vec::new(),
            cancel: false,
        };
        self.jobs.insert(id.clone(), entry);
        if due > now {
            self.delay(&id, due);
        } else {
            self.make_ready(now, &id);
        }
        Ok(Enqueued { id, new: true })
    }

    fn next_number(&mut self) -> u64 {
        self.sequence += 1;
        FIRST_NUMBER + self.sequence
    }

    fn delay(&mut self, id: &JobId, due: u64) {
        let number = self.next_number();
        self.delayed.insert((due, number, id.clone()));
        if let Some(entry) = self.jobs.get_mut(id) {
            entry.place = Place::Delayed { due, number };
        }
    }

    /// Makes a job ready, or puts it behind the others of its key.
    fn make_ready(&mut self, now: u64, id: &JobId) {
        let number = self.next_number();
        let Some(entry) = self.jobs.get_mut(id) else { return };
        if let Some(key) = &entry.job.key {
            let line = self.keys.entry(key.clone()).or_default();
            if line.front() != Some(id) {
                line.push_back(id.clone());
                if line.len() > 1 {
                    entry.place = Place::Blocked;
                    return;
                }
            }
        }
        entry.place = Place::Ready { number, since: now };
        self.ready[entry.job.priority as usize].insert(number, id.clone());
    }

    /// Takes a job out of the place where it is, and out of nothing else.
    fn lift(&mut self, id: &JobId) {
        let Some(entry) = self.jobs.get(id) else { return };
        match &entry.place {
            Place::Ready { number, .. } => drop(self.ready[entry.job.priority as usize].remove(number)),
            Place::Blocked => {}
            Place::Delayed { due, number } => drop(self.delayed.remove(&(*due, *number, id.clone()))),
            Place::Running { until, .. } => drop(self.leases.remove(&(*until, id.clone()))),
            Place::Dead { number } => drop(self.dead.remove(number)),
            Place::Done { until, .. } => drop(self.kept.remove(&(*until, id.clone()))),
        }
    }

    /// Lets the next job of the key, and the next one with the unique key, have its turn.
    fn let_go(&mut self, now: u64, id: &JobId) {
        let Some(entry) = self.jobs.get(id) else { return };
        if let Some(unique) = &entry.job.unique
            && self.unique.get(unique) == Some(id)
        {
            self.unique.remove(unique);
        }
        let Some(key) = entry.job.key.clone() else { return };
        let Some(line) = self.keys.get_mut(&key) else { return };
        let was_first = line.front() == Some(id);
        line.retain(|other| other != id);
        let next = line.front().cloned();
        if line.is_empty() {
            self.keys.remove(&key);
        }
        if let Some(next) = next.filter(|_| was_first) {
            self.make_ready(now, &next);
        }
    }

    /// Ends a job that nobody will run again.
    fn remove(&mut self, now: u64, id: &JobId) {
        self.lift(id);
        self.let_go(now, id);
        self.jobs.remove(id);
    }

    fn bury(&mut self, now: u64, id: &JobId, why: String) {
        self.lift(id);
        self.let_go(now, id);
        let number = self.next_number();
        self.totals.buried += 1;
        self.dead.insert(number, id.clone());
        if let Some(entry) = self.jobs.get_mut(id) {
            entry.error = Some(why);
            entry.place = Place::Dead { number };
        }
    }

    /// Returns the entry if this run of the job is the current one.
    fn held(&mut self, id: &JobId, fence: u64) -> Option<&mut Entry> {
        let held = |entry: &&mut Entry| entry.fence == fence && matches!(entry.place, Place::Running { .. });
        self.jobs.get_mut(id).filter(held)
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.limits.paused
            && self.ready.iter().any(|ready| !ready.is_empty())
            && self.limits.concurrency.is_none_or(|most| (self.leases.len() as u64) < most)
    }

    pub(super) fn next_due(&self) -> Option<u64> {
        let repeated = self.repeats.values().map(|repeat| repeat.next).min();
        self.delayed.first().map(|(due, ..)| *due).into_iter().chain(repeated).min()
    }

    pub(super) fn has_work(&self, now: u64, take: &Take) -> bool {
        self.has_ready()
            || self.next_due().is_some_and(|due| due <= now)
            || self.leases.first().is_some_and(|(until, _)| *until <= now)
            || self.kept.first().is_some_and(|(until, _)| *until <= now)
            || take.known.is_some()
    }

    fn take(&mut self, now: u64, fence: &mut u64, take: &Take) -> Taken {
        self.forget_results(now);
        self.wake_due(now);
        self.end_lapsed(now);
        if let Some(known) = &take.known {
            self.release_unknown(now, &take.worker, known);
        }
        let mut taken = Taken::default();
        while (taken.jobs.len() as u64) < take.count && self.has_ready() {
            if let Some(wait) = self.rate_wait(now) {
                taken.again = Some(wait);
                break;
            }
            let Some(ready) = self.ready.iter_mut().find(|ready| !ready.is_empty()) else { break };
            let Some((_, id)) = ready.pop_first() else { break };
            taken.jobs.extend(self.start(now, fence, &id, take));
        }
        let due = [self.next_due(), self.leases.first().map(|(until, _)| *until)];
        let again = due.into_iter().flatten().map(|time| time.saturating_sub(now).max(1));
        taken.again = again.chain(taken.again).min();
        taken
    }

    fn start(&mut self, now: u64, fence: &mut u64, id: &JobId, take: &Take) -> Option<TakenJob> {
        let entry = self.jobs.get_mut(id)?;
        // As on Redis: the clock keeps it growing even if a store is lost and begins anew.
        *fence = (*fence + 1).max(now.saturating_mul(1000));
        entry.attempt += 1;
        entry.fence = *fence;
        let until = now.saturating_add(take.lease);
        entry.place = Place::Running { worker: take.worker.clone(), until };
        self.leases.insert((until, id.clone()));
        Some(TakenJob {
            id: id.clone(),
            payload: entry.job.payload.clone(),
            key: entry.job.key.clone(),
            attempt: entry.attempt,
            fence: entry.fence,
            retry: entry.job.retry,
            progress: entry.progress.clone(),
        })
    }

    /// Counts a start against the rate limit, or returns after how many milliseconds one is allowed.
    fn rate_wait(&mut self, now: u64) -> Option<u64> {
        let (count, period) = self.limits.rate.filter(|(count, _)| *count > 0)?;
        let (now, period) = (now.saturating_mul(1000), period.saturating_mul(1000));
        let each = period / count;
        let next = self.rate_time.max(now) + each;
        if next > now + period.max(each) {
            return Some((next - now - period).div_ceil(1000).max(1));
        }
        self.rate_time = next;
        None
    }

    /// Makes jobs ready whose time has come.
    fn wake_due(&mut self, now: u64) {
        while let Some((_, _, id)) = self.delayed.first().filter(|(due, ..)| *due <= now).cloned() {
            self.delayed.pop_first();
            self.make_ready(now, &id);
        }
        let due: Vec<String> =
            self.repeats.iter().filter(|(_, repeat)| repeat.next <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            let Some(repeat) = self.repeats.get_mut(&name) else { continue };
            let (at, job) = (repeat.next, repeat.job.clone());
            // Occurrences that were missed are not made up for.
            repeat.next += ((now - at) / repeat.every + 1) * repeat.every;
            // A full queue skips it.
            let _ = self.enqueue(now, "", JobId(format!("{name}@{at}")), job);
        }
    }

    /// Takes jobs away from workers whose lease is over.
    fn end_lapsed(&mut self, now: u64) {
        while let Some((_, id)) = self.leases.first().filter(|(until, _)| *until <= now).cloned() {
            self.totals.taken_over += 1;
            let Some(entry) = self.jobs.get(&id) else { break };
            if entry.cancel {
                self.totals.cancelled += 1;
                self.remove(now, &id);
            } else if entry.attempt >= entry.job.retry.attempts {
                self.bury(now, &id, "its worker did not report back, and it was the last attempt".into());
            } else {
                self.put_back(now, &id);
            }
        }
    }

    /// Puts a running job in front of all others of its priority.
    fn put_back(&mut self, now: u64, id: &JobId) {
        self.lift(id);
        let Some(entry) = self.jobs.get_mut(id) else { return };
        let ready = &mut self.ready[entry.job.priority as usize];
        let number = ready.first_key_value().map_or(FIRST_NUMBER + self.sequence, |(first, _)| first - 1);
        ready.insert(number, id.clone());
        entry.place = Place::Ready { number, since: now };
    }

    fn release_unknown(&mut self, now: u64, worker: &str, known: &[JobId]) {
        let unknown: Vec<JobId> = self
            .leases
            .iter()
            .filter(|(_, id)| {
                let place = self.jobs.get(id).map(|entry| &entry.place);
                matches!(place, Some(Place::Running { worker: other, .. }) if other == worker) && !known.contains(id)
            })
            .map(|(_, id)| id.clone())
            .collect();
        for id in unknown {
            self.put_back(now, &id);
            if let Some(entry) = self.jobs.get_mut(&id) {
                entry.attempt -= 1;
            }
        }
    }

    fn finish(&mut self, now: u64, id: &JobId, fence: u64, outcome: Outcome) -> Finished {
        let Some(entry) = self.held(id, fence) else {
            self.totals.stale += 1;
            return Finished::Stale;
        };
        let (cancel, keep) = (entry.cancel, entry.job.keep);
        match outcome {
            Outcome::Done(result) => {
                self.totals.done += 1;
                if keep == 0 {
                    self.remove(now, id);
                } else {
                    self.lift(id);
                    self.let_go(now, id);
                    let until = now.saturating_add(keep);
                    self.kept.insert((until, id.clone()));
                    if let Some(entry) = self.jobs.get_mut(id) {
                        entry.place = Place::Done { until, result };
                    }
                }
            }
            _ if cancel => {
                self.totals.cancelled += 1;
                self.remove(now, id);
            }
            Outcome::Retry(wait, why) => {
                entry.error = Some(why);
                self.totals.failed += 1;
                self.lift(id);
                self.delay(id, now.saturating_add(wait));
            }
            Outcome::Dead(why) => {
                self.totals.failed += 1;
                self.bury(now, id, why);
            }
            Outcome::Released => {
                entry.attempt -= 1;
                self.put_back(now, id);
            }
        }
        Finished::Counted
    }

    fn renew(&mut self, now: u64, id: &JobId, fence: u64, lease: u64) -> Held {
        let Some(entry) = self.held(id, fence) else { return Held::Lost };
        let cancel = entry.cancel;
        let Place::Running { until, .. } = &mut entry.place else { return Held::Lost };
        let before = std::mem::replace(until, now.saturating_add(lease));
        let until = *until;
        self.leases.remove(&(before, id.clone()));
        self.leases.insert((until, id.clone()));
        if cancel { Held::Cancel } else { Held::Yes }
    }

    fn cancel(&mut self, now: u64, id: &JobId) -> Cancelled {
        match self.jobs.get_mut(id) {
            None => Cancelled::Unknown,
            Some(entry) => match entry.place {
                Place::Done { .. } => Cancelled::Unknown,
                Place::Running { .. } => {
                    entry.cancel = true;
                    Cancelled::Requested
                }
                _ => {
                    self.totals.cancelled += 1;
                    self.remove(now, id);
                    Cancelled::Yes
                }
            },
        }
    }

    fn requeue(&mut self, now: u64, id: &JobId) -> u64 {
        let Some(entry) = self.jobs.get_mut(id).filter(|entry| matches!(entry.place, Place::Dead { .. })) else {
            return 0;
        };
        entry.attempt = 0;
        if let Some(unique) = &entry.job.unique {
            self.unique.entry(unique.clone()).or_insert_with(|| id.clone());
        }
        self.lift(id);
        self.make_ready(now, id);
        1
    }

    fn purge(&mut self, now: u64, state: State) -> u64 {
        if state == State::Running {
            return 0;
        }
        let found = self.in_state(state);
        found.iter().for_each(|id| self.remove(now, id));
        found.len() as u64
    }

    fn repeat(&mut self, now: u64, name: String, every: u64, job: Option<Job>) -> u64 {
        let Some(job) = job else { return u64::from(self.repeats.remove(&name).is_some()) };
        let every = every.max(1);
        // Workers declare it whenever they start. That must not move it.
        let next = self.repeats.get(&name).filter(|repeat| repeat.every == every).map(|repeat| repeat.next);
        let next = next.unwrap_or_else(|| now.saturating_add(every));
        let repeat = Repeat { every, next, job };
        u64::from(self.repeats.insert(name, repeat).is_none_or(|before| before.every != every))
    }

    fn forget_results(&mut self, now: u64) {
        while let Some((_, id)) = self.kept.first().filter(|(until, _)| *until <= now).cloned() {
            self.remove(now, &id);
        }
    }

    pub(super) fn end_leases(&mut self) -> u64 {
        let leases = std::mem::take(&mut self.leases);
        let count = leases.len() as u64;
        for (_, id) in leases {
            if let Some(Entry { place: Place::Running { until, .. }, .. }) = self.jobs.get_mut(&id) {
                *until = 0;
            }
            self.leases.insert((0, id));
        }
        count
    }

    /// Returns the jobs in this state, in their order.
    fn in_state(&self, state: State) -> Vec<JobId> {
        match state {
            State::Ready => self.ready.iter().flat_map(BTreeMap::values).cloned().collect(),
            State::Blocked => {
                let mut keys: Vec<_> = self.keys.iter().collect();
                keys.sort();
                keys.into_iter().flat_map(|(_, line)| line.iter().skip(1)).cloned().collect()
            }
            State::Delayed => self.delayed.iter().map(|(_, _, id)| id.clone()).collect(),
            State::Running => self.leases.iter().map(|(_, id)| id.clone()).collect(),
            State::Dead => self.dead.values().cloned().collect(),
            State::Done => self.kept.iter().map(|(_, id)| id.clone()).collect(),
        }
    }

    fn stats(&self, now: u64) -> QueueStats {
        let ready = self.ready.iter().map(|ready| ready.len() as u64).sum();
        let oldest = self.ready.iter().filter_map(|ready| ready.first_key_value()).filter_map(|(_, id)| {
            match self.jobs.get(id)?.place {
                Place::Ready { since, .. } => Some(now.saturating_sub(since)),
                _ => None,
            }
        });
        let (delayed, running, dead) = (self.delayed.len() as u64, self.leases.len() as u64, self.dead.len() as u64);
        let all = (self.jobs.len() - self.kept.len()) as u64;
        let Totals { enqueued, done, failed, buried, taken_over, stale, cancelled } = self.totals;
        QueueStats {
            ready,
            blocked: all - ready - delayed - running - dead,
            delayed,
            running,
            dead,
            oldest: oldest.max().unwrap_or(0),
            enqueued,
            done,
            failed,
            buried,
            taken_over,
            stale,
            cancelled,
            limits: self.limits,
        }
    }
}

impl Entry {
    fn info(&self, id: &JobId) -> JobInfo {
        let (state, due, worker, result) = match &self.place {
            Place::Ready { .. } => (State::Ready, None, None, None),
            Place::Blocked => (State::Blocked, None, None, None),
            Place::Delayed { due, .. } => (State::Delayed, Some(*due), None, None),
            Place::Running { worker, .. } => (State::Running, None, Some(worker.clone()), None),
            Place::Dead { .. } => (State::Dead, None, None, None),
            Place::Done { result, .. } => (State::Done, None, None, Some(result.clone())),
        };
        JobInfo {
            id: id.clone(),
            state,
            payload: self.job.payload.clone(),
            key: self.job.key.clone(),
            priority: self.job.priority,
            attempt: self.attempt,
            attempts: self.job.retry.attempts,
            enqueued: self.enqueued,
            due,
            worker,
            fence: self.fence,
            error: self.error.clone(),
            progress: self.progress.clone(),
            result,
        }
    }
}
