//! `pelton serve` and SIGUSR2: one process takes over from another under load.

#![forbid(unsafe_code)]

mod server;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use server::http::{Directory, Load, Successor, ask, connect, curl, ends};
use server::{DEADLINE, Server, eventually};

#[test]
fn no_request_is_lost_when_one_process_takes_over_from_another() {
    for workers in ["1", "2"] {
        let directory = Directory::new(&format!("under-load-{workers}"));
        let (pid_file, socket) = (directory.file("pelton.pid"), directory.file("pelton.sock"));
        let unix = format!("unix:{}", socket.display());
        let listen = ["--listen", "127.0.0.1:0", "--listen", &unix, "--workers", workers];
        let more = ["--pid-file", pid_file.to_str().unwrap(), "--admin", "127.0.0.1:0", "--log-level", "info"];
        let mut server = Server::start_on(3, "serve", &[&listen[..], &more].concat());
        let (url, health) = (server.address(0).to_owned(), format!("{}health", server.address(2)));
        let path = socket.to_str().unwrap();
        let loads = [
            Load::start(&[&url, "-d", "4s", "-c", "20"]),
            Load::start(&[&url, "-d", "4s", "-c", "10", "--no-keepalive"]),
            Load::start(&[&url, "-d", "4s", "-c", "5", "--pipeline", "8"]),
            Load::start(&[&url, "-d", "4s", "-c", "10", "--rate", "500"]),
            Load::start(&["http://localhost/", "--unix", path, "-d", "4s", "-c", "10"]),
            Load::start(&["http://localhost/", "--unix", path, "-d", "4s", "-c", "5", "--no-keepalive"]),
        ];
        let mut idle = connect(&url);
        ask(&mut idle, "/");
        // Twice, so that a process that has taken over hands over too.
        let asked = |url: &str| (0..20).for_each(|_| assert!(curl(&[url]).contains("Pelton")));
        asked(&url);
        server.signal(Signal::USR2);
        let second = Successor::of(&pid_file, server.id());
        assert_eq!(server.code(), 0, "all requests were answered");
        ends(&mut idle);
        asked(&url);
        second.signal(Signal::USR2);
        let third = Successor::of(&pid_file, second.id());
        asked(&url);
        assert_eq!(curl(&[&health]), "ok\n");
        for (number, load) in loads.into_iter().enumerate() {
            let result = load.finish();
            let none = serde_json::json!({"connect": 0, "reset": 0, "timeout": 0, "malformed": 0, "status": 0});
            assert_eq!(result["errors"], none, "load {number} with {workers} workers: {result}");
            assert!(result["completed"].as_u64().unwrap() > 50, "{result}");
            assert_eq!(result["completed"], result["sent"], "{result}");
        }
        assert!(socket.exists(), "the file belongs to the last process");
        third.signal(Signal::TERM);
        eventually("the last process removes the file", || (!socket.exists() && !pid_file.exists()).then_some(()));
    }
}

#[test]
fn a_request_in_flight_is_answered_by_the_process_that_has_it() {
    let directory = Directory::new("in-flight");
    let (pid_file, socket) = (directory.file("pelton.pid"), directory.file("pelton.sock"));
    let unix = format!("unix:{}", socket.display());
    let arguments = ["--listen", &unix, "--pid-file", pid_file.to_str().unwrap(), "--drain-idle", "100ms"];
    let mut server = Server::start("serve", &arguments);
    let client = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        ask(&mut stream, "/");
        stream
    };
    let (mut stream, mut idle) = (client(), client());
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n").unwrap();
    server.signal(Signal::USR2);
    let successor = Successor::of(&pid_file, server.id());
    // The old process drains once an idle connection is closed.
    ends(&mut idle);
    assert!(server.is_running());
    std::io::Write::write_all(&mut stream, b"Host: x\r\n\r\n").unwrap();
    let (head, _) = server::http::response(&mut stream);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Connection: close\r\n"), "{head}");
    ends(&mut stream);
    assert_eq!(server.code(), 0);
    assert_eq!(fs::read_to_string(&pid_file).unwrap(), format!("{}\n", successor.id()));
    assert!(server.prints().contains(&unix), "the new process prints its address too");
    let mut stream = UnixStream::connect(&socket).unwrap();
    assert!(ask(&mut stream, "/").0.starts_with("HTTP/1.1 200 OK\r\n"));
    drop(successor);
}

#[test]
fn service_manager_is_told_the_new_main_process() {
    let directory = Directory::new("notify");
    let (pid_file, socket) = (directory.file("pelton.pid"), directory.file("notify"));
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let told = || {
        let mut text = [0; 200];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8(text[..length].to_vec()).unwrap()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_pelton"));
    command.env("NOTIFY_SOCKET", &socket);
    let arguments = ["--listen", "127.0.0.1:0", "--pid-file", pid_file.to_str().unwrap()];
    let mut server = Server::start_command(command, 1, "serve", &arguments);
    assert_eq!(told(), format!("READY=1\nMAINPID={}\nSTATUS=serving\n", server.id()));
    server.signal(Signal::USR2);
    let successor = Successor::of(&pid_file, server.id());
    assert_eq!(told(), format!("READY=1\nMAINPID={}\nSTATUS=serving\n", successor.id()));
    assert_eq!(server.code(), 0);
    successor.signal(Signal::TERM);
    assert!(told().starts_with("STOPPING=1\n"));
    eventually("it ends", || (!pid_file.exists()).then_some(()));
}

#[test]
fn a_new_process_that_fails_changes_nothing() {
    let directory = Directory::new("fails");
    // A copy of the program, to be replaced.
    let program = directory.file("pelton");
    fs::copy(env!("CARGO_BIN_EXE_pelton"), &program).unwrap();
    let mut server = Server::start_program(&program, 1, "serve", &["--listen", "127.0.0.1:0"]);
    let url = server.address(0).to_owned();
    let replace = |by: &str, mode| {
        let new = directory.file("new");
        fs::write(&new, by).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(mode)).unwrap();
        fs::rename(&new, Path::new(&program)).unwrap();
    };
    replace("#!/bin/sh\nexit 7\n", 0o755);
    server.signal(Signal::USR2);
    server.log(
        "the new process did not take over; this one continues to serve why=\"it ended before it served, with exit status: 7\"",
    );
    assert!(curl(&[&url]).contains("Pelton"));
    replace("no program", 0o644);
    server.signal(Signal::USR2);
    server.log("could not start a new process; this one continues to serve");
    assert!(curl(&[&url]).contains("Pelton"));
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn a_new_process_that_cannot_serve_leaves_the_socket_of_the_old_one_alone() {
    let directory = Directory::new("leaves");
    let (site, socket) = (directory.file("site"), directory.file("pelton.sock"));
    fs::create_dir(&site).unwrap();
    let unix = format!("unix:{}", socket.display());
    let mut server = Server::start("serve", &[site.to_str().unwrap(), "--listen", &unix]);
    fs::remove_dir(&site).unwrap();
    server.signal(Signal::USR2);
    server.log(&format!("error: serve the files of {}: ", site.display()));
    server.log("the new process did not take over; this one continues to serve");
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    assert!(ask(&mut stream, "/").0.starts_with("HTTP/1.1 404"));
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
    assert!(!socket.exists());
}
