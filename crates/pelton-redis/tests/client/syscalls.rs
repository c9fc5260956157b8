//! System calls, counted by `strace`: the commands of one turn go out in one write.

use std::process::Command as Process;
use std::time::Duration;

use pelton::Reactor;
use pelton_redis::{Client, Command};
use pelton_testing::{RedisServer, child};

const COMMANDS: u64 = 100;

#[test]
fn commands_of_one_turn_go_out_in_one_write() {
    if let Some(url) = child::role() {
        return in_child(&url);
    }
    let server = RedisServer::start(&[]);
    let trace = server.directory().join("trace");
    let output = Process::new("strace")
        .args(["-f", "-o", trace.to_str().unwrap()])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "syscalls::commands_of_one_turn_go_out_in_one_write", "--nocapture"])
        .env(child::CHILD, server.url())
        .output()
        .expect("this test needs strace");
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(&trace).unwrap();
    let (_, rest) = text.split_once("getppid").expect("the first mark");
    let (marked, _) = rest.split_once("getppid").expect("the second mark");
    let count = |names: &[&str]| {
        let calls = marked.lines().filter_map(|line| line.split_whitespace().nth(1));
        calls.filter(|call| names.iter().any(|name| call.starts_with(&format!("{name}(")))).count()
    };
    let writes = count(&["write", "writev", "sendto", "sendmsg"]);
    assert_eq!(writes, 1, "{marked}");
    // The server may answer in a few pieces.
    let others = count(&["read", "readv", "recvfrom", "recvmsg", "epoll_wait", "epoll_pwait2"]);
    assert!((2..20).contains(&others), "{others}: {marked}");
    assert_eq!(count(&["mmap", "epoll_ctl", "clock_gettime"]), 0, "{marked}");
}

fn in_child(url: &str) {
    let mut reactor = Reactor::new().unwrap();
    let redis = Client::open(&mut reactor, url).unwrap();
    let turn = |reactor: &mut pelton::EventLoop| {
        let goal = redis.stats().answered + COMMANDS;
        let before = redis.stats().sent;
        for number in 0..COMMANDS {
            redis.tell(reactor, Command::new("SET").arg("key").arg(number));
        }
        reactor.run_until(|_| redis.stats().answered == goal).unwrap();
        assert_eq!(redis.stats().sent, before + COMMANDS);
    };
    // The memory for it is allocated the first time, and the connection is made.
    turn(&mut reactor);
    turn(&mut reactor);
    reactor.turn(Some(Duration::ZERO)).unwrap();
    let _ = rustix::process::getppid();
    turn(&mut reactor);
    let _ = rustix::process::getppid();
    std::process::exit(0);
}
