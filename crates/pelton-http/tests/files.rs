//! Serving files: which ones are found, and how they are sent.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::tree::{Tree, noise, respect_permissions, settled};
use common::{On, Serve, Site, field, on_every_engine, statuses, undated};
use pelton::Reactor;
use pelton_http::{FileSettings, Files, Request, Responder, Response};

on_every_engine![
    files_are_served_with_validators,
    directories_have_an_index_and_a_slash,
    missing_and_hidden_files_get_404,
    unreadable_files_get_403,
    no_path_leaves_the_directory,
    only_regular_files_are_served_and_nothing_blocks,
    methods_other_than_get_and_head_are_refused,
    conditional_requests_are_supported,
    ranges_are_served_from_memory_and_from_files,
    several_ranges_are_sent_as_multipart,
    preferred_coding_is_sent,
    directories_are_listed_if_enabled,
    large_files_are_sent_completely,
    streams_mix_bytes_and_file_ranges,
];

fn serve(on: On, tree: &Tree) -> Site {
    on.serve(Files::with_settings(tree.path(), settled()).unwrap())
}

fn get(site: &mut Site, path: &str, fields: &[&str]) -> (String, Vec<u8>) {
    site.request("GET", path, fields)
}

fn status(site: &mut Site, path: &str, fields: &[&str]) -> u16 {
    statuses(&get(site, path, fields).0)[0]
}

fn http_date(seconds: u64) -> String {
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

fn files_are_served_with_validators(on: On) {
    let tree = Tree::new();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    tree.write_at("a.html", "<p>hello\n", then);
    tree.write("big.bin", noise(100_000));
    tree.write("none", "");
    tree.write("a b/ä.txt", "in a directory");
    let mut site = serve(on, &tree);
    for _ in 0..2 {
        let (head, body) = get(&mut site, "/a.html?query", &[]);
        let tag = field(&head, "ETag").unwrap();
        assert!(tag.starts_with('"') && tag.ends_with('"') && tag.len() > 10, "{tag}");
        // The modification time alone does not count, because it can be set.
        let changed = fs::metadata(tree.path().join("a.html")).unwrap().ctime();
        let changed = http_date(u64::try_from(changed).unwrap());
        let expected = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\nContent-Type: text/html; charset=utf-8\r\n\
             ETag: {tag}\r\nLast-Modified: {changed}\r\nCache-Control: no-cache\r\n\
             Accept-Ranges: bytes\r\nX-Content-Type-Options: nosniff\r\n\r\n"
        );
        assert_eq!((undated(&head), body), (expected.clone(), b"<p>hello\n".to_vec()));
        let (head, body) = site.request("HEAD", "/a.html", &[]);
        assert_eq!((undated(&head), body), (expected, Vec::new()));
        let (head, body) = get(&mut site, "/big.bin", &[]);
        assert_eq!((field(&head, "Content-Length"), body), (Some("100000"), noise(100_000)));
        let (head, body) = site.request("HEAD", "/big.bin", &[]);
        assert_eq!((field(&head, "Content-Length"), body), (Some("100000"), Vec::new()));
        let (head, body) = get(&mut site, "/none", &[]);
        assert_eq!((field(&head, "Content-Length"), body), (Some("0"), Vec::new()));
        assert_eq!(field(&head, "Content-Type"), Some("application/octet-stream"));
        assert_eq!(get(&mut site, "/a%20b/%c3%a4.txt", &[]).1, b"in a directory");
        assert_eq!(get(&mut site, "http://a/a.html", &[]).1, b"<p>hello\n");
    }
}

fn directories_have_an_index_and_a_slash(on: On) {
    let tree = Tree::new();
    tree.write("index.html", "home");
    tree.write("sub/index.html", "sub");
    tree.write("bare/file", "file");
    let mut site = serve(on, &tree);
    for _ in 0..2 {
        let (head, body) = get(&mut site, "/", &[]);
        assert_eq!((field(&head, "Content-Type"), &body[..]), (Some("text/html; charset=utf-8"), &b"home"[..]));
        assert_eq!(get(&mut site, "/sub/", &[]).1, b"sub");
        let (head, _) = get(&mut site, "/sub?a=b", &[]);
        assert_eq!((statuses(&head)[0], field(&head, "Location")), (301, Some("/sub/?a=b")));
        assert_eq!(status(&mut site, "/bare", &[]), 301);
        assert_eq!(status(&mut site, "/bare/", &[]), 404);
        assert_eq!(status(&mut site, "/sub/index.html/", &[]), 404);
        assert_eq!(status(&mut site, "/sub/index.html/x", &[]), 404);
    }
}

fn missing_and_hidden_files_get_404(on: On) {
    let tree = Tree::new();
    tree.write(".env", "secret");
    tree.write(".git/config", "secret");
    tree.write("sub/.hidden", "secret");
    let mut site = serve(on, &tree);
    for path in ["/.env", "/.git/config", "/sub/.hidden", "/%2eenv", "/missing", "/missing/", "/missing/x"] {
        for _ in 0..2 {
            assert_eq!(status(&mut site, path, &[]), 404, "{path}");
        }
    }
    assert_eq!(status(&mut site, &format!("/{}", "a".repeat(300)), &[]), 404);
    let settings = FileSettings { hidden: true, ..FileSettings::default() };
    let mut site = on.serve(Files::with_settings(tree.path(), settings).unwrap());
    assert_eq!(get(&mut site, "/.git/config", &[]).1, b"secret");
}

fn unreadable_files_get_403(on: On) {
    // Before the file lane starts its threads.
    respect_permissions();
    let tree = Tree::new();
    tree.write("unreadable", "secret");
    tree.write("closed/file", "secret");
    tree.write("open", "open");
    for name in ["unreadable", "closed"] {
        fs::set_permissions(tree.path().join(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let mut site = serve(on, &tree);
    for _ in 0..2 {
        for path in ["/unreadable", "/closed/file", "/closed/none"] {
            let (head, body) = get(&mut site, path, &[]);
            assert_eq!((statuses(&head), &body[..]), (vec![403], &b"403 Forbidden\n"[..]), "{path}");
        }
        assert_eq!(status(&mut site, "/open", &[]), 200);
    }
    // So that it can be removed.
    fs::set_permissions(tree.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
}

fn no_path_leaves_the_directory(on: On) {
    let tree = Tree::new();
    tree.write("secret", "secret");
    tree.write("in/file", "file");
    tree.write("in/sub/file", "sub");
    let inside = tree.path().join("in");
    symlink("../secret", inside.join("out")).unwrap();
    symlink(tree.path(), inside.join("up")).unwrap();
    symlink("/etc", inside.join("etc")).unwrap();
    symlink("/proc/self/root", inside.join("root")).unwrap();
    symlink("..", inside.join("dots")).unwrap();
    symlink("sub", inside.join("link")).unwrap();
    symlink("link/file", inside.join("links")).unwrap();
    let mut site = on.serve(Files::open(&inside).unwrap());
    for path in [
        "/../secret",
        "/sub/../../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/%2e%2e%2fsecret",
        "/..%5csecret",
        "/..\\secret",
        "/%252e%252e/secret",
        "/./file",
        "//file",
        "///etc/passwd",
        "/sub//file",
        "/out",
        "/up/secret",
        "/up/in/file",
        "/etc/passwd",
        "/root/etc/passwd",
        "/dots/secret",
        "/dots/in/file",
        "/dots/",
        "/dots",
    ] {
        let (head, body) = get(&mut site, path, &[]);
        assert_eq!(statuses(&head), [404], "{path}: {}", String::from_utf8_lossy(&body));
    }
    for path in ["/file%00", "/%00", "/%zz", "/file%"] {
        assert_eq!(status(&mut site, path, &[]), 400, "{path}");
    }
    if cfg!(target_os = "linux") {
        assert_eq!(get(&mut site, "/link/file", &[]).1, b"sub");
        assert_eq!(get(&mut site, "/links", &[]).1, b"sub");
    }
}

fn only_regular_files_are_served_and_nothing_blocks(on: On) {
    let tree = Tree::new();
    tree.write("file", "file");
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.path().join("fifo"), rustix::fs::Mode::RWXU).unwrap();
    // The path of a socket must be short.
    let directory = fs::File::open(tree.path()).unwrap();
    let short = format!("/proc/self/fd/{}/socket", std::os::fd::AsRawFd::as_raw_fd(&directory));
    let _socket = std::os::unix::net::UnixListener::bind(short).unwrap();
    let mut site = serve(on, &tree);
    for _ in 0..2 {
        assert_eq!(status(&mut site, "/fifo", &[]), 404);
        assert_eq!(status(&mut site, "/socket", &[]), 404);
        assert_eq!(status(&mut site, "/fifo/", &[]), 404);
    }
    let mut devices = on.serve(Files::open("/dev").unwrap());
    for path in ["/null", "/zero", "/tty"] {
        assert_eq!(status(&mut devices, path, &[]) / 100, 4, "{path}");
    }
}

fn methods_other_than_get_and_head_are_refused(on: On) {
    let tree = Tree::new();
    tree.write("file", "file");
    let mut site = serve(on, &tree);
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "BREW"] {
        let (head, _) = site.request(method, "/file", &[]);
        assert_eq!((statuses(&head)[0], field(&head, "Allow")), (405, Some("GET, HEAD, OPTIONS")), "{method}");
    }
    for target in ["/file", "*"] {
        let (head, body) = site.request("OPTIONS", target, &[]);
        assert_eq!((statuses(&head)[0], field(&head, "Allow")), (204, Some("GET, HEAD, OPTIONS")));
        assert!(body.is_empty());
    }
}

fn conditional_requests_are_supported(on: On) {
    let tree = Tree::new();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    tree.write_at("file", "hello", then);
    tree.write_at("big", noise(100_000), then);
    let mut site = serve(on, &tree);
    for path in ["/file", "/big"] {
        let (head, _) = get(&mut site, path, &[]);
        let (tag, date) = (field(&head, "ETag").unwrap(), field(&head, "Last-Modified").unwrap());
        let seconds =
            httpdate::parse_http_date(date).unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let (before, after) = (http_date(seconds - 1), http_date(seconds + 1));
        for (fields, expected) in [
            (vec![format!("If-None-Match: {tag}")], 304),
            (vec![format!("If-None-Match: W/{tag}")], 304),
            (vec![format!("If-None-Match: \"x\", {tag}")], 304),
            (vec!["If-None-Match: \"x\"".to_owned(), format!("If-None-Match: {tag}")], 304),
            (vec!["If-None-Match: \"x\"".to_owned(), format!("If-Modified-Since: {date}")], 200),
            (vec![format!("If-Modified-Since: {date}")], 304),
            (vec![format!("If-Modified-Since: {before}")], 200),
            (vec![format!("If-Match: {tag}")], 200),
            (vec!["If-Match: \"x\"".to_owned()], 412),
            (vec![format!("If-Match: W/{tag}")], 412),
            (vec![format!("If-Match: {tag}"), format!("If-Unmodified-Since: {before}")], 200),
            (vec![format!("If-Unmodified-Since: {before}")], 412),
            (vec![format!("If-Unmodified-Since: {after}")], 200),
            (vec![format!("If-Unmodified-Since: {date}"), format!("If-None-Match: {tag}")], 304),
            (vec![format!("If-None-Match: {tag}"), "Range: bytes=0-1".to_owned()], 304),
            (vec![format!("If-Match: {tag}"), "Range: bytes=0-1".to_owned()], 206),
            (vec![format!("If-Range: {tag}"), "Range: bytes=0-1".to_owned()], 206),
            (vec![format!("If-Range: {date}"), "Range: bytes=0-1".to_owned()], 200),
            (vec![format!("If-Range: {after}"), "Range: bytes=0-1".to_owned()], 200),
            (vec![format!("If-Range: W/{tag}"), "Range: bytes=0-1".to_owned()], 200),
            (vec!["If-Range: \"x\"".to_owned(), "Range: bytes=0-1".to_owned()], 200),
            (vec!["If-Range: \"x\"".to_owned(), "Range: bytes=1000000-".to_owned()], 200),
        ] {
            let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
            for method in ["GET", "HEAD"] {
                // HEAD ignores ranges.
                let expected = if method == "HEAD" && expected == 206 { 200 } else { expected };
                let (head, body) = site.request(method, path, &fields);
                assert_eq!(statuses(&head), [expected], "{method} {path} {fields:?}");
                if expected == 304 {
                    assert_eq!((field(&head, "ETag"), field(&head, "Content-Type")), (Some(tag), None));
                    assert_eq!(
                        (field(&head, "Cache-Control"), field(&head, "Content-Length")),
                        (Some("no-cache"), None)
                    );
                }
                if expected >= 300 || method == "HEAD" {
                    assert!(body.is_empty());
                }
            }
        }
    }
}

fn ranges_are_served_from_memory_and_from_files(on: On) {
    let tree = Tree::new();
    tree.write("small", noise(1000));
    tree.write("large", noise(1_000_000));
    tree.write("none", "");
    let mut site = serve(on, &tree);
    for (path, size) in [("/small", 1000), ("/large", 1_000_000)] {
        let all = noise(size);
        for (value, range) in [
            ("0-0".to_owned(), 0..1),
            ("0-".to_owned(), 0..size),
            ("10-19".to_owned(), 10..20),
            (format!("{}-", size - 1), size - 1..size),
            (format!("5-{}", 2 * size), 5..size),
            ("-7".to_owned(), size - 7..size),
            (format!("-{}", size + 5), 0..size),
        ] {
            let (head, body) = get(&mut site, path, &[&format!("Range: bytes={value}")]);
            assert_eq!(statuses(&head), [206], "{path} {value}");
            let said = format!("bytes {}-{}/{size}", range.start, range.end - 1);
            assert_eq!(field(&head, "Content-Range"), Some(&*said));
            assert_eq!(field(&head, "Content-Length"), Some(&*range.len().to_string()));
            assert!(body == all[range], "{path} {value}");
        }
        let (head, _) = get(&mut site, path, &[&format!("Range: bytes={size}-")]);
        assert_eq!((statuses(&head)[0], field(&head, "Content-Range")), (416, Some(&*format!("bytes */{size}"))));
        for value in ["bytes=5-2", "bytes=x", "lines=1-2", "bytes=0-1,x"] {
            let (head, body) = get(&mut site, path, &[&format!("Range: {value}")]);
            assert_eq!((statuses(&head)[0], body == all), (200, true), "{value}");
        }
    }
    assert_eq!(status(&mut site, "/none", &["Range: bytes=0-"]), 416);
    assert_eq!(status(&mut site, "/none", &["Range: bytes=-5"]), 200);
}

/// The parts of a multipart body: the range and the bytes of each.
fn parts(head: &str, body: &[u8]) -> Vec<(String, Vec<u8>)> {
    let boundary = field(head, "Content-Type").unwrap().strip_prefix("multipart/byteranges; boundary=").unwrap();
    let line = format!("\r\n--{boundary}");
    let mut found = Vec::new();
    let mut rest = body.strip_prefix(line.as_bytes()).unwrap();
    while let Some(part) = rest.strip_prefix(b"\r\n") {
        let end = part.windows(line.len()).position(|window| window == line.as_bytes()).unwrap();
        let head_end = part.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = str::from_utf8(&part[..head_end]).unwrap();
        assert_eq!(field(head, "Content-Type"), Some("application/octet-stream"));
        found.push((field(head, "Content-Range").unwrap().to_owned(), part[head_end + 4..end].to_vec()));
        rest = &part[end + line.len()..];
    }
    assert_eq!(rest, b"--\r\n");
    found
}

fn several_ranges_are_sent_as_multipart(on: On) {
    let tree = Tree::new();
    tree.write("small", noise(1000));
    tree.write("large", noise(2_000_000));
    let mut site = serve(on, &tree);
    for (path, size) in [("/small", 1000), ("/large", 2_000_000)] {
        let all = noise(size);
        let (head, body) = get(&mut site, path, &[&format!("Range: bytes=0-0, -3, 5-{}", size / 2)]);
        assert_eq!(statuses(&head)[0], 206);
        assert_eq!(field(&head, "Content-Length"), Some(&*body.len().to_string()));
        assert_eq!(field(&head, "Content-Range"), None);
        let expected = [0..1, size - 3..size, 5..size / 2 + 1]
            .map(|range| (format!("bytes {}-{}/{size}", range.start, range.end - 1), all[range].to_vec()));
        assert!(parts(&head, &body) == expected, "{path}");
        let (head, body) = get(&mut site, path, &[&format!("Range: bytes=0-1,{size}-")]);
        assert_eq!((field(&head, "Content-Range"), &body[..]), (Some(&*format!("bytes 0-1/{size}")), &all[..2]));
        let (head, body) = get(&mut site, path, &["Range: bytes=0-,5-"]);
        assert_eq!((statuses(&head)[0], body == all), (200, true), "the ranges exceed the file");
        for abuse in [["0-"; 5].join(","), ["0-0"; 1000].join(","), ["1-2,2-3"; 3].join(",")] {
            assert_eq!(status(&mut site, path, &[&format!("Range: bytes={abuse}")]), 416, "{abuse}");
        }
    }
}

fn preferred_coding_is_sent(on: On) {
    let tree = Tree::new();
    tree.write("a.css", "plain");
    tree.write("a.css.br", "brotli");
    tree.write("a.css.gz", "gzip");
    tree.write("big.js", noise(200_000));
    tree.write("big.js.zst", noise(100_000));
    tree.write("old.css", "new");
    tree.write_at("old.css.gz", "stale", SystemTime::now() - Duration::from_secs(7200));
    tree.write("alone.css", "alone");
    let mut site = serve(on, &tree);
    let mut tags = Vec::new();
    for (accepted, coding, expected) in [
        (None, None, "plain"),
        (Some("br, gzip"), Some("br"), "brotli"),
        (Some("gzip"), Some("gzip"), "gzip"),
        (Some("gzip;q=1.0, br;q=0.5"), Some("gzip"), "gzip"),
        (Some("deflate"), None, "plain"),
        (Some("*;q=0, gzip"), Some("gzip"), "gzip"),
        (Some("identity;q=0, br;q=0, *"), Some("gzip"), "gzip"),
    ] {
        let fields: Vec<String> = accepted.iter().map(|value| format!("Accept-Encoding: {value}")).collect();
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        let (head, body) = get(&mut site, "/a.css", &fields);
        assert_eq!((field(&head, "Content-Encoding"), &*body), (coding, expected.as_bytes()), "{accepted:?}");
        assert_eq!(field(&head, "Vary"), Some("Accept-Encoding"));
        assert_eq!(field(&head, "Content-Type"), Some("text/css; charset=utf-8"));
        tags.push((expected, field(&head, "ETag").unwrap().to_owned()));
        let (head, _) = get(&mut site, "/a.css", &[&fields[..], &[&format!("If-None-Match: {}", tags[0].1)]].concat());
        assert_eq!(statuses(&head)[0], if expected == "plain" { 304 } else { 200 });
        assert_eq!(field(&head, "Vary"), Some("Accept-Encoding"));
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 3, "each form has its own tag: {tags:?}");
    assert_eq!(status(&mut site, "/a.css", &["Accept-Encoding: zstd, identity;q=0"]), 406);
    let (head, body) = get(&mut site, "/big.js", &["Accept-Encoding: zstd"]);
    assert_eq!((field(&head, "Content-Encoding"), body == noise(100_000)), (Some("zstd"), true));
    let (head, body) = get(&mut site, "/big.js", &["Accept-Encoding: zstd", "Range: bytes=5-9"]);
    assert_eq!((statuses(&head)[0], &*body), (206, &noise(100)[5..10]));
    assert_eq!(status(&mut site, "/big.js", &["Accept-Encoding: zstd", "Range: bytes=5-9,11-12"]), 200);
    let (head, body) = get(&mut site, "/old.css", &["Accept-Encoding: gzip"]);
    assert_eq!((field(&head, "Content-Encoding"), &*body), (None, &b"new"[..]), "the older sibling is ignored");
    assert_eq!(field(&get(&mut site, "/alone.css", &["Accept-Encoding: gzip"]).0, "Vary"), None);
}

fn directories_are_listed_if_enabled(on: On) {
    let tree = Tree::new();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    tree.write_at("sub/b & <c>.txt", noise(1536), then);
    tree.write_at("sub/a.txt", "a", then);
    tree.write("sub/deeper/index.html", "deeper");
    tree.write("sub/.hidden", "secret");
    symlink("/etc/passwd", tree.path().join("sub/out")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.path().join("sub/fifo"), rustix::fs::Mode::RWXU).unwrap();
    let settings = FileSettings { listing: true, ..FileSettings::default() };
    let mut site = on.serve(Files::with_settings(tree.path(), settings).unwrap());
    let (head, body) = get(&mut site, "/sub/", &[]);
    assert_eq!((statuses(&head)[0], field(&head, "Content-Type")), (200, Some("text/html; charset=utf-8")));
    let body = String::from_utf8(body).unwrap();
    let lines: Vec<&str> = body.lines().filter(|line| line.starts_with("<tr>")).collect();
    assert_eq!(lines.len(), 4, "{body}");
    assert!(lines[0].contains("href=\"../\"") && lines[1].contains("href=\"deeper/\""), "{body}");
    assert!(lines[2].ends_with(">a.txt</a></td><td>1 B</td><td>1994-11-06 08:49</td></tr>"), "{body}");
    assert!(lines[3].contains("href=\"b%20%26%20%3Cc%3E.txt\">b &amp; &lt;c&gt;.txt</a></td><td>1.5 KiB"), "{body}");
    assert_eq!(get(&mut site, "/sub/deeper/", &[]).1, b"deeper");
    assert_eq!(status(&mut site, "/sub", &[]), 301);
    assert!(String::from_utf8(get(&mut site, "/", &[]).1).unwrap().contains("href=\"sub/\""));
}

fn large_files_are_sent_completely(on: On) {
    let tree = Tree::new();
    let size = 20_000_000;
    tree.write("large", noise(size));
    let mut site = serve(on, &tree);
    let all = noise(size);
    for _ in 0..2 {
        assert!(get(&mut site, "/large", &[]).1 == all);
        assert!(get(&mut site, "/large", &["Range: bytes=1000-"]).1 == all[1000..]);
    }
    // Several requests over one connection.
    let answers = site.with_client(move |mut client| {
        let get = "GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
        client.send(format!("{get}HEAD /large HTTP/1.1\r\nHost: a\r\n\r\n{get}"));
        client.finish();
        client.read_all().len()
    });
    assert!((2 * size..2 * size + 2000).contains(&answers), "{answers}");
}

fn streams_mix_bytes_and_file_ranges(on: On) {
    let tree = Tree::new();
    tree.write("a", noise(2_000_000));
    let file = Arc::new(fs::File::open(tree.path().join("a")).unwrap());
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let mut response = Response::ok();
        if request.path() == "/counted" {
            response = response.header("Content-Length", "1000010");
        }
        let stream = responder.stream(reactor, response);
        stream.send(reactor, "before").unwrap();
        stream.send_file(reactor, file.clone(), 500_000..1_500_000).unwrap();
        stream.send_file(reactor, file.clone(), 7..7).unwrap();
        stream.send(reactor, "end\n").unwrap();
        stream.finish(reactor);
    };
    let mut site = on.serve(handler);
    let expected = [b"before", &noise(2_000_000)[500_000..1_500_000], b"end\n"].concat();
    let (head, body) = get(&mut site, "/counted", &[]);
    assert!(field(&head, "Content-Length") == Some("1000010") && body == expected, "{head}");
    let out = tree.path().join("out").display().to_string();
    site.curl(&format!("-o {out} URL/chunked"), Vec::new());
    assert!(fs::read(out).unwrap() == expected);
}

#[test]
fn errors_name_the_directory() {
    for path in ["/nonexistent-directory", "/dev/null"] {
        let error = Files::open(path).err().unwrap().to_string();
        assert!(error.starts_with(&format!("serve the files of {path}: ")), "{error}");
    }
    let settings = FileSettings { cache_control: Some("a\r\nb: c".to_owned()), ..FileSettings::default() };
    let error = Files::with_settings(".", settings).err().unwrap().to_string();
    assert!(error.contains(r#"invalid Cache-Control "a\r\nb: c""#), "{error}");
}

/// The positions of a range according to RFC 9110; `None` if the range is invalid.
fn range_model(first: Option<usize>, last: Option<usize>, size: usize) -> Option<Vec<usize>> {
    let has = |at: &usize| match (first, last) {
        (Some(first), Some(last)) => (first..=last).contains(at),
        (Some(first), None) => *at >= first,
        (None, Some(count)) => *at + count >= size,
        (None, None) => false,
    };
    let valid = match (first, last) {
        (Some(first), Some(last)) => first <= last,
        (None, None) => false,
        _ => true,
    };
    valid.then(|| (0..size).filter(has).collect())
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 24, ..Default::default() })]
    /// From memory and from a descriptor.
    #[test]
    fn any_range_gets_the_requested_bytes(
        ranges in proptest::collection::vec(
            (proptest::option::of(0..1200_usize), proptest::option::of(0..1200_usize)), 1..40),
        small in proptest::sample::select(vec![0, 64 << 10]),
    ) {
        const SIZE: usize = 1000;
        let tree = Tree::new();
        tree.write("a", noise(SIZE));
        let settings = FileSettings { small, ..FileSettings::default() };
        let mut site = On(pelton::EngineKind::Poll).serve(Files::with_settings(tree.path(), settings).unwrap());
        let all = noise(SIZE);
        site.with_client(move |mut client| {
            for (first, last) in ranges {
                let text = |number: Option<usize>| number.map_or(String::new(), |number| number.to_string());
                let range = format!("{}-{}", text(first), text(last));
                client.send(format!("GET /a HTTP/1.1\r\nHost: a\r\nRange: bytes={range}\r\n\r\n"));
                let head = client.read_until("\r\n\r\n");
                let body = client.read_exactly(field(&head, "Content-Length").unwrap().parse().unwrap());
                let said = field(&head, "Content-Range");
                match range_model(first, last, SIZE).as_deref() {
                    None => assert_eq!((statuses(&head)[0], said, body == all), (200, None, true), "{range}"),
                    Some([]) => assert_eq!((statuses(&head)[0], said), (416, Some("bytes */1000")), "{range}"),
                    Some(places) => {
                        let (first, last) = (places[0], places[places.len() - 1]);
                        assert_eq!((statuses(&head)[0], said), (206, Some(&*format!("bytes {first}-{last}/1000"))), "{range}");
                        assert!(body.iter().eq(places.iter().map(|at| &all[*at])), "{range}");
                    }
                }
            }
        });
    }
}
