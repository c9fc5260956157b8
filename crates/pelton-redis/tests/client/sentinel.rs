//! A failover by Sentinel, and Sentinels that lie.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use pelton::{Channel, Delivery, Missed, Reactor};
use pelton_redis::{Command, Error, Hub, Options};
use pelton_testing::{eventually, ports, run_until, run_with};

use super::{ask, open, ping, quick};

/// A process of Redis on a TCP port, in a directory of its own. Killed when dropped.
struct Node {
    port: u16,
    process: Child,
    directory: PathBuf,
}

impl Node {
    /// Starts it on a port that is free.
    fn start(name: &str, config: &[String], mode: &[&str]) -> Node {
        ports().find_map(|port| Node::try_start(port, name, config, mode)).expect("no port is free for redis-server")
    }

    fn try_start(port: u16, name: &str, config: &[String], mode: &[&str]) -> Option<Node> {
        let directory = std::env::temp_dir().join(format!("pelton-sentinel-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("redis.conf");
        let common = format!("port {port}\nbind 127.0.0.1\nsave \"\"\ndir {}\n", directory.display());
        std::fs::write(&file, common + &config.join("\n") + "\n").unwrap();
        let mut command = Process::new("redis-server");
        command.arg(&file).args(mode).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("this test needs redis-server");
        let mut node = Node { port, process, directory };
        eventually("redis-server answers or ends", || match node.process.try_wait().unwrap() {
            Some(_) => Some(false),
            // Another program on this port would not know the process.
            None => tell(port, "INFO server")?.contains(&format!("process_id:{}", node.process.id())).then_some(true),
        })
        .then_some(node)
    }

    /// Waits until the answer to a line contains a text.
    fn wait_for(&self, line: &str, part: &str) {
        let port = self.port;
        eventually(&format!("{line} is answered with {part}"), || tell(port, line)?.contains(part).then_some(()));
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn tell(port: u16, line: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    stream.write_all(format!("{line}\r\n").as_bytes()).ok()?;
    let mut answer = vec![0; 16 << 10];
    let length = stream.read(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}

#[test]
fn failover_by_sentinel_is_an_outage_after_which_the_new_master_is_used() {
    let mut master = Node::start("master", &[], &[]);
    let replica = Node::start("replica", &[format!("replicaof 127.0.0.1 {}", master.port)], &[]);
    master.wait_for("INFO replication", "state=online");
    let config = [
        format!("sentinel monitor tests 127.0.0.1 {} 1", master.port),
        "sentinel down-after-milliseconds tests 500".to_owned(),
        "sentinel failover-timeout tests 5000".to_owned(),
    ];
    let sentinel = Node::start("sentinel", &config, &["--sentinel"]);
    sentinel.wait_for("SENTINEL replicas tests", &replica.port.to_string());
    // It has also asked the replica for its state.
    sentinel.wait_for("SENTINEL replicas tests", "master-link-status\r\n$2\r\nok");

    // The first Sentinel does not exist. The second one is asked next.
    let url = format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{}/tests", sentinel.port);
    let options = quick(url.parse().unwrap());
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options.clone());
    let channel: Channel<u32> = Hub::open(&mut reactor, options).unwrap().channel("numbers");
    let heard = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let list = heard.clone();
    let subscribing = pelton::SubscribeOptions::default();
    let _subscription =
        channel.subscribe_with(&mut reactor, subscribing, move |_, delivery| list.borrow_mut().push(delivery));
    let incr = || Command::new("INCR").arg("n");
    assert_eq!(ask::<i64>(&mut reactor, &redis, incr()), Ok(1));
    // The first attempt, at the Sentinel that does not exist, was an outage.
    run_until(&mut reactor, |_| heard.borrow().last() == Some(&Delivery::Missed(Missed::Interrupted)));
    channel.publish(1).unwrap();
    run_until(&mut reactor, |_| heard.borrow().last() == Some(&Delivery::Value(1)));
    // The replica has it, so that the failover loses nothing here. (It may: replication is asynchronous.)
    assert_eq!(ask::<i64>(&mut reactor, &redis, Command::new("WAIT").arg(1).arg(5000)), Ok(1));

    let failover = master.port;
    master.kill();
    let new = sentinel.port;
    run_with(&mut reactor, move || {
        eventually("another master is elected", || {
            let address = tell(new, "SENTINEL get-master-addr-by-name tests")?;
            (!address.contains(&failover.to_string())).then_some(())
        });
    });
    run_until(&mut reactor, |_| redis.stats().connected);
    assert_eq!(ask::<i64>(&mut reactor, &redis, incr()), Ok(2));
    assert!(redis.stats().connects >= 2);
    run_until(&mut reactor, |_| heard.borrow().last() == Some(&Delivery::Missed(Missed::Interrupted)));
    channel.publish(2).unwrap();
    run_until(&mut reactor, |_| heard.borrow().last() == Some(&Delivery::Value(2)));

    // The master is made a replica while the connection stays: a write notices.
    tell(replica.port, "REPLICAOF 127.0.0.1 1").unwrap();
    let outages = redis.stats().outages;
    let answer = ask::<i64>(&mut reactor, &redis, incr());
    assert!(matches!(&answer, Err(Error::Server(error)) if error.code() == "READONLY"), "{answer:?}");
    run_until(&mut reactor, |_| redis.stats().outages > outages);
    tell(replica.port, "REPLICAOF NO ONE").unwrap();
    run_until(&mut reactor, |_| redis.stats().connected);
    assert_eq!(ask::<i64>(&mut reactor, &redis, incr()), Ok(3));
}

#[test]
fn sentinels_that_lie_or_know_nothing_make_commands_fail_in_time() {
    let lies: [&'static [u8]; 7] =
        [b"*-1\r\n", b"-ERR no\r\n", b"*1\r\n+x\r\n", b":7\r\n", b"nonsense\r\n", b"", b"*2\r\n+127.0.0.1\r\n+1\r\n"];
    for lie in lies {
        let mut reactor = Reactor::new().unwrap();
        let options = quick(Options::sentinels(super::liars::liar(lie), [], "name"));
        let redis = open(&mut reactor, options.time_limit(Duration::from_millis(200)));
        let answer = ask::<()>(&mut reactor, &redis, ping());
        assert!(matches!(answer, Err(Error::Unavailable { .. })), "{}: {answer:?}", lie.escape_ascii());
        assert!(redis.stats().outages > 0);
    }
}
