//! A Redis server for one test.

use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::{DEADLINE, eventually};

/// A Redis server that listens on a Unix socket in a temporary directory. Dropping it kills the server and removes the
/// directory. Needs the program `redis-server`.
pub struct RedisServer {
    directory: PathBuf,
    arguments: Vec<String>,
    process: Child,
}

impl RedisServer {
    /// Starts a server without persistence, and waits until it answers. These are further arguments of the program, such as
    /// `--requirepass secret`.
    pub fn start(arguments: &[&str]) -> RedisServer {
        RedisServer::try_start(arguments).unwrap_or_else(|| panic!("redis-server does not start with {arguments:?}"))
    }

    /// Starts a server that also listens on a port, which the arguments contain. Redis cannot say which port it has chosen
    /// itself, so this tries ports until one is free.
    pub fn start_on_port(arguments: impl Fn(u16) -> Vec<String>) -> (RedisServer, u16) {
        ports()
            .find_map(|port| {
                let arguments = arguments(port);
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                Some((RedisServer::try_start(&arguments)?, port))
            })
            .expect("no port is free for redis-server")
    }

    /// Returns `None` if the server ends instead of answering.
    fn try_start(arguments: &[&str]) -> Option<RedisServer> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Paths of sockets have at most 107 bytes.
        let directory = std::env::temp_dir().join(format!("pelton-redis-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.to_string()).collect();
        let process = launch(&directory, &arguments);
        let mut server = RedisServer { directory, arguments, process };
        server.wait().then_some(server)
    }

    /// Returns the path of the server's socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// Returns the directory, for other files of the test.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Kills the server (SIGKILL).
    pub fn kill(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        self.process.wait().unwrap();
    }

    /// Starts a killed server again, and waits until it answers.
    pub fn restart(&mut self) {
        self.process = launch(&self.directory, &self.arguments);
        assert!(self.wait(), "redis-server does not start again");
    }

    /// Stops the process (SIGSTOP). Its sockets stay open, and nothing answers.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues the process (SIGCONT).
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Sends a line (an inline command) on a connection of its own, and returns the beginning of the answer.
    pub fn tell(&self, line: &str) -> String {
        tell(&self.socket(), line).unwrap_or_else(|| panic!("{line:?} was not answered"))
    }

    /// Waits until the server answers. Returns `false` if it has ended.
    fn wait(&mut self) -> bool {
        let socket = self.socket();
        eventually("redis-server answers", || {
            if self.process.try_wait().unwrap().is_some() {
                return Some(false);
            }
            let answer = tell(&socket, "PING")?;
            // With a password, it refuses, which is an answer too.
            (answer.starts_with("+PONG") || answer.starts_with("-NOAUTH")).then_some(true)
        })
    }
}

/// Returns ports to try, below those that the system gives to others.
pub fn ports() -> impl Iterator<Item = u16> {
    let seed = RandomState::new().hash_one(std::process::id());
    (0..100u64).map(move |attempt| 10_000 + ((seed.wrapping_add(attempt * 7919)) % 20_000) as u16)
}

fn launch(directory: &Path, arguments: &[String]) -> Child {
    // The file is left behind by a server that was killed, and would look like one that does not answer.
    let _ = std::fs::remove_file(directory.join("socket"));
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning"]);
    command.arg("--dir").arg(directory).arg("--unixsocket").arg(directory.join("socket")).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("this test needs redis-server")
}

fn tell(socket: &Path, line: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    stream.write_all(format!("{line}\r\n").as_bytes()).ok()?;
    let mut answer = vec![0; 64 << 10];
    let count = stream.read(&mut answer).ok().filter(|count| *count > 0)?;
    answer.truncate(count);
    String::from_utf8(answer).ok()
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
