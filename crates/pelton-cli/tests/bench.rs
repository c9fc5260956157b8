//! `pelton bench` against well-behaved and misbehaving servers; also completions and manual pages.

#![forbid(unsafe_code)]

mod server;

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use server::Server;
use server::http::{Directory, bench};

/// Starts a server that runs this function for each connection, on a thread. The function gets the connection's number, and a
/// closure that waits for the next request and returns whether there was one.
fn server(
    serve: impl Fn(usize, &mut TcpStream, &mut dyn FnMut() -> bool) + Send + Sync + 'static,
) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let (serve, seen) = (Arc::new(serve), requests.clone());
    // The thread ends with the test process.
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (mut stream, serve, seen) = (stream.unwrap(), serve.clone(), seen.clone());
            thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let mut request = || {
                    while let Some(Ok(line)) = lines.next() {
                        if line.is_empty() {
                            seen.fetch_add(1, Ordering::Relaxed);
                            return true;
                        }
                    }
                    false
                };
                serve(number, &mut stream, &mut request);
            });
        }
    });
    (url, requests)
}

fn answering(answer: &'static str) -> (String, Arc<AtomicUsize>) {
    server(move |_, stream, request| while request() && stream.write_all(answer.as_bytes()).is_ok() {})
}

#[test]
fn every_way_to_end_a_body_is_supported() {
    for (answer, body) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 5),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", 6),
        ("HTTP/1.1 204 No Content\r\n\r\n", 0),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", 0),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 2),
    ] {
        let (url, seen) = answering(answer);
        let result = bench(&[&url, "-n", "60", "-c", "3", "--pipeline", "4"]);
        assert_eq!((&result["completed"], &result["connections_made"]), (&60.into(), &3.into()), "{answer}: {result}");
        assert_eq!(result["body_bytes"], 60 * body, "{answer}");
        assert_eq!(seen.load(Ordering::Relaxed), 60);
    }
    let (url, _) = answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n");
    assert_eq!(bench(&[&url, "-n", "10", "-c", "1", "-m", "HEAD"])["completed"], 10);
}

#[test]
fn a_body_may_end_with_its_connection_and_a_server_may_announce_that_it_closes() {
    let (url, seen) = server(|_, stream, request| {
        request();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nuntil the end").unwrap();
    });
    let result = bench(&[&url, "-n", "20", "-c", "2"]);
    assert_eq!((&result["completed"], &result["body_bytes"]), (&20.into(), &260.into()), "{result}");
    assert_eq!((&result["errors"]["reset"], seen.load(Ordering::Relaxed)), (&0.into(), 20));

    // Requests sent after the one whose response announces the close were not processed, and are sent again.
    let (url, _) = server(|_, stream, request| {
        request();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        request();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        while request() {}
    });
    let result = bench(&[&url, "-n", "30", "-c", "1", "--pipeline", "5"]);
    assert_eq!((&result["completed"], &result["errors"]["reset"]), (&30.into(), &0.into()), "{result}");
    assert_eq!(result["connections_made"], 15, "{result}");
}

#[test]
fn errors_are_counted_by_kind() {
    let expect = |url: &str, more: &[&str], kind: &str, count: u64| {
        let result = bench(&[&[url, "-c", "1", "--timeout", "300ms"], more].concat());
        assert_eq!(result["errors"][kind], count, "{kind}: {result}");
        result
    };
    // The second response on each connection is cut off.
    let (url, _) = server(|_, stream, request| {
        request();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        request();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf").unwrap();
    });
    let result = expect(&url, &["-n", "10"], "reset", 5);
    assert_eq!(result["completed"], 5);
    assert!(result["first_fault"].as_str().unwrap().contains("a connection was lost"), "{result}");

    let (url, _) = answering("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx");
    let result = expect(&url, &["-n", "4"], "malformed", 4);
    assert!(result["first_fault"].as_str().unwrap().contains("duplicate Content-Length"), "{result}");
    for answer in [
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        "SSH-2.0-OpenSSH\r\n",
    ] {
        expect(&answering(answer).0, &["-n", "2"], "malformed", 2);
    }

    // More than was requested.
    let (url, _) = answering("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxyz");
    let result = expect(&url, &["-n", "1"], "malformed", 1);
    assert_eq!(result["completed"], 1);
    assert!(result["first_fault"].as_str().unwrap().contains("no request was waiting for it"), "{result}");

    let (url, _) = answering("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(expect(&url, &["-n", "7"], "status", 7)["status"]["5xx"], 7);

    let (url, _) = server(|_, _, request| while request() {});
    expect(&url, &["-n", "2"], "timeout", 2);

    // A server that stops listening after a while: the remaining requests cannot be sent.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        drop(listener);
        // Read to the end, so that closing does not reset the connection.
        std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    });
    let result = bench(&[&url, "-n", "5", "-c", "1", "--timeout", "300ms"]);
    assert_eq!((&result["completed"], &result["sent"]), (&1.into(), &1.into()), "{result}");

    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let result = bench(&[&format!("http://{nobody}/"), "-n", "5", "-c", "1", "--timeout", "100ms"]);
    assert_eq!(result["completed"], 0);
    assert!(result["errors"]["connect"].as_u64().unwrap() > 0);
    assert!(result["first_fault"].as_str().unwrap().contains(&format!("connect to {nobody}: refused")), "{result}");
}

/// Sends the same bytes again and again until the peer is gone.
fn drip(stream: &mut TcpStream, bytes: &[u8], pause: Duration) {
    while stream.write_all(bytes).is_ok() {
        thread::sleep(pause);
    }
}

type Hostile = fn(&mut TcpStream);

/// Servers that keep sending, but never a complete response.
const HOSTILE: [(&str, Hostile); 8] = [
    ("nothing", |stream| drop(std::io::copy(stream, &mut std::io::sink()))),
    ("a status line", |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 ");
        drip(stream, b"x", Duration::from_millis(10));
    }),
    ("fields", |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n");
        drip(stream, b"A: b\r\n", Duration::from_millis(20));
    }),
    ("a body with a length", |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n");
        drip(stream, b"x", Duration::from_millis(10));
    }),
    ("chunks", |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        drip(stream, b"1\r\nx\r\n", Duration::from_millis(10));
    }),
    ("very many chunks", |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        drip(stream, &b"1\r\nx\r\n".repeat(10_000), Duration::ZERO);
    }),
    ("trailers", |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n");
        drip(stream, b"A: b\r\n", Duration::from_millis(20));
    }),
    ("a body until the end", |stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        drip(stream, b"x", Duration::from_millis(10));
    }),
];

#[test]
fn an_endless_response_times_out() {
    for (what, act) in HOSTILE {
        let (url, _) = server(move |_, stream, request| {
            request();
            act(stream);
        });
        let begun = Instant::now();
        let result = bench(&[&url, "-n", "2", "-c", "1", "--timeout", "300ms"]);
        assert_eq!((&result["errors"]["timeout"], &result["completed"]), (&2.into(), &0.into()), "{what}: {result}");
        assert!(begun.elapsed() >= Duration::from_millis(600), "{what}: {:?}", begun.elapsed());
    }
}

#[test]
fn endless_interim_responses_are_malformed() {
    let (url, _) = server(|_, stream, request| {
        request();
        // Until the client closes the connection.
        drip(stream, b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", Duration::from_millis(1));
    });
    let result = bench(&[&url, "-n", "2", "-c", "1"]);
    assert_eq!((&result["errors"]["malformed"], &result["completed"]), (&2.into(), &0.into()), "{result}");
}

#[test]
fn a_request_to_a_server_that_does_not_read_times_out() {
    let directory = Directory::new("large-body");
    std::fs::write(directory.file("body"), vec![b'x'; 12_000_000]).unwrap();
    let body = format!("@{}", directory.file("body").to_str().unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let result = bench(&[&url, "-n", "2", "-c", "1", "--timeout", "300ms", "-m", "PUT", "-b", &body]);
    assert_eq!((&result["errors"]["timeout"], &result["completed"]), (&2.into(), &0.into()), "{result}");
    drop(listener);
}

#[test]
fn at_a_fixed_rate_a_stall_shows_in_all_requests_that_were_due() {
    // The server stalls once for half a second: half of the requests of one second are due meanwhile.
    let begun = Instant::now();
    let (url, seen) = server(move |_, stream, request| {
        while request() {
            let still = Duration::from_millis(700).saturating_sub(begun.elapsed());
            if begun.elapsed() > Duration::from_millis(200) {
                thread::sleep(still);
            }
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    });
    let result = bench(&[&url, "-c", "2", "--rate", "200", "-n", "200"]);
    assert_eq!((&result["completed"], seen.load(Ordering::Relaxed)), (&200.into(), 200), "{result}");
    assert_eq!(result["latency_seconds"]["corrected"], true);
    let seconds = result["seconds"].as_f64().unwrap();
    assert!((0.9..3.0).contains(&seconds), "{result}");
    // Of 200 requests, about 100 were due during the stall and waited a quarter of a second on average. Counting from the send
    // time would show only two.
    let at = |percentile: f64| {
        let all = result["latency_seconds"]["percentiles"].as_array().unwrap();
        all.iter().find(|pair| pair[0] == percentile).unwrap()[1].as_f64().unwrap()
    };
    assert!(at(75.0) > 0.1 && at(100.0) > 0.3, "{result}");
}

#[test]
fn a_body_and_fields_are_sent_as_given() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/path?q=1", listener.local_addr().unwrap());
    let expected = format!(
        "PUT /path?q=1 HTTP/1.1\r\nHost: {}\r\nAccept: text/plain\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        listener.local_addr().unwrap()
    );
    let length = expected.len();
    let received = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = vec![0; length];
        std::io::Read::read_exact(&mut stream, &mut bytes).unwrap();
        stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n").unwrap();
        String::from_utf8(bytes).unwrap()
    });
    let options = ["-n", "1", "-c", "1", "-m", "PUT", "-H", "Accept: text/plain", "-b", "hello", "--no-keepalive"];
    let result = bench(&[&[url.as_str()], &options[..]].concat());
    assert_eq!(received.join().unwrap(), expected);
    assert_eq!(result["status"]["2xx"], 1);
}

#[test]
fn servers_with_tls_and_on_unix_sockets_are_put_under_load() {
    let socket = server::socket_file("bench");
    let listen = format!("unix:{}", socket.display());
    let _unix = Server::start("serve", &["--listen", &listen]);
    let result = bench(&["http://localhost/", "--unix", socket.to_str().unwrap(), "-n", "40", "-c", "4"]);
    assert_eq!((&result["completed"], &result["connections_made"]), (&40.into(), &4.into()), "{result}");
    let secure = Server::start("serve", &["--listen", "127.0.0.1:0", "--tls-self-signed"]);
    let url = secure.address(0).to_owned();
    let result = bench(&[&url, "-n", "40", "-c", "4", "--insecure"]);
    assert_eq!((&result["completed"], &result["status"]["2xx"]), (&40.into(), &40.into()), "{result}");
    // It is verified unless that is forbidden.
    let result = bench(&[&url, "-n", "1", "-c", "1", "--timeout", "300ms"]);
    assert_eq!(result["completed"], 0);
    assert!(result["first_fault"].as_str().unwrap().contains("certificate"), "{result}");
}

fn pelton(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pelton")).args(arguments).output().unwrap()
}

#[test]
fn the_report_has_counts_percentiles_and_errors() {
    let (url, _) = answering("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nhello");
    let output = pelton(&["bench", &url, "-n", "50", "-c", "2"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{said}");
    for part in
        ["50 requests in ", "requests/s", "p99.9", "max", "█", "50 responses had a status of 400 or more", "of its"]
    {
        assert!(said.contains(part), "no {part} in\n{said}");
    }
}

#[test]
fn impossible_requests_are_refused_with_an_explanation() {
    let cases: [(&[&str], i32, &str); 10] = [
        (&["http://127.0.0.1/", "-m", "CONNECT"], 2, "the response would open a tunnel"),
        (&["ftp://x/"], 2, "use http://host:port/path"),
        (&["https://127.0.0.1/", "--pipeline", "2"], 2, "requests over https are not pipelined"),
        (&["http://no.such.host.invalid/"], 1, "look up no.such.host.invalid: "),
        (&["http://x/", "-c", "0"], 2, "0 is not in 1..=1000000"),
        (&["http://x/", "-d", "5"], 2, "give a number and a unit"),
        (&["http://x/", "--rate=-1"], 2, "from 0.01 to 100000000"),
        (&["http://x/", "-H", "nonsense"], 2, "use the form 'Name: value'"),
        (&["http://x/", "-H", "Content-Length: 5"], 2, "cannot be set"),
        (&["http://127.0.0.1/", "-b", "@/nowhere/body"], 1, "read the body from /nowhere/body: "),
    ];
    for (arguments, code, explanation) in cases {
        let output = pelton(&[&["bench"], arguments].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(explanation), "{arguments:?}: {said}");
    }
}

#[test]
fn completion_scripts_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = pelton(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && script.contains("serve") && script.contains("access-log"),
            "{shell}: {script}"
        );
    }
    // If the shell is installed, it checks the script's syntax.
    let output = pelton(&["completions", "bash"]);
    let directory = Directory::new("completions");
    std::fs::write(directory.file("pelton"), &output.stdout).unwrap();
    let checked = Command::new("bash").arg("-n").arg(directory.file("pelton")).output();
    if let Ok(checked) = checked {
        assert!(checked.status.success(), "{checked:?}");
    }
    assert_eq!(pelton(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let page = |arguments: &[&str]| {
        let output = pelton(&[&["man"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(page(&[]).contains(".TH pelton 1"));
    let serve = page(&["serve"]);
    for part in [".TH pelton-serve 1", "SIGUSR2", "Exit codes: 0", "drain\\-time"] {
        assert!(serve.contains(part), "no {part} in\n{serve}");
    }
    let directory = Directory::new("man");
    page(&["--directory", directory.file("man1").to_str().unwrap()]);
    for name in ["pelton", "pelton-serve", "pelton-bench", "pelton-engines", "pelton-echo", "pelton-chat"] {
        let text = std::fs::read_to_string(directory.file("man1").join(format!("{name}.1"))).unwrap();
        assert!(text.contains(&format!(".TH {name} 1")), "{text}");
    }
    let output = pelton(&["man", "sreve"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("there is no page for \"sreve\""));
}
