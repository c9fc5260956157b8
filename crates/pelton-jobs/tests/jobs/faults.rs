//! A real server that is killed, frozen, full, read-only, failed over, or behind a network that cuts connections.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Backoff, EventLoop, Reactor};
use pelton_jobs::{Error, Job, Jobs, Run, WorkOptions};
use pelton_redis::Options;
use pelton_testing::{CuttingProxy, RedisNode, RedisServer, eventually, run_until, run_with};

use crate::{enqueue, keep_runs, queue, quick, settled, stats, until_stats};

/// Settings that notice faults soon.
fn quickly(options: Options) -> Options {
    let backoff = Backoff::default().start(Duration::from_millis(5)).most(Duration::from_millis(20));
    options.backoff(backoff).time_limit(Duration::from_secs(15)).connect_limit(Duration::from_secs(15))
}

fn open(reactor: &mut Reactor, url: &str) -> Jobs {
    Jobs::open_redis(reactor, quickly(url.parse().unwrap())).unwrap()
}

/// Starts a worker that records the payloads of jobs that it has done.
fn record(reactor: &mut Reactor, jobs: &Jobs, options: WorkOptions) -> Rc<RefCell<BTreeSet<String>>> {
    let seen = Rc::new(RefCell::new(BTreeSet::new()));
    let filled = seen.clone();
    jobs.work(reactor, options, move |_, run: Run| {
        filled.borrow_mut().insert(crate::text(&run));
        run.done("");
    })
    .unwrap();
    seen
}

/// Enqueues until the store accepts it, as a program would.
fn enqueue_surely(reactor: &mut EventLoop, jobs: &Jobs, payload: &str) {
    loop {
        let enqueued = jobs.enqueue(reactor, "q", Job::new(payload).retry(quick(50)));
        match settled(reactor, enqueued) {
            Ok(_) => return,
            Err(error) => assert!(error.is_temporary(), "{error}"),
        }
    }
}

#[test]
fn jobs_survive_a_killed_server_with_its_append_only_file() {
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &server.url());
    let (worker, runs) = keep_runs(&mut reactor, &jobs, queue().lease(Duration::from_secs(15)));
    enqueue(&mut reactor, &jobs, Job::new("running").key("k"));
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    let before = runs.borrow()[0].fence();
    enqueue(&mut reactor, &jobs, Job::new("blocked").key("k"));
    enqueue(&mut reactor, &jobs, Job::new("delayed").delay(Duration::from_millis(100)));
    server.kill();
    server.restart();
    // The end of the run counts on the restarted server, and what was waiting runs.
    runs.borrow()[0].done("");
    run_until(&mut reactor, |_| {
        runs.borrow().iter().for_each(|run| run.done(""));
        worker.stats().done == 3
    });
    let stats = until_stats(&mut reactor, &jobs, |stats| stats.done == 3);
    assert_eq!((stats.enqueued, stats.stale), (3, 0), "{:?}", worker.stats());
    assert!(runs.borrow()[1..].iter().all(|run| run.fence() > before));
}

#[test]
fn a_server_that_lost_everything_begins_anew_with_growing_numbers() {
    let mut server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &server.url());
    let (worker, runs) = keep_runs(&mut reactor, &jobs, queue().lease(Duration::from_millis(500)));
    enqueue(&mut reactor, &jobs, Job::new("lost"));
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    server.kill();
    server.restart();
    let lost = runs.borrow_mut().pop().unwrap();
    lost.done("");
    run_until(&mut reactor, |_| worker.stats().stale == 1);
    run_until(&mut reactor, |_| lost.is_lost() || worker.stats().running == 0);
    enqueue_surely(&mut reactor, &jobs, "new");
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    assert!(runs.borrow()[0].fence() > lost.fence());
    runs.borrow_mut().pop().unwrap().done("");
    until_stats(&mut reactor, &jobs, |stats| stats.done == 1);
}

#[test]
fn a_server_frozen_longer_than_every_limit_delays_jobs_only() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let options = quickly(server.url().parse().unwrap());
    let short = options.time_limit(Duration::from_millis(150)).connect_limit(Duration::from_millis(150));
    let jobs = Jobs::open_redis(&mut reactor, short).unwrap();
    let seen = record(&mut reactor, &jobs, queue().lease(Duration::from_millis(300)));
    enqueue_surely(&mut reactor, &jobs, "before");
    run_until(&mut reactor, |_| seen.borrow().contains("before"));
    server.freeze();
    let refused = jobs.enqueue(&mut reactor, "q", Job::new("during"));
    let error = settled(&mut reactor, refused).unwrap_err();
    assert!(error.is_temporary(), "{error}");
    let thawed = Rc::new(RefCell::new(false));
    let flag = thawed.clone();
    reactor.after(Duration::from_millis(1000), move |_| *flag.borrow_mut() = true);
    run_until(&mut reactor, |_| *thawed.borrow());
    server.thaw();
    enqueue_surely(&mut reactor, &jobs, "after");
    run_until(&mut reactor, |_| seen.borrow().contains("after"));
}

#[test]
fn connections_cut_at_random_bytes_lose_no_job() {
    for seed in 0..2 {
        let server = RedisServer::start(&[]);
        // A request has about 300 bytes, so most connections see a few of them.
        let proxy = CuttingProxy::start_with(server.socket(), seed, 40_000..60_000);
        let mut reactor = Reactor::new().unwrap();
        let cut = Jobs::open_redis(&mut reactor, quickly(Options::new(proxy.address()))).unwrap();
        let seen = record(&mut reactor, &cut, queue().lease(Duration::from_secs(60)).concurrency(4));
        for number in 0..300 {
            enqueue_surely(&mut reactor, &cut, &number.to_string());
        }
        run_until(&mut reactor, |_| seen.borrow().len() == 300);
        // Looked at without the proxy.
        let jobs = open(&mut reactor, &server.url());
        let stats = until_stats(&mut reactor, &jobs, |stats| stats.ready + stats.running + stats.delayed == 0);
        // One that was enqueued twice, because it was done before it was sent again, is rare.
        assert!((300..=310).contains(&stats.enqueued), "seed {seed}: {stats:?}");
        assert!(proxy.connections() > 3, "seed {seed}");
    }
}

#[test]
fn a_full_server_refuses_new_jobs_and_finishes_old_ones() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &server.url());
    for number in 0..20 {
        enqueue(&mut reactor, &jobs, Job::new(number.to_string()).key(format!("{}", number % 2)));
    }
    // Otherwise the scripts could not be loaded later.
    let (worker, _) = keep_runs(&mut reactor, &jobs, WorkOptions::new("other"));
    server.tell("CONFIG SET maxmemory 1");
    let refused = jobs.enqueue(&mut reactor, "q", Job::new("more"));
    let refused = settled(&mut reactor, refused).unwrap_err();
    assert!(refused.to_string().contains("OOM") || refused.to_string().contains("maxmemory"), "{refused}");
    assert!(refused.is_temporary());
    let seen = record(&mut reactor, &jobs, queue().concurrency(3));
    run_until(&mut reactor, |_| seen.borrow().len() == 20);
    until_stats(&mut reactor, &jobs, |stats| stats.done == 20);
    server.tell("CONFIG SET maxmemory 0");
    enqueue(&mut reactor, &jobs, Job::new("more"));
    run_until(&mut reactor, |_| seen.borrow().contains("more"));
    drop(worker);
}

#[test]
fn a_read_only_server_answers_with_errors_until_it_is_a_master_again() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &server.url());
    let (worker, runs) = keep_runs(&mut reactor, &jobs, queue().lease(Duration::from_millis(600)));
    enqueue(&mut reactor, &jobs, Job::new("x"));
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    server.tell("REPLICAOF 127.0.0.1 1");
    runs.borrow_mut().pop().unwrap().done("");
    run_until(&mut reactor, |_| worker.stats().errors > 0);
    let refused = jobs.enqueue(&mut reactor, "q", Job::new("y"));
    let refused = settled(&mut reactor, refused).unwrap_err();
    assert!(matches!(&refused, Error::Redis(pelton_redis::Error::Server(e)) if e.code() == "READONLY"), "{refused:?}");
    server.tell("REPLICAOF NO ONE");
    // The end of the run was kept, and is told now.
    run_until(&mut reactor, |_| worker.stats().done == 1);
    enqueue_surely(&mut reactor, &jobs, "y");
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
}

#[test]
fn a_failover_by_sentinel_moves_the_jobs() {
    let (mut master, replica, sentinel) = RedisNode::start_sentinel("jobs");
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &format!("redis+sentinel://127.0.0.1:{}/tests", sentinel.port));
    let (worker, runs) = keep_runs(&mut reactor, &jobs, queue().lease(Duration::from_millis(500)));
    enqueue(&mut reactor, &jobs, Job::new("running").key("k"));
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    let fence = runs.borrow()[0].fence();
    enqueue(&mut reactor, &jobs, Job::new("next").key("k"));
    let (port, new, old) = (replica.port, sentinel.port, master.port);
    let offset = master.tell("WAIT 1 5000");
    assert!(offset.starts_with(":1"), "the replica has everything, so that the failover loses nothing here: {offset}");
    master.kill();
    run_with(&mut reactor, move || {
        eventually("another master is elected", || {
            let address = RedisNode::tell_port(new, "SENTINEL get-master-addr-by-name tests")?;
            (!address.contains(&old.to_string())).then_some(())
        });
    });
    let first = runs.borrow_mut().remove(0);
    first.done("");
    // The lease may have been over meanwhile. Then the job runs again.
    let done = |runs: &crate::Runs| runs.borrow_mut().drain(..).map(|run| run.done("")).count();
    let end = std::time::Instant::now() + pelton_testing::DEADLINE;
    while worker.stats().done < 2 {
        assert!(runs.borrow().iter().all(|run| run.fence() > fence));
        done(&runs);
        reactor.turn(Some(Duration::from_millis(10))).unwrap();
        assert!(std::time::Instant::now() < end, "{:?}", worker.stats());
    }
    assert_eq!(stats(&mut reactor, &jobs).running, 0);
    drop((replica, port));
}

/// Runs a worker whose wall clock is an hour off, if `faketime` is there. The clock of a worker is never asked, so this can also be
/// seen from what is sent: no time of the worker is in it.
#[test]
fn clocks_of_workers_do_not_matter() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let jobs = open(&mut reactor, &server.url());
    let lease = Duration::from_millis(300);
    let (worker, runs) = keep_runs(&mut reactor, &jobs, queue().lease(lease));
    enqueue(&mut reactor, &jobs, Job::new("x"));
    run_until(&mut reactor, |_| runs.borrow().len() == 1);
    // What the server stores about time is its own: the idle time of the pending entry.
    let key = "pelton:jobs:{q}:";
    let pending = server.tell(&format!("XPENDING {key}s:2 g - + 10"));
    assert!(pending.contains(worker.name()), "{pending}");
    let id = runs.borrow()[0].id().to_string();
    let fields = server.tell(&format!("HGETALL {key}j:{id}"));
    let lease_is_a_length = fields.split("\r\n").any(|field| field == lease.as_millis().to_string());
    assert!(lease_is_a_length && !fields.contains("until"), "{fields}");
}
