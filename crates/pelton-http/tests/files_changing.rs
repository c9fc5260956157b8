//! Changing files, slow disks and overload.

mod common;

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use common::tree::{Tree, noise};
use common::{Client, DEADLINE, On, Serve, Site, on_every_engine, statuses};
use pelton::{EngineKind, Lane, LaneSettings, Reactor};
use pelton_http::{FileSettings, Files, Handler, Request, Responder, Server};

on_every_engine![
    file_replaced_during_sending_is_sent_unchanged,
    file_truncated_during_sending_closes_the_connection,
    file_that_grows_during_sending_is_sent_with_its_old_length,
    clients_that_do_not_read_delay_no_others,
];

/// Larger than the socket buffers.
const LARGE: usize = 20_000_000;

const FOR_GOOD: Duration = Duration::from_secs(3600);

fn lasting(valid: Duration) -> FileSettings {
    FileSettings { valid, valid_missing: valid, ..FileSettings::default() }
}

fn serve(on: On, tree: &Tree, settings: FileSettings) -> Site {
    on.serve(Files::with_settings(tree.path(), settings).unwrap())
}

/// A reactor on the default engine whose file lane has one thread and a queue of this length.
fn serve_on_lane(handler: impl Handler, waiting: usize) -> Site {
    let lane = LaneSettings { threads: 1, waiting, linger: DEADLINE };
    let mut reactor = best().builder().lane(Lane::Files, lane).build().unwrap();
    let server = Server::new(handler);
    let listener = server.listen(&mut reactor, "127.0.0.1:0").unwrap();
    let address = reactor.listening_on(listener).unwrap().to_string();
    Site { reactor, server, address }
}

fn best() -> On {
    On(EngineKind::Epoll)
}

const REQUEST: &str = "HTTP/1.1\r\nHost: a\r\n\r\n";

/// Requests a path over a new connection and returns the body of the answer.
fn body(site: &mut Site, path: &str) -> String {
    let request = format!("GET {path} {REQUEST}");
    site.with_client(move |mut client| {
        client.send(request);
        client.response().1
    })
}

/// Requests a large file and reads the beginning of its body, calls `act`, then reads the rest.
fn sent_meanwhile(site: &mut Site, act: impl FnOnce() + Send + 'static) -> Vec<u8> {
    site.with_client(move |mut client| {
        client.send(format!("GET /large {REQUEST}"));
        let head = client.read_until("\r\n\r\n");
        assert!(head.contains(&format!("Content-Length: {LARGE}\r\n")), "{head}");
        let mut body = client.read_exactly(100_000);
        act();
        client.send(format!("GET /small {REQUEST}"));
        body.extend(client.read_while_open());
        body
    })
}

trait ReadWhileOpen {
    fn read_while_open(&mut self) -> Vec<u8>;
}

impl ReadWhileOpen for Client {
    /// Reads up to the end of the connection or of the small file.
    fn read_while_open(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        while !all.ends_with(b"the small file") {
            match self.0.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => all.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}, after {} bytes", all.len()),
            }
        }
        all
    }
}

fn large_and_small() -> Tree {
    let tree = Tree::new();
    tree.write("large", noise(LARGE));
    tree.write("small", "the small file");
    tree
}

fn file_replaced_during_sending_is_sent_unchanged(on: On) {
    let tree = large_and_small();
    tree.write("new", "new");
    let mut site = serve(on, &tree, FileSettings::default());
    let (from, to) = (tree.path().join("new"), tree.path().join("large"));
    let sent = sent_meanwhile(&mut site, move || fs::rename(from, to).unwrap());
    assert!(sent[..LARGE] == noise(LARGE));
    assert!(sent[LARGE..].starts_with(b"HTTP/1.1 200 OK\r\n") && sent.ends_with(b"the small file"));
}

fn file_truncated_during_sending_closes_the_connection(on: On) {
    let tree = large_and_small();
    let mut site = serve(on, &tree, FileSettings::default());
    let path = tree.path().join("large");
    let sent = sent_meanwhile(&mut site, move || {
        OpenOptions::new().write(true).open(path).unwrap().set_len(150_000).unwrap();
    });
    assert!(sent.len() < LARGE, "{} bytes", sent.len());
    // Queued output shares its pages with the file, and the kernel zeroes truncated pages. So there may be zeros, but no other
    // bytes.
    let all = noise(LARGE);
    let changed = (0..sent.len()).find(|at| sent[*at] != all[*at]).unwrap_or(sent.len());
    assert!(changed >= 150_000, "the bytes differ from {changed} on, before the end of the file");
    assert!((changed..sent.len()).all(|at| sent[at] == all[at] || sent[at] == 0), "unexpected bytes");
}

fn file_that_grows_during_sending_is_sent_with_its_old_length(on: On) {
    let tree = large_and_small();
    let mut site = serve(on, &tree, FileSettings::default());
    let path = tree.path().join("large");
    let sent = sent_meanwhile(&mut site, move || {
        OpenOptions::new().append(true).open(path).unwrap().write_all(&[b'x'; 100_000]).unwrap();
    });
    assert!(sent[..LARGE] == noise(LARGE));
    assert!(sent[LARGE..].starts_with(b"HTTP/1.1 200 OK\r\n") && sent.ends_with(b"the small file"));
}

fn clients_that_do_not_read_delay_no_others(on: On) {
    let tree = large_and_small();
    let mut site = serve(on, &tree, FileSettings::default());
    let said = site.run(|address| {
        let mut stuck: Vec<Client> = (0..5).map(|_| Client::connect(&address)).collect();
        for client in &mut stuck {
            client.send(format!("GET /large {REQUEST}"));
            client.read_exactly(1000);
        }
        let mut client = Client::connect(&address);
        client.send(format!("GET /small {REQUEST}"));
        client.response().1
    });
    assert_eq!(said, "the small file");
}

#[test]
fn cached_files_are_served_until_they_expire() {
    let tree = Tree::new();
    tree.write("a", "old");
    let replace = |text: &str| {
        tree.write("new", text);
        fs::rename(tree.path().join("new"), tree.path().join("a")).unwrap();
    };
    let mut keeping = serve(best(), &tree, lasting(FOR_GOOD));
    let mut looking = serve(best(), &tree, lasting(Duration::ZERO));
    let mut between = serve(best(), &tree, lasting(Duration::from_millis(30)));
    for site in [&mut keeping, &mut looking, &mut between] {
        assert_eq!(body(site, "/a"), "old");
        assert_eq!(body(site, "/later"), "404 Not Found\n");
    }
    replace("new");
    tree.write("later", "here now");
    assert_eq!((body(&mut keeping, "/a"), body(&mut keeping, "/later")), ("old".into(), "404 Not Found\n".into()));
    assert_eq!((body(&mut looking, "/a"), body(&mut looking, "/later")), ("new".into(), "here now".into()));
    let start = Instant::now();
    while (body(&mut between, "/a"), body(&mut between, "/later")) != ("new".into(), "here now".into()) {
        assert!(start.elapsed() < DEADLINE, "the change is not noticed");
    }
    fs::remove_file(tree.path().join("a")).unwrap();
    assert_eq!((body(&mut keeping, "/a"), body(&mut looking, "/a")), ("old".into(), "404 Not Found\n".into()));
    // A new sibling is noticed, too.
    tree.write("later.gz", "compressed");
    let sent = looking.ask("GET /later HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    assert!(sent.ends_with("compressed"), "{sent}");
}

/// A large file is sent from its descriptor, so the cached state is valid only if the descriptor's file is unchanged.
#[test]
fn changed_large_file_is_looked_up_again() {
    let tree = Tree::new();
    tree.write("one-piece", noise(100_000));
    tree.write("pieces", noise(1_000_000));
    let settings = FileSettings { settled_after: Duration::ZERO, ..lasting(FOR_GOOD) };
    let mut site = serve(best(), &tree, settings);
    for (name, size) in [("one-piece", 100_000), ("pieces", 1_000_000)] {
        let all = |length: u64| noise(size)[..length as usize].to_vec();
        let get = move |mut client: Client, length: u64| {
            client.send(format!("GET /{name} {REQUEST}"));
            let head = client.read_until("\r\n\r\n");
            assert!(head.contains(&format!("Content-Length: {length}\r\n")), "{head}");
            client.read_exactly(length as usize)
        };
        let looked_up = site.reactor.stats().lane(Lane::Files).done;
        for _ in 0..3 {
            assert!(site.with_client(move |client| get(client, size as u64)) == all(size as u64));
        }
        assert_eq!(
            site.reactor.stats().lane(Lane::Files).done,
            looked_up + 1,
            "an unchanged file is not looked up again"
        );
        // The last of them are small and cached in memory.
        for length in [90_000, 5000, 5000, 0] {
            let path = tree.path().join(name);
            OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
            let expected = if length < 5000 { 5000 } else { length };
            assert!(site.with_client(move |client| get(client, expected)) == all(expected), "{length} of {name}");
        }
    }
}

#[test]
fn link_to_the_root_can_be_switched() {
    let tree = Tree::new();
    tree.write("one/a", "one");
    tree.write("two/a", "two");
    let (link, other) = (tree.path().join("latest"), tree.path().join("other"));
    symlink("one", &link).unwrap();
    let serve = |pinned| {
        let settings = FileSettings { pinned, ..lasting(Duration::ZERO) };
        best().serve(Files::with_settings(&link, settings).unwrap())
    };
    let (mut following, mut pinned) = (serve(false), serve(true));
    assert_eq!((body(&mut following, "/a"), body(&mut pinned, "/a")), ("one".into(), "one".into()));
    symlink("two", &other).unwrap();
    fs::rename(&other, &link).unwrap();
    assert_eq!((body(&mut following, "/a"), body(&mut pinned, "/a")), ("two".into(), "one".into()));
    fs::remove_file(&link).unwrap();
    assert_eq!((body(&mut following, "/a"), body(&mut pinned, "/a")), ("404 Not Found\n".into(), "one".into()));
}

/// Keeps the lane's thread busy until the sender is dropped.
fn block_lane(site: &mut Site) -> Sender<()> {
    let (release, released) = channel::<()>();
    let (begun, beginning): (Sender<()>, Receiver<()>) = channel();
    let wait = move || {
        begun.send(()).unwrap();
        let _ = released.recv();
    };
    site.reactor.defer(Lane::Files, wait, |_, _| {}).unwrap();
    beginning.recv_timeout(DEADLINE).unwrap();
    release
}

/// Counts the requests before they are handled.
fn counted(files: Files) -> (Rc<Cell<usize>>, impl Handler) {
    let count = Rc::new(Cell::new(0));
    let counter = count.clone();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        files.handle(reactor, request, responder);
        counter.set(counter.get() + 1);
    };
    (count, handler)
}

#[test]
fn concurrent_requests_share_one_look_up() {
    const CLIENTS: usize = 50;
    let tree = Tree::new();
    tree.write("a", "found");
    let (count, handler) = counted(Files::open(tree.path()).unwrap());
    let mut site = serve_on_lane(handler, 1000);
    let release = block_lane(&mut site);
    let address = site.address.clone();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::connect(&address)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let method = if number % 2 == 0 { "GET" } else { "HEAD" };
        client.send(format!("{method} /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
    }
    // A client that disconnects meanwhile does no harm.
    drop(clients.pop());
    site.run_until(|_| count.get() == CLIENTS);
    assert_eq!(site.reactor.stats().lane(Lane::Files).waiting, 1);
    drop(release);
    let answers = site.run(move |_| clients.into_iter().map(|mut client| client.read_to_end()).collect::<Vec<_>>());
    assert_eq!(answers.len(), CLIENTS - 1);
    for (number, answer) in answers.iter().enumerate() {
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert_eq!(answer.ends_with("\r\n\r\nfound"), number % 2 == 0, "{answer}");
    }
    assert_eq!(site.reactor.stats().lane(Lane::Files).done, 2);
}

#[test]
fn full_lane_answers_503_with_retry_after() {
    let tree = Tree::new();
    tree.write("a", "a");
    tree.write("b", "b");
    tree.write("c", "c");
    let settings = lasting(FOR_GOOD);
    let mut site = serve_on_lane(Files::with_settings(tree.path(), settings).unwrap(), 1);
    assert_eq!(body(&mut site, "/a"), "a");
    let release = block_lane(&mut site);
    site.reactor.defer(Lane::Files, || {}, |_, _| {}).unwrap();
    let refused = site.ask(format!("GET /b {REQUEST}"));
    assert_eq!(statuses(&refused), [503]);
    assert!(refused.contains("\r\nRetry-After: 1\r\n"), "{refused}");
    assert_eq!(body(&mut site, "/a"), "a", "cached files are served");
    drop(release);
    site.run_until(|reactor| reactor.stats().lane(Lane::Files).waiting == 0);
    assert_eq!((body(&mut site, "/b"), body(&mut site, "/c")), ("b".into(), "c".into()));
}

/// A large and a small file, on a disk.
#[cfg(target_os = "linux")]
fn large_and_small_on_disk() -> Tree {
    let tree = Tree::on_disk();
    tree.write("large", noise(LARGE));
    tree.write("small", "the small file");
    tree
}

#[cfg(target_os = "linux")]
#[test]
fn uncached_file_is_read_on_the_lane() {
    let tree = large_and_small_on_disk();
    let mut site = serve_on_lane(Files::with_settings(tree.path(), lasting(FOR_GOOD)).unwrap(), 1000);
    let get = |site: &mut Site| {
        let before = site.reactor.stats().lane(Lane::Files).done;
        let sent = site.with_client(|mut client| {
            client.send(format!("GET /large {REQUEST}"));
            client.read_until("\r\n\r\n");
            client.read_exactly(LARGE)
        });
        assert!(sent == noise(LARGE));
        site.reactor.stats().lane(Lane::Files).done - before
    };
    get(&mut site);
    assert_eq!(get(&mut site), 0, "the file is cached and in memory");
    assert!(tree.forget("large"));
    let read = get(&mut site);
    println!("{read} pieces of {} were read on the lane", LARGE.div_ceil(256 << 10));
    assert!(read > 0);
    assert_eq!(get(&mut site), 0, "the file is in memory again");
}

#[cfg(target_os = "linux")]
#[test]
fn loop_keeps_running_while_a_file_is_read() {
    let tree = large_and_small_on_disk();
    let (count, handler) = counted(Files::with_settings(tree.path(), lasting(FOR_GOOD)).unwrap());
    let mut site = serve_on_lane(handler, 1);
    assert_eq!(body(&mut site, "/small"), "the small file");
    assert_eq!(statuses(&site.ask(format!("HEAD /large {REQUEST}"))), [200]);
    assert!(tree.forget("large"));
    let release = block_lane(&mut site);
    let mut client = Client::connect(&site.address);
    let before = count.get();
    client.send(format!("GET /large {REQUEST}"));
    site.run_until(|_| count.get() > before);
    assert_eq!(site.reactor.stats().lane(Lane::Files).waiting, 1);
    assert_eq!(body(&mut site, "/small"), "the small file");
    // The lane is full, so the next request is refused.
    let refused = site.ask(format!("GET /large {REQUEST}"));
    assert_eq!(statuses(&refused), [503], "{refused}");
    drop(release);
    let sent = site.run(move |_| {
        client.read_until("\r\n\r\n");
        client.read_exactly(LARGE)
    });
    assert!(sent == noise(LARGE));
}

#[cfg(target_os = "linux")]
#[test]
fn started_body_waits_for_a_full_lane() {
    use std::os::unix::fs::FileExt;
    let tree = Rc::new(large_and_small_on_disk());
    let mut site = serve_on_lane(Files::with_settings(tree.path(), lasting(FOR_GOOD)).unwrap(), 1);
    assert_eq!(statuses(&site.ask(format!("HEAD /large {REQUEST}"))), [200]);
    // The first piece is in memory, so the body can begin.
    assert!(tree.forget("large"));
    File::open(tree.path().join("large")).unwrap().read_exact_at(&mut vec![0; 256 << 10], 0).unwrap();
    let release = block_lane(&mut site);
    site.reactor.defer(Lane::Files, || {}, |_, _| {}).unwrap();
    let refused = |reactor: &mut Reactor| reactor.stats().lane(Lane::Files).refused;
    let before = refused(&mut site.reactor);
    let tried = Rc::new(Cell::new(false));
    let (file, found) = (tree.clone(), tried.clone());
    let mut release = Some(release);
    let mut client = Client::connect(&site.address);
    client.send(format!("GET /large {REQUEST}"));
    let (mut client, begun) = site.run(move |_| {
        client.read_until("\r\n\r\n");
        let begun = client.read_exactly(100_000);
        (client, begun)
    });
    // Evict the pages that the kernel reads ahead until a piece has to be retried. Then let the lane continue.
    site.reactor.every(Duration::from_millis(1), move |reactor, _| {
        if refused(reactor) > before {
            found.set(true);
            drop(release.take());
        } else {
            file.forget("large");
        }
    });
    // The file does not fit into the socket buffers, so later pieces are checked when there is room.
    let rest = site.run(move |_| client.read_exactly(LARGE - 100_000));
    assert!(tried.get(), "no piece had to wait");
    assert!([begun, rest].concat() == noise(LARGE));
}

/// The number of this tree's files that the process has open.
#[cfg(target_os = "linux")]
fn open_files(tree: &Tree) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    links.filter(|link| link.starts_with(tree.path()) && !link.ends_with(tree.path())).count()
}

#[cfg(target_os = "linux")]
#[test]
fn open_files_are_bounded_and_unused_ones_are_closed() {
    let tree = Tree::new();
    for number in 0..10 {
        tree.write(&number.to_string(), noise(70_000));
    }
    let idle = Duration::from_millis(300);
    let settings = FileSettings { open: 4, idle, ..lasting(FOR_GOOD) };
    let mut site = serve(best(), &tree, settings);
    for number in 0..10 {
        let head = site.ask(format!("HEAD /{number} {REQUEST}"));
        assert_eq!(statuses(&head), [200]);
        assert!(open_files(&tree) <= 4, "{} are open", open_files(&tree));
    }
    assert!(open_files(&tree) > 0);
    site.run_until(|_| open_files(&tree) == 0);
}
