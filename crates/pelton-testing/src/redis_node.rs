//! Redis servers on ports, for replication and Sentinel.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use crate::{eventually, ports};

/// A process of Redis on a TCP port, in a directory of its own. Killed when dropped.
pub struct RedisNode {
    /// The port.
    pub port: u16,
    process: Child,
    directory: PathBuf,
}

impl RedisNode {
    /// Starts it on a port that is free.
    pub fn start(name: &str, config: &[String], mode: &[&str]) -> RedisNode {
        ports()
            .find_map(|port| RedisNode::try_start(port, name, config, mode))
            .expect("no port is free for redis-server")
    }

    fn try_start(port: u16, name: &str, config: &[String], mode: &[&str]) -> Option<RedisNode> {
        let directory = std::env::temp_dir().join(format!("pelton-sentinel-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("redis.conf");
        let common = format!("port {port}\nbind 127.0.0.1\nsave \"\"\ndir {}\n", directory.display());
        std::fs::write(&file, common + &config.join("\n") + "\n").unwrap();
        let mut command = Process::new("redis-server");
        command.arg(&file).args(mode).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("this test needs redis-server");
        let mut node = RedisNode { port, process, directory };
        eventually("redis-server answers or ends", || match node.process.try_wait().unwrap() {
            Some(_) => Some(false),
            // Another program on this port would not know the process.
            None => tell(port, "INFO server")?.contains(&format!("process_id:{}", node.process.id())).then_some(true),
        })
        .then_some(node)
    }

    /// Starts a master that is called `tests`, a replica and a Sentinel, and waits until they know each other.
    pub fn start_sentinel(name: &str) -> (RedisNode, RedisNode, RedisNode) {
        let master = RedisNode::start(&format!("{name}-master"), &[], &[]);
        let config = [format!("replicaof 127.0.0.1 {}", master.port)];
        let replica = RedisNode::start(&format!("{name}-replica"), &config, &[]);
        master.wait_for("INFO replication", "state=online");
        let config = [
            format!("sentinel monitor tests 127.0.0.1 {} 1", master.port),
            "sentinel down-after-milliseconds tests 500".to_owned(),
            "sentinel failover-timeout tests 5000".to_owned(),
        ];
        let sentinel = RedisNode::start(&format!("{name}-sentinel"), &config, &["--sentinel"]);
        sentinel.wait_for("SENTINEL replicas tests", &replica.port.to_string());
        // It has also asked the replica for its state.
        sentinel.wait_for("SENTINEL replicas tests", "master-link-status\r\n$2\r\nok");
        (master, replica, sentinel)
    }

    /// Sends a line, and returns the beginning of the answer.
    pub fn tell(&self, line: &str) -> String {
        tell(self.port, line).unwrap_or_else(|| panic!("{line:?} was not answered"))
    }

    /// Sends a line to the process on this port, and returns the beginning of the answer, if there is one.
    pub fn tell_port(port: u16, line: &str) -> Option<String> {
        tell(port, line)
    }

    /// Waits until the answer to a line contains a text.
    pub fn wait_for(&self, line: &str, part: &str) {
        let port = self.port;
        eventually(&format!("{line} is answered with {part}"), || tell(port, line)?.contains(part).then_some(()));
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for RedisNode {
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
