//! Clients of `pelton serve`.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{DEADLINE, eventually};

/// A directory that no other test uses, removed on drop.
pub struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("pelton-serve-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs curl, which must succeed, and returns its output.
pub fn curl(arguments: &[&str]) -> String {
    let curl = Command::new("curl").args(["--silent", "--show-error", "--max-time", "20"]).args(arguments).output();
    let output = curl.expect("this test needs curl");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Opens a connection for writing and reading raw bytes.
pub fn connect(url: &str) -> TcpStream {
    let stream = TcpStream::connect(host(url)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Returns the address in a URL.
pub fn host(url: &str) -> &str {
    url.trim_start_matches("http://").trim_end_matches('/')
}

/// Reads the next response on a connection: its head and its body.
pub fn response(stream: &mut impl Read) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream
            .read_exact(&mut byte)
            .unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&head)));
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).map_or(0, |text| text.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (head, body)
}

/// Sends a request on a connection that stays open.
pub fn ask(stream: &mut (impl Read + Write), path: &str) -> (String, Vec<u8>) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    response(stream)
}

/// Waits for the end of a connection on which nothing more may arrive.
pub fn ends(stream: &mut impl Read) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert_eq!(String::from_utf8_lossy(&rest), ""),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}"),
    }
}

/// A load in the background.
pub struct Load(Option<Child>);

impl Load {
    pub fn start(arguments: &[&str]) -> Load {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_pelton"));
        bench.arg("bench").args(arguments).arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped());
        Load(Some(bench.spawn().unwrap()))
    }

    pub fn finish(mut self) -> serde_json::Value {
        // The output fits into a pipe.
        eventually("the load ends", || self.0.as_mut().unwrap().try_wait().unwrap());
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        result(&output)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the output of `pelton bench --json`.
pub fn bench(arguments: &[&str]) -> serde_json::Value {
    Load::start(arguments).finish()
}

fn result(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A process that has taken over from one that was started here. Stopped if the test fails.
pub struct Successor(Pid);

impl Successor {
    /// Returns the process that has written its ID to this file, other than `before`.
    pub fn of(pid_file: &Path, before: u32) -> Successor {
        let number = eventually("another process has written its number", || {
            let number: u32 = fs::read_to_string(pid_file).ok()?.trim().parse().ok()?;
            (number != before).then_some(number)
        });
        Successor(Pid::from_raw(number as i32).unwrap())
    }

    pub fn id(&self) -> u32 {
        self.0.as_raw_pid() as u32
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.0, signal).unwrap();
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        // Fails if it has ended, as it should have.
        let _ = kill_process(self.0, Signal::TERM);
    }
}
