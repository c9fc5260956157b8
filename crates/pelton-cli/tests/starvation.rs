//! `pelton serve` when it runs out of something: descriptors, memory, file lane threads, space for the log.
//!
//! In each case, connected clients are still served, new ones get an error, the admin address answers, the server recovers
//! without a restart, and nothing leaks.

#![forbid(unsafe_code)]
// Limits and `/proc` are specific to Linux, and so is `strace`.
#![cfg(target_os = "linux")]

mod server;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use server::http::{Directory, Successor, ask, connect, curl, response};
use server::{DEADLINE, Server, eventually};

/// A little longer than a cached file is served without checking the disk.
const STALE: Duration = Duration::from_millis(1200);

/// A file server with an admin address, and its number of descriptors before the first request.
struct Scene {
    server: Server,
    id: u32,
    descriptors: usize,
    _site: Directory,
}

impl Scene {
    /// Starts it from a shell that first runs `preparation`.
    fn start(name: &str, preparation: &str, arguments: &[&str]) -> Scene {
        Scene::start_with(name, arguments, |arguments| Server::start_after(preparation, 2, "serve", arguments))
    }

    fn start_with(name: &str, arguments: &[&str], start: impl FnOnce(&[&str]) -> Server) -> Scene {
        let site = Directory::new(name);
        fs::write(site.file("known"), "known\n").unwrap();
        fs::write(site.file("other"), "other\n").unwrap();
        fs::write(site.file("block"), vec![b'x'; 60_000]).unwrap();
        let (root, pid_file) = (site.file(""), site.file(".pid"));
        let own = [root.to_str().unwrap(), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--pid-file"];
        let server = start(&[&own[..], &[pid_file.to_str().unwrap()], arguments].concat());
        let id = fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        let mut scene = Scene { server, id, descriptors: 0, _site: site };
        // One request of each kind, so that long-lived descriptors are open.
        scene.is_served(&mut scene.connect());
        scene.admin_answers();
        scene.descriptors = scene.settled_descriptors();
        scene
    }

    fn connect(&self) -> TcpStream {
        connect(self.server.address(0))
    }

    fn is_served(&self, stream: &mut TcpStream) {
        let (head, body) = ask(stream, "/known");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert_eq!(body, b"known\n");
    }

    /// Checks that a new client gets 503 at once.
    fn new_client_gets_503(&self) {
        let (head, _) = response(&mut self.connect());
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Connection: close\r\n"), "{head}");
    }

    fn metrics(&self) -> String {
        curl(&[&format!("{}metrics", self.server.address(1))])
    }

    fn metric(&self, name: &str) -> f64 {
        let metrics = self.metrics();
        let of_it = metrics.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        of_it.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    fn admin_answers(&self) {
        assert_eq!(curl(&[&format!("{}health", self.server.address(1))]), "ok\n");
        assert!(self.metrics().contains("pelton_http_connections{"));
    }

    fn open_descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.id)).unwrap().count()
    }

    /// Returns the number of descriptors once those of disconnected clients are closed.
    fn settled_descriptors(&self) -> usize {
        eventually("connections are closed", || {
            let idle = ["pelton_http_connections", "pelton_http_requests_in_flight"];
            idle.iter().all(|name| self.metric(name) == 0.0).then_some(())
        });
        // Those of the admin address are closed a moment later.
        let (mut last, mut since) = (self.open_descriptors(), Instant::now());
        eventually("the number of descriptors stays the same", || {
            let now = self.open_descriptors();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            (since.elapsed() > Duration::from_millis(50)).then_some(last)
        })
    }

    /// Checks that new clients are served again, and that nothing leaked.
    fn recovers(mut self) {
        eventually("new clients are served", || {
            let mut stream = self.connect();
            let (head, _) = ask(&mut stream, "/other");
            head.starts_with("HTTP/1.1 200 OK\r\n").then(|| self.is_served(&mut stream))
        });
        assert_eq!(self.metric("pelton_panics_total"), 0.0);
        let left = self.settled_descriptors();
        assert!(left <= self.descriptors, "{left} descriptors, {} at the start", self.descriptors);
        kill_process(self.pid(), Signal::TERM).unwrap();
        let logged = self.server.whole_log();
        assert!(!logged.iter().any(|line| line.contains("panicked")), "{logged:#?}");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.id as i32).unwrap()
    }
}

#[test]
fn descriptors_run_out() {
    for (engine, workers) in [("epoll", "1"), ("epoll", "2"), ("poll", "2"), ("select", "1")] {
        let limit = if workers == "1" { "ulimit -n 48" } else { "ulimit -n 64" };
        let mut scene = Scene::start("descriptors", limit, &["--workers", workers, "--engine", engine]);
        let said = scene.server.log("fewer connections than requested");
        let admitted: usize = said.split("connections=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!((4..40).contains(&admitted), "{said}");
        let mut first = scene.connect();
        scene.is_served(&mut first);
        // All at once, from the server's point of view.
        kill_process(scene.pid(), Signal::STOP).unwrap();
        let mut others: Vec<TcpStream> = (0..60).map(|_| scene.connect()).collect();
        kill_process(scene.pid(), Signal::CONT).unwrap();
        eventually("all have been accepted", || {
            (scene.metric("pelton_http_connections_refused_total") == (61 - admitted) as f64).then_some(())
        });
        assert_eq!(scene.metric("pelton_http_connections"), admitted as f64);
        // The workers choose which clients they admit: the others have their response by now.
        let is_told = |stream: &mut TcpStream| {
            stream.set_nonblocking(true).unwrap();
            let mut head = [0; 12];
            stream.read(&mut head).is_ok() && head == *b"HTTP/1.1 503"
        };
        let told = others.iter_mut().filter_map(|stream| is_told(stream).then_some(())).count();
        assert_eq!(told, 61 - admitted);
        scene.new_client_gets_503();
        scene.is_served(&mut first);
        // A file that has to be looked up again, and one that was not requested before.
        let begun = Instant::now();
        while begun.elapsed() < STALE {
            scene.is_served(&mut first);
        }
        assert!(ask(&mut first, "/other").0.starts_with("HTTP/1.1 200 OK\r\n"));
        scene.admin_answers();
        drop((first, others));
        scene.recovers();
    }
}

#[test]
fn cached_files_are_served_when_no_file_can_be_opened() {
    let scene = Scene::start("exhausted", "true", &[]);
    let mut stream = scene.connect();
    scene.is_served(&mut stream);
    let limit = |soft| {
        let hard = prlimit(Some(scene.pid()), Resource::Nofile, Rlimit { current: Some(soft), maximum: Some(1024) });
        hard.unwrap()
    };
    limit(3);
    let begun = Instant::now();
    let mut asked = 0;
    while begun.elapsed() < 2 * STALE {
        scene.is_served(&mut stream);
        asked += 1;
        thread::sleep(Duration::from_millis(10));
    }
    assert!(asked > 10);
    let (head, _) = ask(&mut stream, "/other");
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: "), "{head}");
    limit(1024);
    drop(stream);
    scene.recovers();
}

#[test]
fn unread_files_do_not_take_all_descriptors() {
    const FILES: usize = 100;
    let mut scene = Scene::start("unread", "ulimit -n 64", &[]);
    let said = scene.server.log("fewer connections than requested");
    let admitted: usize = said.split("connections=").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    for number in 0..FILES {
        // Larger than a socket's buffer.
        fs::File::create(scene._site.file(&format!("large{number}"))).unwrap().set_len(20_000_000).unwrap();
    }
    let mut first = scene.connect();
    scene.is_served(&mut first);
    // They request eight files each, and read nothing.
    let mut names = (0..FILES).cycle().map(|number| format!("/large{number}"));
    let hogs: Vec<TcpStream> = (1..admitted)
        .map(|_| {
            let mut stream = scene.connect();
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096);
            for name in names.by_ref().take(8) {
                write!(stream, "GET {name} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            }
            stream
        })
        .collect();
    eventually("no more large files can be opened", || {
        write!(first, "HEAD {} HTTP/1.1\r\nHost: x\r\n\r\n", names.next().unwrap()).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let mut byte = [0];
            first.read_exact(&mut byte).unwrap();
            head.push(byte[0].into());
        }
        (head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: ")).then_some(())
    });
    scene.new_client_gets_503();
    scene.admin_answers();
    let begun = Instant::now();
    while begun.elapsed() < STALE {
        scene.is_served(&mut first);
    }
    assert!(ask(&mut first, "/other").0.starts_with("HTTP/1.1 200 OK\r\n"));
    scene.new_client_gets_503();
    scene.admin_answers();
    drop((first, hogs));
    eventually("large files are served again", || {
        let mut stream = scene.connect();
        let request = format!("HEAD {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", names.next().unwrap());
        stream.write_all(request.as_bytes()).unwrap();
        let mut head = String::new();
        stream.read_to_string(&mut head).unwrap();
        head.starts_with("HTTP/1.1 200 OK\r\n").then_some(())
    });
    // Files kept for the next request are closed once they are deleted.
    for number in 0..FILES {
        fs::remove_file(scene._site.file(&format!("large{number}"))).unwrap();
    }
    thread::sleep(STALE);
    for number in 0..FILES {
        assert!(ask(&mut scene.connect(), &format!("/large{number}")).0.starts_with("HTTP/1.1 404 "));
    }
    scene.recovers();
}

#[test]
fn refused_connections_do_not_pile_up() {
    let scene = Scene::start("lingering", "true", &["--max-connections", "1"]);
    let mut first = scene.connect();
    scene.is_served(&mut first);
    let before = scene.open_descriptors();
    // They neither read nor close.
    let mut refused: Vec<TcpStream> = (0..200).map(|_| scene.connect()).collect();
    eventually("all have been refused", || {
        (scene.metric("pelton_http_connections_refused_total") == 200.0).then_some(())
    });
    let now = scene.open_descriptors();
    // The last clients of the admin address may still be connected.
    assert!(now <= before + 64 + 4, "{before} descriptors grew to {now}");
    // The oldest, which are closed, got the same response as the newest.
    for stream in &mut refused {
        let (head, _) = response(stream);
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    }
    scene.is_served(&mut first);
    scene.new_client_gets_503();
    scene.admin_answers();
    drop((first, refused));
    scene.recovers();
}

#[test]
fn the_descriptor_limit_is_raised_for_the_server_but_not_for_its_children() {
    let directory = Directory::new("raised");
    let (program, said) = (directory.file("pelton"), directory.file("said"));
    fs::copy(env!("CARGO_BIN_EXE_pelton"), &program).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -Sn 200; ulimit -Hn 700; exec \"$0\" \"$@\"", program.to_str().unwrap()]);
    let mut server = Server::start_command(shell, 1, "serve", &["--listen", "127.0.0.1:0"]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.id())).unwrap();
    let of_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(of_files.split_whitespace().nth(3), Some("700"), "{of_files}");
    let line = server.log("fewer connections than requested");
    assert!(line.contains("asked_for=16384") && line.contains("descriptors=700"), "{line}");
    let new = directory.file("new");
    fs::write(&new, format!("#!/bin/sh\nulimit -Sn > {}\nulimit -Hn >> {0}\nexit 7\n", said.display())).unwrap();
    fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::rename(&new, &program).unwrap();
    server.signal(Signal::USR2);
    server.log("the new process did not take over");
    assert_eq!(fs::read_to_string(&said).unwrap(), "200\n700\n");
}

#[test]
fn error_names_how_many_descriptors_are_needed() {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 24; exec \"$0\" serve --listen 127.0.0.1:0", env!("CARGO_BIN_EXE_pelton")]);
    let mut child = shell.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > DEADLINE {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("may have 24 descriptors, but needs at least "), "{said}");
}

/// A client that sends requests and does not read.
fn hog(scene: &Scene) -> TcpStream {
    let mut stream = scene.connect();
    // The less the kernel buffers, the more is queued in the server.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096);
    stream.write_all("GET /block HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100).as_bytes()).unwrap();
    stream
}

#[test]
fn memory_for_queued_output_runs_out() {
    for engine in ["epoll", "poll", "select"] {
        memory_for_queued_output_runs_out_on(engine);
    }
}

fn memory_for_queued_output_runs_out_on(engine: &str) {
    let mut scene = Scene::start("memory", "true", &["--max-queued", "1m", "--engine", engine]);
    let mut first = scene.connect();
    scene.is_served(&mut first);
    let mut hogs = Vec::new();
    eventually("new clients get 503", || {
        hogs.push(hog(&scene));
        let mut stream = scene.connect();
        let (head, _) = ask(&mut stream, "/known");
        head.starts_with("HTTP/1.1 503 ").then_some(())
    });
    scene.server.log("over the byte budget");
    // Clients that read their responses are served as often as they ask.
    for _ in 0..20 {
        scene.is_served(&mut first);
    }
    scene.new_client_gets_503();
    scene.admin_answers();
    drop((first, hogs));
    scene.recovers();
}

#[test]
fn the_file_lane_fills_up() {
    // Files whose names begin with "slow" wait for the disk until the tracer is gone.
    const SLOW: usize = 16;
    let mut strace = Command::new("strace");
    strace.args(["--seccomp-bpf", "-f", "-o", "/dev/null", "-e", "trace=openat2"]);
    strace.args(["-e", "inject=openat2:delay_enter=60000000"]);
    for number in 0..SLOW {
        strace.args(["-P", &format!("slow{number}")]);
    }
    strace.arg(env!("CARGO_BIN_EXE_pelton"));
    // The server itself. It is stopped after the tracer is gone, which could keep the signal from it.
    let _own;
    let scene = Scene::start_with("lane", &["--file-queue", "4"], |arguments| {
        Server::start_command(strace, 2, "serve", arguments)
    });
    _own = Successor::of(&scene._site.file(".pid"), 0);
    let mut first = scene.connect();
    scene.is_served(&mut first);
    // Four are looked up and four wait; the others get an error.
    let mut streams: Vec<TcpStream> = (0..SLOW).map(|_| scene.connect()).collect();
    for (number, stream) in streams.iter_mut().enumerate() {
        write!(stream, "GET /slow{number} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    eventually("half of them are refused", || (scene.metric("pelton_http_requests_in_flight") == 8.0).then_some(()));
    assert_eq!(scene.metric("pelton_http_responses_total"), 2.0 + (SLOW - 8) as f64);
    let (head, _) = ask(&mut scene.connect(), "/other");
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: "), "{head}");
    // Cached files are served, even when it is time to check them for changes.
    let begun = Instant::now();
    while begun.elapsed() < STALE {
        scene.is_served(&mut first);
        scene.is_served(&mut scene.connect());
        thread::sleep(Duration::from_millis(10));
    }
    scene.admin_answers();
    // The disk answers again.
    scene.server.signal(Signal::KILL);
    let mut statuses: Vec<String> = streams.iter_mut().map(|stream| response(stream).0[9..12].to_owned()).collect();
    statuses.sort();
    assert_eq!(statuses, [["404"; 8], ["503"; 8]].concat());
    drop((first, streams));
    scene.recovers_untraced();
}

impl Scene {
    /// Like [`recovers`](Scene::recovers), for a server that is not the process that was started.
    fn recovers_untraced(self) {
        eventually("new clients are served", || {
            ask(&mut self.connect(), "/other").0.starts_with("HTTP/1.1 200 OK\r\n").then_some(())
        });
        assert_eq!(self.metric("pelton_panics_total"), 0.0);
        let left = self.settled_descriptors();
        assert!(left <= self.descriptors, "{left} descriptors, {} at the start", self.descriptors);
    }
}

/// Returns whether a line has the format of the access log.
fn is_line(line: &str) -> bool {
    line.starts_with("127.0.0.1 - - [") && line.split(' ').count() == 13
}

#[test]
fn the_disk_of_the_log_fills_up() {
    let directory = Directory::new("log");
    let log = directory.file("access.log");
    // Files may have 8 blocks of 512 bytes.
    let scene = Scene::start("full-disk", "ulimit -f 8", &["--access-log", log.to_str().unwrap()]);
    let mut first = scene.connect();
    let mut asked = 1;
    eventually("lines are dropped", || {
        (0..20).for_each(|_| scene.is_served(&mut first));
        asked += 20;
        (scene.metric("pelton_log_lines_dropped_total") > 0.0).then_some(())
    });
    assert_eq!(fs::metadata(&log).unwrap().len(), 4096);
    scene.is_served(&mut first);
    scene.is_served(&mut scene.connect());
    asked += 2;
    scene.admin_answers();
    // The log is moved away, and there is room again.
    let old = directory.file("old.log");
    let dropped = eventually("all lines that do not fit are dropped", || {
        let dropped = scene.metric("pelton_log_lines_dropped_total") as usize;
        let written = fs::read_to_string(&log).unwrap().matches('\n').count();
        (dropped + written == asked).then_some(dropped)
    });
    fs::rename(&log, &old).unwrap();
    kill_process(scene.pid(), Signal::HUP).unwrap();
    eventually("the log is reopened", || log.exists().then_some(()));
    scene.is_served(&mut first);
    let new = eventually("lines are written again", || {
        Some(fs::read_to_string(&log).unwrap()).filter(|text| text.ends_with('\n'))
    });
    assert!(new.lines().all(is_line) && new.lines().count() == 1, "{new}");
    assert_eq!(scene.metric("pelton_log_lines_dropped_total"), dropped as f64);
    let old = fs::read_to_string(&old).unwrap();
    let whole = old.matches('\n').count();
    assert!(old.lines().take(whole).all(is_line), "{old}");
    drop(first);
    scene.recovers();
}

#[test]
fn unwritable_log_delays_nobody() {
    let scene = Scene::start("no-log", "true", &["--access-log", "/dev/full"]);
    let mut first = scene.connect();
    eventually("lines are dropped", || {
        scene.is_served(&mut first);
        (scene.metric("pelton_log_lines_dropped_total") > 0.0).then_some(())
    });
    scene.admin_answers();
    drop(first);
    scene.recovers();
    // The other log, on standard error, cannot be written either.
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full", env!("CARGO_BIN_EXE_pelton"), "--log-level", "debug"]);
    let mut server = Server::start_command(shell, 2, "serve", &["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let mut stream = connect(server.address(0));
    assert!(ask(&mut stream, "/").0.starts_with("HTTP/1.1 200 OK\r\n"));
    let mut bad = connect(server.address(0));
    bad.write_all(b"nonsense\r\n\r\n").unwrap();
    assert!(response(&mut bad).0.starts_with("HTTP/1.1 400 "), "its log line is lost");
    assert!(curl(&[&format!("{}metrics", server.address(1))]).contains("pelton_panics_total{worker=\"0\"} 0\n"));
    server.signal(Signal::TERM);
    drop((stream, bad));
    assert_eq!(server.code(), 0);
    // A command that cannot print its error still fails with the same code.
    let fails = |arguments: &[&str]| {
        let full = fs::OpenOptions::new().write(true).open(Path::new("/dev/full")).unwrap();
        let status =
            Command::new(env!("CARGO_BIN_EXE_pelton")).args(arguments).stderr(full).stdout(Stdio::null()).status();
        let status = status.unwrap();
        (status.code(), status.signal())
    };
    assert_eq!(fails(&["serve", "--admin", "0.0.0.0:0"]), (Some(2), None));
    assert_eq!(fails(&["serve", "/no/such/directory", "--listen", "127.0.0.1:0"]), (Some(1), None));
}
