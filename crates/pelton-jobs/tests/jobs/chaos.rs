//! Many jobs through three workers that are killed and frozen at random, with clocks that differ.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use pelton::Reactor;
use pelton_jobs::{Failure, Job, Jobs, WorkOptions};
use pelton_redis::{Client, Command as Redis};
use pelton_testing::{RedisServer, child};
use rustix::process::{Pid, Signal, kill_process};

use crate::{quick, settled};

/// `cargo xtask soak --only jobs` sets this to 100,000.
fn jobs_to_run() -> u64 {
    std::env::var("PELTON_SOAK_JOBS").map_or(5_000, |text| text.parse().expect("PELTON_SOAK_JOBS is a number"))
}

const KEYS: u64 = 50;

const LEASE: Duration = Duration::from_millis(800);

/// An effect that checks the number of the run: it refuses runs that are older than one that it has seen for the key.
/// Records the order of accepted effects, and counts refused ones.
const EFFECT: &str = "
if tonumber(redis.call('HGET', 'fences', ARGV[1]) or 0) > tonumber(ARGV[2]) then
  redis.call('INCR', 'overlaps')
  return 0
end
redis.call('HSET', 'fences', ARGV[1], ARGV[2])
redis.call('RPUSH', 'order:' .. ARGV[1], ARGV[3])
return 1";

fn in_child(url: &str) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = Jobs::open(&mut reactor, url).unwrap();
    let redis = Client::open(&mut reactor, url).unwrap();
    let options = WorkOptions::new("q").concurrency(20).lease(LEASE);
    let handler = move |run: pelton_jobs::Run| {
        let redis = redis.clone();
        async move {
            // Jobs of fifty keys take a while, so that workers die in the middle of some.
            pelton::task::sleep(Duration::from_millis(fastrand::u64(..40))).await;
            let key = run.key().unwrap_or_default().to_owned();
            let effect = Redis::new("EVAL").arg(EFFECT).arg(0).arg(key).arg(run.fence()).arg(run.payload());
            let accepted: i64 = redis.query(effect).await?;
            if accepted == 1 { Ok(Vec::new()) } else { Err(Failure::new("another run has overtaken this one")) }
        }
    };
    jobs.work_async(&mut reactor, options, handler).unwrap();
    reactor.run().unwrap();
}

/// Returns the library that changes the clock of a process.
fn faketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap().map_while(Result::ok);
    let mut files = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    files.find(|file| file.exists()).expect("this test needs faketime")
}

/// A worker in a process of its own.
struct Victim(Child);

impl Victim {
    fn start(test: &str, url: &str, number: usize) -> Victim {
        let mut command = child::command(test, url);
        // Workers whose clocks are an hour ahead, and an hour behind.
        if !number.is_multiple_of(3) {
            command.env("LD_PRELOAD", faketime()).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            command.env("FAKETIME", if number % 3 == 1 { "-1h" } else { "+1h" });
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Victim(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn three_workers_killed_at_random_do_every_job_in_the_order_of_its_key() {
    const NAME: &str = "chaos::three_workers_killed_at_random_do_every_job_in_the_order_of_its_key";
    if let Some(url) = child::role() {
        return in_child(&url);
    }
    let server = RedisServer::start(&[]);
    let total = jobs_to_run();
    let mut reactor = Reactor::new().unwrap();
    let jobs = Jobs::open(&mut reactor, &server.url()).unwrap();
    let mut victims: Vec<Victim> = (0..3).map(|number| Victim::start(NAME, &server.url(), number)).collect();
    let mut random = fastrand::Rng::with_seed(23);
    let (mut killed, mut frozen, mut enqueued) = (0, 0, 0);
    let mut next_fault = Instant::now() + Duration::from_millis(300);
    let end = Instant::now() + Duration::from_secs(60 + total / 100);
    loop {
        // A few hundred at a time, so that faults come while jobs are enqueued and while they run.
        let mut batch = Vec::new();
        while enqueued < total && batch.len() < 200 {
            let job = Job::new(enqueued.to_string()).key(format!("key {}", enqueued % KEYS)).retry(quick(1000));
            batch.push(jobs.enqueue(&mut reactor, "q", job));
            enqueued += 1;
        }
        for enqueued in batch {
            assert!(settled(&mut reactor, enqueued).unwrap().new);
        }
        let stats = crate::stats(&mut reactor, &jobs);
        if stats.done == total {
            break;
        }
        assert!(Instant::now() < end, "{stats:?}");
        reactor.turn(Some(Duration::from_millis(20))).unwrap();
        if Instant::now() < next_fault {
            continue;
        }
        next_fault = Instant::now() + Duration::from_millis(random.u64(30..200));
        let which = random.usize(..3);
        if random.bool() {
            killed += 1;
            victims[which] = Victim::start(NAME, &server.url(), which);
        } else {
            frozen += 1;
            victims[which].signal(Signal::STOP);
            let awake = Instant::now() + LEASE + Duration::from_millis(random.u64(..500));
            while Instant::now() < awake {
                reactor.turn(Some(Duration::from_millis(20))).unwrap();
            }
            victims[which].signal(Signal::CONT);
        }
    }
    let stats = crate::stats(&mut reactor, &jobs);
    assert_eq!((stats.dead, stats.ready, stats.running, stats.delayed, stats.blocked), (0, 0, 0, 0, 0), "{stats:?}");
    let redis = Client::open(&mut reactor, server.url().as_str()).unwrap();
    let mut doubles = 0;
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for key in 0..KEYS {
        let range = Redis::new("LRANGE").arg(format!("order:key {key}")).arg(0).arg(-1);
        let order = redis.ask::<pelton_redis::Value>(&mut reactor, range);
        let order = pelton_testing::block_on(&mut reactor, order).unwrap().into_elements().unwrap();
        let order: Vec<u64> = order
            .into_iter()
            .map(|value| std::str::from_utf8(value.as_bytes().unwrap()).unwrap().parse().unwrap())
            .collect();
        assert!(order.is_sorted(), "key {key}: {order:?}");
        for number in order {
            *counts.entry(number).or_default() += 1;
        }
    }
    for number in 0..total {
        let count = counts.get(&number).copied().unwrap_or(0);
        assert!(count >= 1, "job {number} had no effect");
        doubles += count - 1;
    }
    let overlaps = server.tell("GET overlaps");
    let overlaps: u64 = overlaps.lines().nth(1).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    println!(
        "{total} jobs; {killed} workers killed, {frozen} frozen; {} jobs taken over, {doubles} effects doubled, {overlaps} refused, {} ends did not count",
        stats.taken_over, stats.stale
    );
    assert!(killed > 0 && stats.taken_over > 0, "{killed} killed, {stats:?}");
    // A run is repeated only because it was taken over, or because its end got no answer.
    assert!(doubles <= stats.taken_over + 20 * killed, "{doubles} doubles, {stats:?}");
}
