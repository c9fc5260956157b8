//! System calls of an idle worker, counted by `strace`.

use std::process::Command;
use std::time::{Duration, Instant};

use pelton::Reactor;
use pelton_jobs::{Job, Jobs};
use pelton_testing::{RedisServer, child};

use crate::{enqueue, finish_all, queue, until_stats};

#[test]
fn an_idle_worker_makes_no_system_call_between_heartbeats() {
    const NAME: &str = "idle::an_idle_worker_makes_no_system_call_between_heartbeats";
    if let Some(url) = child::role() {
        return in_child(&url);
    }
    let server = RedisServer::start(&[]);
    for url in ["memory:".to_owned(), server.url()] {
        let trace = server.directory().join("trace");
        let output = Command::new("strace")
            .args(["-f", "-o", trace.to_str().unwrap()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(child::CHILD, &url)
            .output()
            .expect("this test needs strace");
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&trace).unwrap();
        let (_, rest) = text.split_once("getppid").expect("the first mark");
        let (marked, _) = rest.split_once("getppid").expect("the second mark");
        let calls: Vec<&str> =
            marked.lines().skip(1).filter_map(|line| line.split_once(' ')).map(|(_, call)| call).collect();
        // One wait that ends by the timer of the test, and nothing else.
        let (waits, others): (Vec<&str>, Vec<&str>) = calls.iter().partition(|call| call.trim().starts_with("epoll"));
        let others: Vec<&&str> =
            others.iter().filter(|call| !call.contains("resumed") && !call.trim().is_empty()).collect();
        assert!(waits.len() <= 2, "{url}: {marked}");
        assert!(others.iter().all(|call| call.trim_start().starts_with("getppid")), "{url}: {others:?}");
    }
}

fn in_child(url: &str) {
    let mut reactor = Reactor::new().unwrap();
    let jobs = Jobs::open(&mut reactor, url).unwrap();
    // A heartbeat every twenty seconds.
    let log = finish_all(&mut reactor, &jobs, queue().lease(Duration::from_secs(60)));
    enqueue(&mut reactor, &jobs, Job::new("x"));
    until_stats(&mut reactor, &jobs, |stats| stats.done == 1);
    assert_eq!(log.borrow().len(), 1);
    let wait = |reactor: &mut pelton::EventLoop, time: Duration| {
        let end = Instant::now() + time;
        while Instant::now() < end {
            reactor.turn(Some(end.saturating_duration_since(Instant::now()))).unwrap();
        }
    };
    // Until it has asked for more, and waits.
    wait(&mut reactor, Duration::from_millis(300));
    let _ = rustix::process::getppid();
    wait(&mut reactor, Duration::from_millis(500));
    let _ = rustix::process::getppid();
    std::process::exit(0);
}
