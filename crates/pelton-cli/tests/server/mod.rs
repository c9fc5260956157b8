//! A running `pelton` server, and clients for it.

// Each test file that shares this uses a part of it.
#![allow(dead_code)]

pub mod http;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use pelton::ENGINE_VARIABLE;
use pelton_testing::child::lines;
pub use pelton_testing::{DEADLINE, eventually};
use rustix::process::{Pid, Signal, kill_process};

/// Returns a path for a Unix socket that no other test uses.
pub fn socket_file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("pelton-cli-{}-{name}.sock", std::process::id()))
}

/// A running server. Killed if the test fails.
pub struct Server {
    child: Child,
    /// The lines it printed about its addresses.
    pub said: Vec<String>,
    addresses: Vec<String>,
    output: Receiver<String>,
    log: Receiver<String>,
}

impl Server {
    pub fn start(command: &str, arguments: &[&str]) -> Server {
        Server::start_on(1, command, arguments)
    }

    /// Starts it, and waits until it listens on this many addresses.
    pub fn start_on(addresses: usize, command: &str, arguments: &[&str]) -> Server {
        Server::start_program(Path::new(env!("CARGO_BIN_EXE_pelton")), addresses, command, arguments)
    }

    /// Starts it from another path.
    pub fn start_program(program: &Path, addresses: usize, command: &str, arguments: &[&str]) -> Server {
        Server::start_command(Command::new(program), addresses, command, arguments)
    }

    pub fn start_command(mut pelton: Command, addresses: usize, command: &str, arguments: &[&str]) -> Server {
        pelton.arg(command).args(arguments).env_remove(ENGINE_VARIABLE).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pelton.spawn().unwrap();
        let output = lines(child.stdout.take().unwrap());
        let log = lines(child.stderr.take().unwrap());
        let said: Vec<String> = (0..addresses)
            .map(|_| output.recv_timeout(DEADLINE).unwrap_or_else(|error| panic!("{error}; {:?}", log.try_recv())))
            .collect();
        let address = |line: &String| {
            let (_, rest) = line.split_once(" on ").unwrap();
            rest.split(',').next().unwrap().to_owned()
        };
        Server { child, addresses: said.iter().map(address).collect(), said, output, log }
    }

    /// Starts it from a shell that first runs `preparation`, such as setting a limit.
    pub fn start_after(preparation: &str, addresses: usize, command: &str, arguments: &[&str]) -> Server {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{preparation}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_pelton")]);
        Server::start_command(shell, addresses, command, arguments)
    }

    /// Returns all lines that it logged, after it has ended.
    pub fn whole_log(&mut self) -> Vec<String> {
        self.code();
        self.log.iter().collect()
    }

    pub fn address(&self, index: usize) -> &str {
        &self.addresses[index]
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns its process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line that it, or its successor, prints.
    pub fn prints(&self) -> String {
        self.output.recv_timeout(DEADLINE).unwrap()
    }

    /// Waits for the end of this process, not of its successors, and returns its exit code.
    pub fn code(&mut self) -> i32 {
        let status = eventually("it ends", || self.child.try_wait().unwrap());
        status.code().unwrap_or_else(|| panic!("{status}"))
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for a log line that contains `part`, and returns it.
    pub fn log(&mut self, part: &str) -> String {
        let deadline = Instant::now() + DEADLINE;
        let mut logged = Vec::new();
        while let Ok(line) = self.log.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            if line.contains(part) {
                return line;
            }
            logged.push(line);
        }
        panic!("the server did not log {part:?}, but {logged:#?}");
    }

    /// Waits for it to end, which must be a success. Returns how long that took.
    pub fn succeed(mut self) -> Duration {
        let begun = Instant::now();
        // Its log ends with it.
        let mut logged = Vec::new();
        while let Ok(line) = self.log.recv_timeout((begun + DEADLINE).saturating_duration_since(Instant::now())) {
            logged.push(line);
        }
        assert!(begun.elapsed() < DEADLINE, "the server did not end");
        let status = self.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}: {logged:#?}");
        begun.elapsed()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails if it has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that sends and reads lines.
pub struct Client {
    writer: Box<dyn Write + Send>,
    reader: BufReader<Box<dyn Read + Send>>,
}

impl Client {
    pub fn tcp(address: &str) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        // The smaller the kernel's buffers for a client that does not read, the sooner output is queued.
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 * 1024);
        let reader = stream.try_clone().unwrap();
        Client { writer: Box::new(stream), reader: BufReader::new(Box::new(reader)) }
    }

    pub fn unix(path: &Path) -> Client {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let reader = stream.try_clone().unwrap();
        Client { writer: Box::new(stream), reader: BufReader::new(Box::new(reader)) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).unwrap();
    }

    pub fn say(&mut self, line: &str) {
        self.send(format!("{line}\r\n").as_bytes());
    }

    pub fn next_line(&mut self) -> String {
        let line = self.read_line().unwrap();
        assert!(!line.is_empty(), "the connection ended");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(line)
    }

    /// Waits for a line that contains `part`.
    pub fn hear(&mut self, part: &str) {
        while !self.next_line().contains(part) {}
    }

    /// Waits for the end of the connection.
    pub fn hear_end(&mut self) {
        while !self.read_line().unwrap().is_empty() {}
    }
}
