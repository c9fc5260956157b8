//! `pelton serve`, run as users do.

#![forbid(unsafe_code)]

mod server;

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pelton::EngineKind;
use rustix::process::Signal;

use server::http::{Directory, ask, bench, connect, curl, ends, host, response};
use server::{DEADLINE, Server, eventually};

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn refuses(url: &str) {
    eventually("connections are refused", || TcpStream::connect(host(url)).is_err().then_some(()));
}

/// Returns the value of a sample in Prometheus text, summed over all workers.
fn metric(metrics: &str, name: &str, labels: &str) -> f64 {
    let of_it = |line: &&str| line.split(['{', ' ']).next() == Some(name) && line.contains(labels);
    metrics.lines().filter(of_it).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn the_welcome_page_is_served_with_every_engine_on_tcp_and_unix_sockets() {
    let directory = Directory::new("welcome");
    for engine in EngineKind::ALL.into_iter().filter(|kind| kind.open().is_ok()) {
        for workers in ["1", "2"] {
            let socket = directory.file("serve.sock");
            let unix = format!("unix:{}", socket.display());
            let listen = ["--listen", "127.0.0.1:0", "--listen", &unix, "--socket-mode", "600"];
            let server = Server::start_on(
                2,
                "serve",
                &[&listen[..], &["--engine", engine.name(), "--workers", workers]].concat(),
            );
            assert!(server.said[0].starts_with("serving the welcome page on http://127.0.0.1:"), "{:?}", server.said);
            assert!(server.said[1].contains(&format!("on {unix}, with {engine}")), "{:?}", server.said);
            let page = curl(&[server.address(0)]);
            assert!(page.contains("<title>Pelton is running</title>") && page.contains(engine.name()), "{page}");
            assert!(!page.contains('{') || !page.contains("{engine}"), "{page}");
            assert_eq!(curl(&["--unix-socket", socket.to_str().unwrap(), "http://localhost/"]), page);
            assert!(curl(&["--head", server.address(0)]).starts_with("HTTP/1.1 200 OK\r\n"));
            assert_eq!(curl(&[&format!("{}nothing", server.address(0))]), "404 Not Found\n");
            let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&socket).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o600);
            server.signal(Signal::TERM);
            server.succeed();
            assert!(!socket.exists(), "the socket's file is removed");
        }
    }
}

#[test]
fn the_files_of_a_directory_are_served() {
    let directory = Directory::new("files");
    fs::create_dir(directory.file("site")).unwrap();
    fs::create_dir(directory.file("site/list")).unwrap();
    let large: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    for (name, content) in
        [("index.html", "<p>home</p>\n"), ("a b.txt", "text\n"), ("large", &large), (".secret", "no\n")]
    {
        fs::write(directory.file("site").join(name), content).unwrap();
    }
    fs::write(directory.file("outside"), "outside\n").unwrap();
    fs::write(directory.file("site/list/one"), "1\n").unwrap();
    let site = directory.file("site");
    for workers in ["1", "2"] {
        let options = [site.to_str().unwrap(), "--listen", "127.0.0.1:0", "--workers", workers, "--listing"];
        let server = Server::start("serve", &[&options[..], &["--cache-seconds", "60"]].concat());
        assert!(server.said[0].starts_with(&format!("serving {} on http://", site.display())), "{:?}", server.said);
        let url = |path: &str| format!("{}{path}", server.address(0));
        assert_eq!(curl(&[&url("")]), "<p>home</p>\n");
        assert_eq!(curl(&[&url("a%20b.txt")]), "text\n");
        assert_eq!(curl(&[&url("large")]), large);
        assert_eq!(curl(&["--range", "0-3", &url("large")]), "0\n1\n");
        assert!(curl(&["--head", &url("a%20b.txt")]).contains("Cache-Control: public, max-age=60\r\n"));
        assert!(curl(&[&url("list/")]).contains("one"));
        for path in [".secret", "../outside", "%2e%2e/outside", "nothing"] {
            let said = curl(&["--path-as-is", "--output", "/dev/null", "--write-out", "%{http_code}", &url(path)]);
            assert!(["400", "403", "404"].contains(&said.as_str()), "{path}: {said}");
        }
        server.signal(Signal::TERM);
        server.succeed();
    }
    fails(
        &["serve", "/no/such/directory", "--listen", "127.0.0.1:0"],
        1,
        "error: serve the files of /no/such/directory: ",
    );
    fails(&["serve", "--listing"], 2, "<DIR>");
    fails(&["serve", "x", "--index", "a/b"], 2, "without a directory");
}

#[test]
fn a_link_to_the_directory_is_followed_unless_it_is_pinned() {
    let directory = Directory::new("pinned");
    for release in ["one", "two"] {
        fs::create_dir(directory.file(release)).unwrap();
        fs::write(directory.file(release).join("release"), release).unwrap();
    }
    let link = directory.file("current");
    std::os::unix::fs::symlink("one", &link).unwrap();
    let arguments = [link.to_str().unwrap(), "--listen", "127.0.0.1:0", "--workers", "2"];
    let following = Server::start("serve", &arguments);
    let pinned = Server::start("serve", &[&arguments[..], &["--pinned"]].concat());
    let served = |server: &Server| curl(&[&format!("{}release", server.address(0))]);
    assert_eq!((served(&following), served(&pinned)), ("one".to_owned(), "one".to_owned()));
    std::os::unix::fs::symlink("two", directory.file("next")).unwrap();
    fs::rename(directory.file("next"), &link).unwrap();
    eventually("the link is followed", || (served(&following) == "two").then_some(()));
    // Neither worker serves the old content any more.
    assert_eq!((0..4).map(|_| served(&pinned)).collect::<Vec<_>>(), ["one"; 4]);
    for server in [following, pinned] {
        server.signal(Signal::TERM);
        server.succeed();
    }
}

#[test]
fn a_download_in_progress_is_completed_after_the_signal() {
    let directory = Directory::new("download");
    let length = 64 << 20;
    fs::File::create(directory.file("large")).unwrap().set_len(length).unwrap();
    let path = directory.file("");
    let mut server =
        Server::start("serve", &[path.to_str().unwrap(), "--listen", "127.0.0.1:0", "--drain-idle", "50ms"]);
    let mut stream = connect(server.address(0));
    write!(stream, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut start = [0; 1000];
    std::io::Read::read_exact(&mut stream, &mut start).unwrap();
    server.signal(Signal::TERM);
    refuses(server.address(0));
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut rest).unwrap();
    let head = String::from_utf8_lossy(&start).find("\r\n\r\n").unwrap() + 4;
    assert_eq!((start.len() - head + rest.len()) as u64, length);
    assert_eq!(server.code(), 0);
}

#[test]
fn requests_begun_before_the_signal_are_answered() {
    for workers in ["1", "2"] {
        let arguments =
            ["--listen", "127.0.0.1:0", "--workers", workers, "--admin", "127.0.0.1:0", "--drain-idle", "20s"];
        let mut server = Server::start_on(2, "serve", &arguments);
        let health = format!("{}health", server.address(1));
        assert_eq!(curl(&[&health]), "ok\n");
        let (mut busy, mut idle, mut fresh) =
            (connect(server.address(0)), connect(server.address(0)), connect(server.address(0)));
        assert!(ask(&mut idle, "/").0.starts_with("HTTP/1.1 200 OK\r\n"));
        busy.write_all(b"GET / HTTP/1.1\r\nHost: te").unwrap();
        // A response to another request proves that the earlier bytes have been read.
        assert!(ask(&mut idle, "/").0.starts_with("HTTP/1.1 200 OK\r\n"));
        server.signal(Signal::TERM);
        refuses(server.address(0));
        assert_eq!(curl(&["--write-out", "%{http_code}", &health]), "draining\n503");
        // No request is lost: neither one in progress, nor the next one of an idle or a new client.
        busy.write_all(b"st\r\n\r\n").unwrap();
        let answers = [response(&mut busy), ask(&mut idle, "/"), ask(&mut fresh, "/")];
        for (head, body) in answers {
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("Connection: close\r\n"), "{head}");
            assert!(body.ends_with(b"</html>\n"));
        }
        for stream in [&mut busy, &mut idle, &mut fresh] {
            ends(stream);
        }
        let begun = Instant::now();
        assert_eq!(server.code(), 0);
        assert!(begun.elapsed() < Duration::from_secs(10), "the server waits for no idle client");
    }
}

#[test]
fn idle_connections_are_closed_after_the_idle_time() {
    let mut server = Server::start("serve", &["--listen", "127.0.0.1:0", "--drain-idle", "100ms"]);
    let mut idle = connect(server.address(0));
    ask(&mut idle, "/");
    server.signal(Signal::INT);
    ends(&mut idle);
    assert_eq!(server.code(), 0);
}

#[test]
fn slow_requests_are_cut_off_by_the_deadline_and_by_a_second_signal() {
    let begun = |server: &Server| {
        let mut stream = connect(server.address(0));
        ask(&mut stream, "/");
        stream.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        // The bytes have been read once a later request on another connection is answered.
        ask(&mut connect(server.address(0)), "/");
        stream
    };
    let mut server =
        Server::start("serve", &["--listen", "127.0.0.1:0", "--drain-idle", "10ms", "--drain-time", "200ms"]);
    let stream = begun(&server);
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 4);
    server.log("connections were cut off at the drain deadline");
    drop(stream);

    for workers in ["1", "2"] {
        let mut server = Server::start("serve", &["--listen", "127.0.0.1:0", "--workers", workers]);
        let stream = begun(&server);
        server.signal(Signal::TERM);
        refuses(server.address(0));
        assert!(server.is_running());
        server.signal(Signal::INT);
        let waiting = Instant::now();
        assert_eq!(server.code(), 4);
        assert!(waiting.elapsed() < Duration::from_secs(10));
        drop(stream);
    }
}

#[test]
fn the_log_is_reopened_after_it_was_moved_away() {
    let directory = Directory::new("log");
    let (log, old) = (directory.file("access.log"), directory.file("access.log.1"));
    let arguments = ["--listen", "127.0.0.1:0", "--workers", "2", "--access-log", log.to_str().unwrap()];
    let server = Server::start("serve", &arguments);
    let url = server.address(0).to_owned();
    curl(&["--user-agent", "one \"two\"", "--referer", "http://x/", &url]);
    let line = eventually("a line is written", || text(&log).ends_with('\n').then(|| text(&log)));
    assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
    assert!(
        line.contains("\"GET / HTTP/1.1\" 200 ") && line.contains("\"http://x/\" \"one \\x22two\\x22\" 0.0"),
        "{line}"
    );

    fs::rename(&log, &old).unwrap();
    server.signal(Signal::HUP);
    eventually("the log exists again", || log.exists().then_some(()));
    curl(&[&format!("{url}after")]);
    let line = eventually("a line is written", || text(&log).ends_with('\n').then(|| text(&log)));
    assert!(line.contains("\"GET /after HTTP/1.1\" 404 14 "), "{line}");
    // Malformed input is logged, and so is a refused client.
    connect(&url).write_all(b"nonsense\r\n\r\n").unwrap();
    eventually("a line is written", || text(&log).contains("\"-\" 400 0 ").then_some(()));
    server.signal(Signal::TERM);
    server.succeed();
    assert_eq!(text(&old).lines().count() + text(&log).lines().count(), 3);
}

#[test]
fn the_log_can_be_json_on_standard_output() {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--access-log", "-", "--log-format", "json"];
    let mut pelton = Command::new(env!("CARGO_BIN_EXE_pelton"));
    pelton.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pelton.spawn().unwrap();
    // The line about the address goes to standard error, apart from the log.
    let mut said = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    let url = line.split(" on ").nth(1).unwrap().split(',').next().unwrap();
    curl(&[&format!("{url}a?b=c")]);
    curl(&["--head", url]);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        (&lines[0]["target"], &lines[0]["status"], &lines[0]["bytes"]),
        (&"/a?b=c".into(), &404.into(), &14.into())
    );
    assert_eq!(
        (&lines[1]["method"], &lines[1]["status"], &lines[1]["bytes"]),
        (&"HEAD".into(), &200.into(), &0.into())
    );
}

#[test]
fn metrics_match_the_load() {
    for workers in ["1", "2"] {
        let arguments = ["--listen", "127.0.0.1:0", "--workers", workers, "--admin", "127.0.0.1:0"];
        let server = Server::start_on(2, "serve", &arguments);
        let (url, metrics) = (server.address(0), format!("{}metrics", server.address(1)));
        let keep_alive = bench(&[url, "-n", "1000", "-c", "20"]);
        let pipelined = bench(&[url, "-n", "999", "-c", "7", "-t", "2", "--pipeline", "5", "-m", "HEAD"]);
        let one_each = bench(&[&format!("{url}nothing"), "-n", "100", "-c", "10", "--no-keepalive"]);
        for (result, count, made) in [(&keep_alive, 1000, 20), (&pipelined, 999, 7), (&one_each, 100, 0)] {
            assert_eq!((&result["completed"], &result["sent"]), (&count.into(), &count.into()), "{result}");
            assert!(made == 0 || result["connections_made"] == made, "{result}");
        }
        assert_eq!((&one_each["errors"]["status"], &one_each["status"]["4xx"]), (&100.into(), &100.into()));
        assert!(one_each["connections_made"].as_u64().unwrap() >= 100, "{one_each}");
        connect(url).write_all(b"nonsense\r\n\r\n").unwrap();
        let told = eventually("refusals are counted", || {
            let told = curl(&[&metrics]);
            (metric(&told, "pelton_http_refused_total", "") == 1.0).then_some(told)
        });
        assert_eq!(metric(&told, "pelton_http_responses_total", "class=\"2xx\""), 1999.0);
        assert_eq!(metric(&told, "pelton_http_responses_total", "class=\"4xx\""), 100.0);
        assert_eq!(metric(&told, "pelton_http_requests_total", ""), 2099.0);
        assert_eq!(metric(&told, "pelton_http_request_seconds_count", ""), 2099.0);
        assert_eq!(metric(&told, "pelton_http_requests_in_flight", ""), 0.0);
        let bodies = keep_alive["body_bytes"].as_f64().unwrap() + one_each["body_bytes"].as_f64().unwrap();
        assert_eq!(metric(&told, "pelton_http_response_body_bytes_total", ""), bodies);
        // Each family is described once, and each worker has its samples.
        let families: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert!(families.iter().all(|family| families.iter().filter(|other| *other == family).count() == 1), "{told}");
        for worker in 0..workers.parse::<usize>().unwrap() {
            assert!(told.contains(&format!("pelton_turns_total{{worker=\"{worker}\"}} ")), "{told}");
        }
        assert_eq!(curl(&["--write-out", "%{http_code}", &format!("{}x", server.address(1))]), "404 Not Found\n404");
        server.signal(Signal::TERM);
        server.succeed();
    }
}

#[test]
fn limits_are_enforced() {
    let arguments =
        ["--listen", "127.0.0.1:0", "--max-connections", "1", "--header-time", "200ms", "--max-requests", "2"];
    let server = Server::start("serve", &[&arguments[..], &["--max-header", "200"]].concat());
    let mut first = connect(server.address(0));
    assert!(ask(&mut first, "/").0.starts_with("HTTP/1.1 200"));
    let (head, _) = response(&mut connect(server.address(0)));
    assert!(head.starts_with("HTTP/1.1 503"), "{head}");
    let (head, _) = ask(&mut first, "/");
    assert!(head.contains("Connection: close\r\n"), "{head}");
    ends(&mut first);
    let free = || {
        eventually("there is room", || {
            let mut stream = connect(server.address(0));
            // A refused client is told at once.
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            std::io::Read::read(&mut stream, &mut [0]).is_err().then_some(stream)
        })
    };
    let mut slow = free();
    slow.set_read_timeout(Some(DEADLINE)).unwrap();
    slow.write_all(b"GET /").unwrap();
    let (head, _) = response(&mut slow);
    assert!(head.starts_with("HTTP/1.1 408"), "{head}");
    drop(slow);
    let mut long = free();
    long.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(long, "GET / HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "x".repeat(300)).unwrap();
    let (head, _) = response(&mut long);
    assert!(head.starts_with("HTTP/1.1 431"), "{head}");
}

#[test]
fn inherited_sockets_are_served() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pelton"));
    let passed_on = pelton::pass_on(&mut command, [("web", listener.as_fd())]).unwrap();
    let mut server = Server::start_command(command, 1, "serve", &["--workers", "2"]);
    drop((passed_on, listener));
    assert_eq!(server.address(0), format!("http://{address}/"));
    for _ in 0..10 {
        assert!(curl(&[server.address(0)]).contains("Pelton"));
    }
    server.signal(Signal::TERM);
    assert_eq!(server.code(), 0);
}

#[test]
fn the_pid_file_is_written_and_removed() {
    let directory = Directory::new("pid");
    let file = directory.file("pelton.pid");
    let server = Server::start("serve", &["--listen", "127.0.0.1:0", "--pid-file", file.to_str().unwrap()]);
    assert_eq!(text(&file), format!("{}\n", server.id()));
    server.signal(Signal::TERM);
    server.succeed();
    assert!(!file.exists());
}

fn fails(arguments: &[&str], code: i32, explanation: &str) {
    let mut pelton = Command::new(env!("CARGO_BIN_EXE_pelton"));
    let mut child = pelton.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > DEADLINE {
            child.kill().unwrap();
            panic!("{arguments:?}: the command did not fail");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.contains(explanation), "{arguments:?}: {said}");
}

#[test]
fn invalid_options_are_refused_with_an_explanation() {
    fails(&["serve", "--listen", "nowhere"], 2, "write 127.0.0.1:80");
    fails(&["serve", "--drain-time", "5"], 2, "give a number and a unit");
    fails(&["serve", "--idle-time", "0s"], 2, "greater than zero");
    fails(&["serve", "--max-body", "much"], 2, "give a number of bytes");
    fails(&["serve", "--max-connections", "0"], 2, "0 is not in 1..");
    fails(&["serve", "--socket-mode", "9"], 2, "octal");
    fails(&["serve", "--log-format", "xml"], 2, "possible values: text, json");
    fails(&["serve", "--admin", "0.0.0.0:0"], 2, "--admin-anywhere");
    fails(&["serve", "--admin", "[::]:0"], 2, "--admin-anywhere");
    fails(&["serve", "--admin-anywhere"], 2, "--admin <ADDRESS>");
    fails(
        &["serve", "--listen", "127.0.0.1:0", "--access-log", "/nowhere/log"],
        1,
        "open the access log /nowhere/log: ",
    );
    fails(&["serve", "--listen", "127.0.0.1:0", "--pid-file", "/nowhere/pid"], 1, "write the PID file /nowhere/pid: ");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for workers in ["1", "2"] {
        fails(&["serve", "--listen", &address, "--workers", workers], 3, &format!("listen on {address}: "));
        fails(&["serve", "--listen", &address, "--workers", workers], 3, "choose another port");
        fails(&["serve", "--listen", "127.0.0.1:0", "--admin", &address, "--workers", workers], 3, "listen on ");
    }
}

#[test]
fn a_port_of_another_server_is_refused_with_any_number_of_workers() {
    let server = Server::start("serve", &["--listen", "127.0.0.1:0", "--workers", "2"]);
    let address = host(server.address(0));
    fails(&["serve", "--listen", address, "--workers", "2"], 3, &format!("listen on {address}: "));
    assert!(curl(&[server.address(0)]).contains("Pelton"));
}

#[test]
fn the_admin_address_may_be_public_if_allowed() {
    let arguments = ["--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0", "--admin-anywhere"];
    let mut server = Server::start_on(2, "serve", &arguments);
    server.log("without --admin-host");
    let port = host(server.address(1)).rsplit(':').next().unwrap().to_owned();
    let health = format!("http://127.0.0.1:{port}/health");
    assert_eq!(curl(&[&health]), "ok\n");
    assert_eq!(curl(&["--header", "Host: web.example", &health]), "421 Misdirected Request\n");
    drop(server);
    let server = Server::start_on(2, "serve", &[&arguments[..], &["--admin-host", "web.example"]].concat());
    let port = host(server.address(1)).rsplit(':').next().unwrap();
    let health = format!("http://127.0.0.1:{port}/health");
    assert_eq!(curl(&["--header", &format!("Host: web.example:{port}"), &health]), "ok\n");
}

#[test]
fn a_unix_socket_serves_keep_alive_connections() {
    let directory = Directory::new("unix");
    let socket = directory.file("s.sock");
    let server = Server::start("serve", &["--listen", &format!("unix:{}", socket.display()), "--workers", "2"]);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    for _ in 0..3 {
        assert!(ask(&mut stream, "/").0.starts_with("HTTP/1.1 200 OK\r\n"));
    }
    let result = bench(&["http://localhost/", "--unix", socket.to_str().unwrap(), "-n", "500", "-c", "10"]);
    assert_eq!(result["completed"], 500, "{result}");
    drop(server);
}

#[test]
fn connections_are_counted_over_all_workers() {
    const MOST: usize = 40;
    for limit in ["--max-connections", "--max-connections-per-address"] {
        let most = MOST.to_string();
        let server = Server::start("serve", &["--listen", "127.0.0.1:0", "--workers", "2", limit, &most]);
        // However the kernel distributes them over the workers.
        let mut streams: Vec<TcpStream> = (0..MOST).map(|_| connect(server.address(0))).collect();
        for stream in &mut streams {
            assert!(ask(stream, "/").0.starts_with("HTTP/1.1 200 OK\r\n"));
        }
        for _ in 0..4 {
            let (head, _) = response(&mut connect(server.address(0)));
            assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Connection: close\r\n"), "{head}");
        }
        streams.truncate(MOST - 2);
        eventually("there is room again", || {
            ask(&mut connect(server.address(0)), "/").0.starts_with("HTTP/1.1 200 OK\r\n").then_some(())
        });
        server.signal(Signal::TERM);
        drop(streams);
        server.succeed();
    }
}
