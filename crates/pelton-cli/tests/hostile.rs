//! `pelton serve` with hostile clients, directories and environments.

#![forbid(unsafe_code)]

mod server;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use server::http::{Directory, Successor, ask, connect, curl, response};
use server::{DEADLINE, Server, eventually};

/// Every Unicode character that controls, formats or separates (Cc, Cf, Zs, Zl, Zp), except the space.
fn unprintable() -> Vec<char> {
    const RANGES: [(u32, u32); 31] = [
        (0x0, 0x1f),
        (0x7f, 0x9f),
        (0xa0, 0xa0),
        (0xad, 0xad),
        (0x600, 0x605),
        (0x61c, 0x61c),
        (0x6dd, 0x6dd),
        (0x70f, 0x70f),
        (0x890, 0x891),
        (0x8e2, 0x8e2),
        (0x1680, 0x1680),
        (0x180e, 0x180e),
        (0x2000, 0x200f),
        (0x2028, 0x202f),
        (0x205f, 0x2064),
        (0x2066, 0x206f),
        (0x3000, 0x3000),
        (0xfeff, 0xfeff),
        (0xfff9, 0xfffb),
        (0x110bd, 0x110bd),
        (0x110cd, 0x110cd),
        (0x13430, 0x1343f),
        (0x1bca0, 0x1bca3),
        (0x1d173, 0x1d17a),
        (0xe0001, 0xe0001),
        (0xe0020, 0xe007f),
        // Of other categories, but invisible too.
        (0x34f, 0x34f),
        (0x115f, 0x1160),
        (0x3164, 0x3164),
        (0xfe00, 0xfe0f),
        (0xe000, 0xe003),
    ];
    RANGES.into_iter().flat_map(|(first, last)| (first..=last).filter_map(char::from_u32)).collect()
}

/// Returns whether a text is printable ASCII and line endings only.
fn is_clean(text: &[u8]) -> bool {
    text.iter().all(|byte| matches!(byte, b'\n' | b' '..=b'~'))
}

fn percent_encoded(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
}

/// Sends these bytes in every place that a client controls. Returns how many lines the access log should have.
fn send_everywhere(address: &str, bytes: &[u8]) -> usize {
    let encoded = percent_encoded(bytes);
    let raw: [(&[u8], &[u8]); 6] = [
        (b"GET /x", b" HTTP/1.1\r\nHost: x\r\n\r\n"),
        (b"GET /x?q=", b" HTTP/1.1\r\nHost: x\r\n\r\n"),
        (b"GE", b"T / HTTP/1.1\r\nHost: x\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x", b"\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: a", b"b\r\nConnection: close\r\n\r\n"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nReferer: a", b"b\r\nX-Forwarded-For: c\r\nConnection: close\r\n\r\n"),
    ];
    let mut lines = 0;
    let mut exchange = |request: &[u8]| {
        let mut stream = connect(address);
        stream.write_all(request).unwrap();
        // Text that does not end a head needs an end of the head.
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        lines += String::from_utf8_lossy(&answer).matches("HTTP/1.1 ").count();
    };
    for (before, after) in raw {
        exchange(&[before, bytes, after].concat());
    }
    for target in
        [format!("/x{encoded}y"), format!("/{encoded}/"), format!("/?{encoded}"), format!("http://h/{encoded}")]
    {
        exchange(format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes());
    }
    lines
}

#[test]
fn client_input_never_breaks_out_of_its_line_in_any_log() {
    let directory = Directory::new("forged");
    let (site, log) = (directory.file("site"), directory.file("access.log"));
    fs::create_dir(&site).unwrap();
    let forged = "\n2026-11-16T00:00:00.000000Z ERROR forged\u{1b}[2J";
    // A dangling link in the directory is logged when it is requested.
    symlink("nowhere", site.join(format!("x{forged}y"))).unwrap();
    for format in ["text", "json"] {
        let _ = fs::remove_file(&log);
        let arguments = [site.to_str().unwrap(), "--listen", "127.0.0.1:0", "--listing", "--access-log"];
        let more = [log.to_str().unwrap(), "--log-format", format, "--log-level", "debug"];
        let mut server = Server::start("serve", &[&arguments[..], &more].concat());
        let mut texts: Vec<Vec<u8>> = vec![forged.into(), b"\xff\xfe\xc0\x80\xed\xa0\x80\x80".to_vec()];
        texts.extend(unprintable().chunks(16).map(|chunk| chunk.iter().collect::<String>().into_bytes()));
        // One at a time, too: a single refused request would otherwise hide the others.
        let alone = ['\u{85}', '\u{9b}', '\u{2028}', '\u{2029}', '\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}'];
        texts.extend(alone.map(|char| char.to_string().into_bytes()));
        let lines: usize = texts.iter().map(|text| send_everywhere(server.address(0), text)).sum();
        assert!(lines > 5 * texts.len(), "{lines} answers to {} texts", texts.len());
        server.signal(Signal::TERM);
        let logged = server.whole_log();
        assert!(logged.iter().any(|line| line.contains("nothing to serve")), "{logged:#?}");
        for line in &logged {
            assert!(is_clean(line.as_bytes()) && line.starts_with("20") && !line.starts_with("2026-11-16"), "{line:?}");
        }
        let written = fs::read(&log).unwrap();
        assert!(is_clean(&written));
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written.lines().count(), lines);
        match format {
            "text" => assert!(written.lines().all(|line| line.starts_with("127.0.0.1 - - [")), "{written}"),
            _ => {
                let agents: Vec<_> = written
                    .lines()
                    .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
                    .filter_map(|line| line["agent"].as_str().map(str::to_owned))
                    .collect();
                // Parsing restores what was escaped.
                assert!(agents.iter().any(|agent| agent == "a\u{202e}b"), "{agents:?}");
            }
        }
    }
}

/// Code that logs a value may forget to escape it, so the log itself escapes.
#[test]
fn unescaped_values_do_not_break_out_of_their_line() {
    let mut pelton = Command::new(env!("CARGO_BIN_EXE_pelton"));
    pelton.env("NOTIFY_SOCKET", "/nowhere\n2026-11-16T00:00:00.000000Z ERROR forged\u{1b}[2J\u{9b}\u{202e}");
    let mut server = Server::start_command(pelton, 1, "serve", &["--listen", "127.0.0.1:0"]);
    let line = server.log("could not notify the service manager");
    assert!(line.contains(r"/nowhere\x0a2026-11-16") && line.contains(r"\x1b[2J\xc2\x9b\xe2\x80\xae"), "{line:?}");
    server.signal(Signal::TERM);
    assert!(server.whole_log().iter().all(|line| is_clean(line.as_bytes()) && line.contains("could not notify")));
}

#[test]
fn the_pid_file_is_not_written_through_links() {
    let directory = Directory::new("pid-links");
    let (pid_file, victim) = (directory.file("pid"), directory.file("victim"));
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, &pid_file).unwrap();
    // The shell it is started from already has its process ID.
    let plant = format!("ln -s {} {}.$$", victim.display(), pid_file.display());
    let arguments = ["--listen", "127.0.0.1:0", "--pid-file", pid_file.to_str().unwrap()];
    let mut server = Server::start_after(&plant, 1, "serve", &arguments);
    assert!(directory.file(&format!("pid.{}", server.id())).is_symlink(), "the link existed before the start");
    assert_eq!(fs::read_to_string(&pid_file).unwrap(), format!("{}\n", server.id()));
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
    assert!(!pid_file.exists() && !pid_file.is_symlink());
}

#[test]
fn a_socket_that_replaced_the_servers_own_is_left_alone() {
    let directory = Directory::new("sockets");
    let (web, admin, pid_file) = (directory.file("web"), directory.file("admin"), directory.file("pid"));
    let (unix_web, unix_admin) = (format!("unix:{}", web.display()), format!("unix:{}", admin.display()));
    for hand_over in [false, true] {
        let arguments = ["--listen", &unix_web, "--admin", &unix_admin, "--pid-file", pid_file.to_str().unwrap()];
        let mut server = Server::start_on(2, "serve", &arguments);
        // Other programs have put theirs there.
        let others = [&web, &admin].map(|path| {
            fs::remove_file(path).unwrap();
            UnixListener::bind(path).unwrap()
        });
        let inode = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
        let inodes = (inode(&web), inode(&admin));
        if hand_over {
            server.signal(Signal::USR2);
            let successor = Successor::of(&pid_file, server.id());
            assert_eq!(server.code(), 0);
            successor.signal(Signal::TERM);
            eventually("the successor ends", || (!pid_file.exists()).then_some(()));
        } else {
            server.signal(Signal::TERM);
            assert_eq!(server.code(), 0);
        }
        assert_eq!((inode(&web), inode(&admin)), inodes);
        drop(others);
        fs::remove_file(&web).unwrap();
        fs::remove_file(&admin).unwrap();
    }
    // The successor removes a socket that was handed over.
    let arguments = ["--listen", &unix_web, "--pid-file", pid_file.to_str().unwrap()];
    let mut server = Server::start("serve", &arguments);
    server.signal(Signal::USR2);
    let successor = Successor::of(&pid_file, server.id());
    assert_eq!(server.code(), 0);
    assert!(web.exists());
    successor.signal(Signal::TERM);
    eventually("the successor removes it", || (!web.exists()).then_some(()));
}

#[test]
fn client_and_admin_sockets_have_separate_permissions() {
    let directory = Directory::new("modes");
    let (web, admin) = (directory.file("web"), directory.file("admin"));
    let (unix_web, unix_admin) = (format!("unix:{}", web.display()), format!("unix:{}", admin.display()));
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
    for (umask, arguments, modes) in [
        ("umask 022", &["--socket-mode", "666"][..], (0o666, 0o600)),
        ("umask 077", &["--socket-mode", "660", "--admin-socket-mode", "640"], (0o660, 0o640)),
        ("umask 000", &["--socket-mode", "600"], (0o600, 0o600)),
        ("umask 027", &[], (0o750, 0o600)),
    ] {
        let own = ["--listen", &unix_web, "--admin", &unix_admin];
        let mut server = Server::start_after(umask, 2, "serve", &[&own[..], arguments].concat());
        assert_eq!((mode(&web), mode(&admin)), modes, "{umask} {arguments:?}");
        server.signal(Signal::TERM);
        assert_eq!(server.code(), 0);
    }
}

/// Returns the status of the response to a request for this host.
fn status(stream: &mut (impl Read + Write), path: &str, host: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    response(stream).0[9..12].to_owned()
}

#[test]
fn the_admin_address_answers_only_requests_for_its_own_names() {
    let directory = Directory::new("rebinding");
    let socket = directory.file("admin");
    let arguments = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--admin-host", "Metrics.Example.org"];
    let server = Server::start_on(2, "serve", &arguments);
    let mut stream = connect(server.address(1));
    for path in ["/metrics", "/health"] {
        for host in ["localhost", "127.0.0.1:9090", "[::1]:80", "metrics.example.org:9090"] {
            assert_eq!(status(&mut stream, path, host), "200", "{host}");
        }
        for host in ["attacker.example", "127.0.0.1.attacker.example", "192.0.2.7:9090", "example.org"] {
            assert_eq!(status(&mut stream, path, host), "421", "{host}");
        }
    }
    // An absolute target overrides `Host`; a client that sends no host is not a browser.
    write!(stream, "GET http://attacker.example/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert!(response(&mut stream).0.starts_with("HTTP/1.1 421 "));
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").unwrap();
    assert!(response(&mut stream).0.starts_with("HTTP/1.1 200 "));
    drop(server);
    let unix = format!("unix:{}", socket.display());
    let _server = Server::start_on(2, "serve", &["--listen", "127.0.0.1:0", "--admin", &unix]);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(status(&mut stream, "/health", "anything.example"), "200");
}

#[test]
fn an_invalid_environment_is_an_error_with_code_2() {
    for (variables, said) in [
        (&[("LISTEN_PID", "x"), ("LISTEN_FDS", "1")][..], "LISTEN_PID is \"x\""),
        (&[("LISTEN_PID", "1"), ("LISTEN_FDS", "many")], "LISTEN_FDS is \"many\""),
        (&[("PELTON_PASSED_ON", "rubbish")], "PELTON_PASSED_ON is \"rubbish\""),
    ] {
        let mut pelton = Command::new(env!("CARGO_BIN_EXE_pelton"));
        pelton.args(["serve", "--listen", "127.0.0.1:0"]).envs(variables.iter().copied()).stdin(Stdio::null());
        let output = pelton.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
    // A descriptor that was announced but does not exist is invalid too. The shell's process ID becomes the server's.
    let mut shell = Command::new("sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve --listen 127.0.0.1:0 3>&-";
    let output = shell.args(["-c", script, env!("CARGO_BIN_EXE_pelton")]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    // So is a descriptor that cannot accept connections: a file, a datagram socket, a stream that is not listening.
    let (stream, _other) = UnixStream::pair().unwrap();
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = fs::File::open("/dev/null").unwrap();
    for (descriptor, said) in [
        (std::os::fd::OwnedFd::from(file), "descriptor 3 was passed as a listener: "),
        (datagrams.into(), "descriptor 3 was passed as a listener, but is not listening"),
        (stream.into(), "descriptor 3 was passed as a listener, but is not listening"),
    ] {
        let mut shell = Command::new("sh");
        let script = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve 3<&0 0</dev/null";
        shell.args(["-c", script, env!("CARGO_BIN_EXE_pelton")]).stdin(descriptor);
        let mut child = shell.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let ended = (|| {
            let deadline = std::time::Instant::now() + DEADLINE;
            while std::time::Instant::now() < deadline {
                if let Some(status) = child.try_wait().unwrap() {
                    return status.code();
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            child.kill().unwrap();
            None
        })();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(ended, Some(2), "{text}");
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_directory_with_hostile_names_is_listed_and_logged() {
    let directory = Directory::new("names");
    let site = directory.file("site");
    fs::create_dir(&site).unwrap();
    for name in ["a\nb", "c\u{1b}[31m", "\u{202e}gpj.exe", "<script>alert(1)</script>"] {
        fs::write(site.join(name.replace('/', "_")), "x").unwrap();
    }
    let arguments = [site.to_str().unwrap(), "--listen", "127.0.0.1:0", "--listing", "--log-level", "trace"];
    let mut server = Server::start("serve", &arguments);
    let listed = curl(&[server.address(0)]);
    assert!(!listed.contains("<script>"), "{listed}");
    assert!(ask(&mut connect(server.address(0)), "/a%0Ab").0.starts_with("HTTP/1.1 200 OK\r\n"));
    server.signal(Signal::TERM);
    assert!(server.whole_log().iter().all(|line| is_clean(line.as_bytes())));
}
