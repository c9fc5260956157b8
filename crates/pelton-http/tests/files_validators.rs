//! The same tag must mean the same bytes, even if file times are set, as reproducible builds do.

mod common;

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::tree::{Tree, noise};
use common::{DEADLINE, On, Serve, Site, field, statuses};
use pelton::EngineKind;
use pelton_http::{FileSettings, Files};

const FOR_GOOD: Duration = Duration::from_secs(3600);

fn serve(tree: &Tree, valid: Duration, settled_after: Duration) -> Site {
    let settings = FileSettings { valid, valid_missing: valid, settled_after, ..FileSettings::default() };
    On(EngineKind::Poll).serve(Files::with_settings(tree.path(), settings).unwrap())
}

/// An answer: its status, its tag, its date and its body.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Answer {
    status: u16,
    tag: Option<String>,
    date: Option<String>,
    body: Vec<u8>,
}

fn get(site: &mut Site, path: &str, fields: &[&str]) -> Answer {
    let (head, body) = site.request("GET", path, fields);
    let field = |name: &str| field(&head, name).map(str::to_owned);
    Answer { status: statuses(&head)[0], tag: field("ETag"), date: field("Last-Modified"), body }
}

/// Repeats a request until the answer has validators, and checks that they do not appear too early.
fn get_settled(site: &mut Site, file: &Path, path: &str, fields: &[&str]) -> Answer {
    let start = Instant::now();
    loop {
        let answer = get(site, path, fields);
        if answer.tag.is_some() {
            let metadata = fs::metadata(file).unwrap();
            let (seconds, nanoseconds) = (metadata.ctime() as u64, metadata.ctime_nsec() as u32);
            let changed = UNIX_EPOCH + Duration::new(seconds, nanoseconds);
            let age = SystemTime::now().duration_since(changed).unwrap();
            assert!(age >= Duration::from_secs(2), "{path} has a tag {age:?} after it was changed");
            return answer;
        }
        assert_eq!(answer.date, None, "Last-Modified without ETag");
        assert!(start.elapsed() < DEADLINE, "no tag for {path}");
    }
}

fn pin(file: &Path) {
    let then = UNIX_EPOCH + Duration::from_secs(784_111_777);
    File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
}

/// Writes other bytes of the same length to the same file.
fn rewrite(file: &Path, bytes: &[u8]) {
    let mut open = File::options().write(true).open(file).unwrap();
    open.rewind().unwrap();
    open.write_all(bytes).unwrap();
    pin(file);
}

/// Replaces the file by another with the same name and length. The inode may be the same.
fn make_anew(file: &Path, bytes: &[u8]) {
    fs::remove_file(file).unwrap();
    fs::write(file, bytes).unwrap();
    pin(file);
}

/// Bytes that differ everywhere from those of another seed.
fn bytes(size: usize, seed: u8) -> Vec<u8> {
    noise(size).into_iter().map(|byte| byte ^ seed).collect()
}

type Change = fn(&Path, &[u8]);

#[test]
fn different_bytes_have_different_validators_even_with_equal_size_and_time() {
    let tree = Tree::new();
    let names = ["small", "large", "small.txt", "large.txt"];
    let size = |name: &str| if name.starts_with("small") { 1000 } else { 100_000 };
    // The last two are requested in compressed form.
    let file =
        |name: &str| tree.path().join(if name.ends_with(".txt") { format!("{name}.gz") } else { name.to_owned() });
    let fields = |name: &str| if name.ends_with(".txt") { vec!["Accept-Encoding: gzip"] } else { vec![] };
    for name in names {
        tree.write(name, "as it is");
        fs::write(file(name), bytes(size(name), 0)).unwrap();
        pin(&file(name));
        pin(&tree.path().join(name));
    }
    let mut site = serve(&tree, Duration::ZERO, FileSettings::default().settled_after);
    let mut known: Vec<Answer> = Vec::new();
    for name in names {
        known.push(get_settled(&mut site, &file(name), &format!("/{name}"), &fields(name)));
        assert_eq!(known[known.len() - 1].body, bytes(size(name), 0), "{name}");
    }
    for (round, change) in [rewrite as Change, make_anew].into_iter().enumerate() {
        let seed = round as u8 + 1;
        for name in names {
            change(&file(name), &bytes(size(name), seed));
        }
        // Immediately, when files are too young for validators, and again after they have settled.
        for settled in [false, true] {
            for (name, known) in names.iter().zip(&mut known) {
                let (path, plain) = (format!("/{name}"), fields(name));
                let now = if settled {
                    get_settled(&mut site, &file(name), &path, &plain)
                } else {
                    get(&mut site, &path, &plain)
                };
                let context = format!("{name}, round {round}, settled: {settled}, {:?} and {:?}", known.tag, now.tag);
                assert!(now.tag.is_none() || (now.tag != known.tag && now.date != known.date), "{context}");
                let (tag, date) = (known.tag.as_deref().unwrap(), known.date.as_deref().unwrap());
                for (condition, status) in [
                    (format!("If-None-Match: {tag}"), 200),
                    (format!("If-None-Match: W/{tag}"), 200),
                    (format!("If-Modified-Since: {date}"), 200),
                    (format!("If-Range: {tag}"), 200),
                    (format!("If-Range: {date}"), 200),
                    (format!("If-Match: {tag}"), 412),
                ] {
                    let range = ["Range: bytes=1-2", &condition];
                    let range = if condition.starts_with("If-Range") { &range[..] } else { &range[1..] };
                    let answer = get(&mut site, &path, &[&plain, range].concat());
                    assert_eq!(answer.status, status, "{condition}: {context}");
                    if status == 200 {
                        assert!(answer.body == bytes(size(name), seed), "{condition}: {context}");
                    }
                }
                if settled {
                    // The current validators match.
                    let tag = now.tag.as_deref().unwrap();
                    let answer = get(&mut site, &path, &[&plain[..], &[&format!("If-None-Match: {tag}")]].concat());
                    assert_eq!(answer.status, 304, "{context}");
                    let range = ["Range: bytes=1-2", &format!("If-Range: {tag}")];
                    let answer = get(&mut site, &path, &[&plain[..], &range].concat());
                    assert_eq!((answer.status, &answer.body[..]), (206, &bytes(size(name), seed)[1..3]), "{context}");
                    *known = now;
                }
            }
        }
    }
}

/// Large files are sent from descriptors. A cached tag must not be sent with bytes that were written later.
#[test]
fn rewritten_open_file_is_not_sent_under_its_old_tag() {
    let tree = Tree::new();
    let file = tree.path().join("large");
    fs::write(&file, bytes(300_000, 0)).unwrap();
    pin(&file);
    let mut site = serve(&tree, FOR_GOOD, Duration::ZERO);
    for seed in 1..4 {
        let known = get(&mut site, "/large", &[]);
        let tag = known.tag.as_deref().unwrap();
        assert_eq!(get(&mut site, "/large", &["Range: bytes=5-9", &format!("If-Range: {tag}")]).status, 206);
        let before = fs::metadata(&file).unwrap();
        let changed = |metadata: &fs::Metadata| (metadata.ctime(), metadata.ctime_nsec());
        while changed(&fs::metadata(&file).unwrap()) == changed(&before) {
            rewrite(&file, &bytes(300_000, seed));
        }
        let answer = get(&mut site, "/large", &["Range: bytes=5-9", &format!("If-Range: {tag}")]);
        assert!(answer.status == 200 && answer.body == bytes(300_000, seed), "{}", answer.status);
        assert_ne!(answer.tag, known.tag);
        rewrite(&file, &bytes(300_000, seed + 100));
        let answer = get(&mut site, "/large", &["Range: bytes=5-9"]);
        assert_eq!((answer.status, &answer.body[..]), (206, &bytes(300_000, seed + 100)[5..10]));
        assert_ne!(answer.tag, known.tag);
        let answer = get(&mut site, "/large", &["Range: bytes=5-9,20-29"]);
        assert_eq!(answer.status, 206);
        assert_ne!(answer.tag, known.tag);
    }
}

#[test]
fn young_files_have_no_validators() {
    let tree = Tree::new();
    tree.write("small", noise(1000));
    tree.write("large", noise(100_000));
    for valid in [Duration::ZERO, FOR_GOOD] {
        let mut site = serve(&tree, valid, FOR_GOOD);
        for (path, size) in [("/small", 1000), ("/large", 100_000)] {
            for (field, status) in [
                ("X: y", 200),
                ("If-None-Match: \"\"", 200),
                ("If-None-Match: *", 304),
                ("If-Match: \"x\"", 412),
                ("If-Match: *", 200),
                ("If-Modified-Since: Sun, 06 Nov 2094 08:49:37 GMT", 200),
                ("If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 GMT", 200),
            ] {
                let answer = get(&mut site, path, &[field]);
                assert_eq!((answer.status, &answer.tag, &answer.date), (status, &None, &None), "{path} {field}");
                assert!(status != 200 || answer.body == noise(size), "{path} {field}");
            }
            let answer = get(&mut site, path, &["Range: bytes=1-2"]);
            assert_eq!((answer.status, answer.tag, &answer.body[..]), (206, None, &noise(size)[1..3]));
        }
        // The current content is sent, even if the stamp looks unchanged.
        tree.write("changing", "one");
        assert_eq!(get(&mut site, "/changing", &[]).body, b"one");
        if valid.is_zero() {
            tree.write("changing", "two");
            assert_eq!(get(&mut site, "/changing", &[]).body, b"two");
        }
    }
}
