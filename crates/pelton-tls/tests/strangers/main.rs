//! TLS with implementations that others wrote: OpenSSL, GnuTLS, curl, Python's.
#![cfg(target_os = "linux")]

mod clients;
mod scanners;
mod servers;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use pelton::{Chunk, Connection, EventLoop, Io, Reactor, Reason};
use pelton_testing::{Authority, Issued, Log, listen, run_with};
use pelton_tls::{Server, ServerBuilder};

static AUTHORITY: LazyLock<Authority> = LazyLock::new(|| Authority::new("Pelton's tests"));

static LOCALHOST: LazyLock<Issued> = LazyLock::new(|| AUTHORITY.issue(&["localhost", "127.0.0.1"]));

/// Files for the other programs.
struct Files {
    directory: PathBuf,
    authority: String,
    chain: String,
    key: String,
}

impl Files {
    fn new(issued: &Issued) -> Files {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("pelton-strangers-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let authority = directory.join("authority.pem");
        std::fs::write(&authority, &AUTHORITY.pem).unwrap();
        let (chain, key) = issued.write_to(&directory, "own");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        Files { authority: text(&authority), chain: text(&chain), key: text(&key), directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// What a program wrote, and whether it succeeded.
#[derive(Debug)]
struct Ended {
    succeeded: bool,
    output: String,
}

/// Runs a program with this input beside the loop, for 20 seconds at most.
fn run(reactor: &mut EventLoop, program: &str, arguments: &[&str], input: &str) -> Ended {
    let mut command = Command::new("timeout");
    command.arg("20").arg(program).args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (program, input) = (program.to_owned(), input.to_owned());
    run_with(reactor, move || {
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
        // A program that ends early does not read it.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let ended = child.wait_with_output().unwrap();
        let output = [ended.stdout, ended.stderr].concat();
        Ended { succeeded: ended.status.success(), output: String::from_utf8_lossy(&output).into_owned() }
    })
}

/// Runs `timeout` with these arguments beside the loop, for as long as it takes.
fn run_for_long(reactor: &mut EventLoop, arguments: &[&str]) -> std::process::ExitStatus {
    let mut command = Command::new("timeout");
    let mut child = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    loop {
        reactor.turn(Some(std::time::Duration::from_millis(20))).unwrap();
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
    }
}

/// Answers each line with the line, until one is `quit`: then it finishes.
struct Lines {
    line: Vec<u8>,
    log: Log,
}

impl Connection for Lines {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.line.extend_from_slice(&chunk);
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let rest = self.line.split_off(end + 1);
            let line = std::mem::replace(&mut self.line, rest);
            if line.starts_with(b"quit") {
                return io.close_after_writing();
            }
            io.send(b"you said ").unwrap();
            io.send(&line).unwrap();
        }
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.log.add(reason.to_string());
    }
}

fn server_builder() -> ServerBuilder {
    Server::builder().certificate(&LOCALHOST.chain[..], &LOCALHOST.key[..])
}

/// Serves lines, and returns the port.
fn serve_lines(reactor: &mut EventLoop, tls: &Server, log: &Log) -> String {
    let (tls, log) = (tls.clone(), log.clone());
    let address = listen(reactor, move |_| tls.wrap(Lines { line: Vec::new(), log: log.clone() }));
    address.to_string().rsplit_once(':').unwrap().1.to_owned()
}
