//! Hostile directories: FIFOs, devices, sockets, links and odd names.
// rustix has no `mkfifoat` for macOS.
#![cfg(not(target_vendor = "apple"))]

mod common;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::tree::{Tree, respect_permissions};
use common::{DEADLINE, On, Serve, Site, on_every_engine, statuses};
use pelton_http::{FileSettings, Files};
use rustix::fs::{CWD, FileType, Mode, OFlags};

on_every_engine![a_hostile_directory_is_served_and_listed, writers_of_fifos_are_not_disturbed];

/// The size of a sparse file with data only at its ends, far too long to send.
const HUGE: u64 = 1 << 40;

/// Names that are meant to break something, and their encoding in links.
fn nasty_names() -> Vec<(OsString, String)> {
    let long = "l".repeat(255);
    let names: Vec<(Vec<u8>, &str)> = vec![
        (b"new\nline".to_vec(), "new%0Aline"),
        (b"carriage\r\nHTTP/1.1 200 OK\r\n\r\n".to_vec(), "carriage%0D%0AHTTP%2F1.1%20200%20OK%0D%0A%0D%0A"),
        (b"esc\x1b[2Jape".to_vec(), "esc%1B%5B2Jape"),
        (b"not\xff\xfeutf-8".to_vec(), "not%FF%FEutf-8"),
        (b"<script>alert(1)</script>".to_vec(), "%3Cscript%3Ealert%281%29%3C%2Fscript%3E"),
        (b"\"quoted' &amp;".to_vec(), "%22quoted%27%20%26amp%3B"),
        (b"javascript:alert(1)".to_vec(), "javascript%3Aalert%281%29"),
        (b"a?b#c%41;d".to_vec(), "a%3Fb%23c%2541%3Bd"),
        ("\u{202e}txt.exe \u{2028}".as_bytes().to_vec(), "%E2%80%AEtxt.exe%20%E2%80%A8"),
        (b" ".to_vec(), "%20"),
        (long.as_bytes().to_vec(), &long),
    ];
    let without_slashes = |name: Vec<u8>| name.into_iter().map(|byte| if byte == b'/' { b'|' } else { byte }).collect();
    names
        .into_iter()
        .map(|(name, link)| (OsString::from_vec(without_slashes(name)), link.replace("%2F", "%7C")))
        .collect()
}

/// Binds a socket at a path that may be longer than a socket address allows.
fn bind(tree: &Path, name: &str) -> UnixListener {
    let directory = File::open(tree).unwrap();
    UnixListener::bind(format!("/dev/fd/{}/{name}", directory.as_raw_fd())).unwrap()
}

fn fifo(path: &Path) {
    rustix::fs::mkfifoat(CWD, path, Mode::RWXU).unwrap();
}

fn get(site: &mut Site, path: &str, fields: &[&str]) -> (String, Vec<u8>) {
    site.request("GET", path, fields)
}

fn a_hostile_directory_is_served_and_listed(on: On) {
    let tree = Tree::new();
    let place = |name: &str| tree.path().join(name);
    fifo(&place("fifo"));
    let _socket = bind(tree.path(), "socket");
    // Only root can create a device. Otherwise use a link to one, which also leads outside.
    let device =
        rustix::fs::mknodat(CWD, place("device"), FileType::CharacterDevice, Mode::RUSR, rustix::fs::makedev(1, 3));
    if device.is_err() {
        symlink("/dev/null", place("device")).unwrap();
    }
    symlink("nowhere", place("dangling")).unwrap();
    symlink("loop", place("loop")).unwrap();
    symlink("ping", place("pong")).unwrap();
    symlink("pong", place("ping")).unwrap();
    symlink("/etc/passwd", place("absolute")).unwrap();
    symlink("../..", place("up")).unwrap();
    symlink("fifo", place("to-fifo")).unwrap();
    symlink("socket", place("to-socket")).unwrap();
    symlink("/proc/self/fd/0", place("magic")).unwrap();
    for name in ["unreadable", "closed/inside"] {
        tree.write(name, "secret");
    }
    for name in ["unreadable", "closed"] {
        fs::set_permissions(place(name), fs::Permissions::from_mode(0o000)).unwrap();
    }
    let huge = File::create(place("huge")).unwrap();
    // Not every file system supports this size.
    let size = [HUGE, 1 << 33].into_iter().find(|size| huge.set_len(*size).is_ok()).unwrap();
    for (name, _) in nasty_names() {
        fs::write(place("").join(&name), name.as_bytes()).unwrap();
        fs::create_dir_all(place("directories").join(&name)).unwrap();
    }
    // A sibling that is not a regular file must not be used or opened.
    tree.write("page.css", "plain");
    fifo(&place("page.css.gz"));
    fs::create_dir(place("page.css.br")).unwrap();
    symlink("fifo", place("page.css.zst")).unwrap();
    // An index must be a regular file, too.
    fs::create_dir_all(place("indexed")).unwrap();
    fifo(&place("indexed/index.html"));
    tree.write("indexed/inside", "inside");
    respect_permissions();
    assert!(File::open(place("unreadable")).is_err(), "this test needs permissions to be enforced");
    #[cfg(target_os = "linux")]
    let opened = Opened::watch(&["fifo", "socket", "device", "page.css.gz", "indexed/index.html"].map(place));

    for valid in [Duration::ZERO, Duration::from_secs(3600)] {
        let settings = FileSettings { listing: true, valid, valid_missing: valid, ..FileSettings::default() };
        let mut site = on.serve(Files::with_settings(tree.path(), settings).unwrap());
        for _ in 0..2 {
            for name in [
                "fifo",
                "socket",
                "device",
                "dangling",
                "loop",
                "ping",
                "absolute",
                "up",
                "to-fifo",
                "to-socket",
                "magic",
            ] {
                for path in [format!("/{name}"), format!("/{name}/"), format!("/{name}/x")] {
                    let (head, _) = get(&mut site, &path, &[]);
                    assert_eq!(statuses(&head)[0], 404, "{path}");
                }
            }
            for path in ["/unreadable", "/closed/", "/closed/inside", "/closed/none"] {
                assert_eq!(statuses(&get(&mut site, path, &[]).0)[0], 403, "{path}");
            }
            let (head, body) = get(&mut site, "/page.css", &["Accept-Encoding: gzip, br, zstd"]);
            assert!(statuses(&head)[0] == 200 && !head.contains("Content-Encoding") && body == b"plain", "{head}");
            // The ends of a file that is far too long to send.
            for (range, first) in [
                ("0-9".to_owned(), 0),
                ("-10".to_owned(), size - 10),
                (format!("{}-{}", size - 10, u64::MAX), size - 10),
            ] {
                let (head, body) = get(&mut site, "/huge", &[&format!("Range: bytes={range}")]);
                assert!(head.contains(&format!("\r\nContent-Range: bytes {first}-{}/{size}\r\n", first + 9)), "{head}");
                assert_eq!(body, [0; 10]);
            }
            for (name, link) in nasty_names() {
                let (head, body) = get(&mut site, &format!("/{link}"), &[]);
                assert_eq!((statuses(&head)[0], &body[..]), (200, name.as_bytes()), "{link}");
                assert_eq!(head.matches("HTTP/1.1").count(), 1, "{head}");
                let (head, _) = get(&mut site, &format!("/directories/{link}"), &[]);
                assert!(head.contains(&format!("\r\nLocation: /directories/{link}/\r\n")), "{head}");
                let (head, page) = get(&mut site, &format!("/directories/{link}/"), &[]);
                assert_eq!(statuses(&head)[0], 200, "{link}");
                is_harmless(&page);
            }
            let (head, page) = get(&mut site, "/", &[]);
            assert_eq!(statuses(&head)[0], 200);
            let mut expected: Vec<String> = nasty_names().into_iter().map(|(_, link)| link).collect();
            expected.extend(["directories/", "indexed/", "page.css.br/", "huge", "page.css"].map(str::to_owned));
            expected.sort();
            let mut listed = is_harmless(&page);
            listed.sort();
            assert_eq!(listed, expected);
            assert_eq!(is_harmless(&get(&mut site, "/indexed/", &[]).1), ["../", "inside"]);
            assert_eq!(is_harmless(&get(&mut site, "/directories/", &[]).1).len(), 1 + nasty_names().len());
        }
    }
    #[cfg(target_os = "linux")]
    assert!(!opened.any(), "a special file was opened");
    // So that it can be removed.
    fs::set_permissions(place("closed"), fs::Permissions::from_mode(0o700)).unwrap();
}

/// Reports whether any of some files is opened.
#[cfg(target_os = "linux")]
struct Opened(std::os::fd::OwnedFd);

#[cfg(target_os = "linux")]
impl Opened {
    fn watch(paths: &[std::path::PathBuf]) -> Opened {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let watch = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        for path in paths {
            add_watch(&watch, path, WatchFlags::OPEN | WatchFlags::DONT_FOLLOW).unwrap();
        }
        Opened(watch)
    }

    fn any(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 4096]) != Err(rustix::io::Errno::AGAIN)
    }
}

/// Checks that a page contains no foreign tags or control characters. Returns its links.
fn is_harmless(page: &[u8]) -> Vec<String> {
    let page = str::from_utf8(page).expect("the page must be UTF-8");
    assert!(!page.chars().any(|character| character.is_control() && character != '\n'), "{page:?}");
    let mut links = Vec::new();
    for tag in page.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
        const OWN: [&str; 24] = [
            "!DOCTYPE html",
            "html lang=\"en\"",
            "head",
            "meta charset=\"utf-8\"",
            "title",
            "/title",
            "style",
            "/style",
            "/head",
            "body",
            "h1",
            "/h1",
            "table",
            "tr",
            "td",
            "/a",
            "/td",
            "/tr",
            "/table",
            "p",
            "/p",
            "/body",
            "/html",
            "meta name=\"viewport\" content=\"width=device-width\"",
        ];
        match tag.strip_prefix("a href=\"").and_then(|rest| rest.strip_suffix('"')) {
            Some(link) => {
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~%/".contains(&byte);
                assert!(link.bytes().all(plain), "{link}");
                links.push(link.to_owned());
            }
            None => assert!(OWN.contains(&tag), "{tag}"),
        }
    }
    links
}

/// Opening a FIFO for writing blocks until there is a reader. If the server opened it to look at it, the writer would continue,
/// and closing it would kill the writer.
fn writers_of_fifos_are_not_disturbed(on: On) {
    let tree = Tree::new();
    fs::create_dir(tree.path().join("sub")).unwrap();
    let path = tree.path().join("sub/fifo");
    fifo(&path);
    symlink("fifo", tree.path().join("sub/link")).unwrap();
    symlink("sub/fifo", tree.path().join("index.html")).unwrap();
    tree.write("sub/page", "page");
    symlink("fifo", tree.path().join("sub/page.gz")).unwrap();
    let through = Arc::new(AtomicBool::new(false));
    let (begin, begun) = mpsc::channel();
    let writer = std::thread::spawn({
        let (path, through) = (path.clone(), through.clone());
        move || {
            begin.send(()).unwrap();
            let mut fifo = File::options().write(true).open(path).unwrap();
            through.store(true, Ordering::SeqCst);
            fifo.write_all(b"what was to be written")
        }
    });
    begun.recv_timeout(DEADLINE).unwrap();
    for (valid, precompressed) in [(Duration::ZERO, true), (Duration::from_secs(1), false)] {
        let settings = FileSettings { listing: true, valid, precompressed, ..FileSettings::default() };
        let mut site = on.serve(Files::with_settings(tree.path(), settings).unwrap());
        for request in 0..30 {
            for (target, status) in [
                ("/sub/fifo", 404),
                ("/sub/fifo/", 404),
                ("/sub/link", 404),
                ("/sub/", 200),
                ("/sub/page", 200),
                ("/", 200),
                ("/index.html", 404),
            ] {
                let (head, _) = get(&mut site, target, &["Accept-Encoding: gzip"]);
                assert_eq!(statuses(&head)[0], status, "{target}");
                assert!(!through.load(Ordering::SeqCst), "the writer was unblocked by {target}, request {request}");
            }
        }
    }
    // Now there is a reader.
    let mut reader = File::from(rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap());
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert_eq!(read, b"what was to be written");
    writer.join().unwrap().unwrap();
}

#[test]
fn hostile_names_are_valid_and_of_the_stated_length() {
    let names = nasty_names();
    assert!(names.iter().any(|(name, _)| name.len() == 255));
    assert!(names.iter().any(|(name, _)| name.to_str().is_none()));
    assert!(names.iter().all(|(name, _)| !AsRef::<OsStr>::as_ref(name).as_bytes().contains(&b'/')));
}
