//! Protocols on connections, on every engine, with blocking peers in other threads.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

use pelton::codec::{Lines, Netstring};
use pelton::{
    Address, Bytes, CallbackKind, Chunk, Codec, Connection, EventLoop, FrameError, Framed, Peer, Protocol, PushError,
    Reactor, Reason, Replies, serve,
};
use pelton_testing::{Log, On, on_every_engine, run_until, run_with};

on_every_engine![
    requests_are_answered_in_order,
    pipelined_requests_are_answered_together,
    requests_may_come_byte_by_byte,
    another_thread_pushes_in_order,
    a_burst_of_pushes_takes_one_post_and_one_write,
    connections_of_one_loop_push_to_each_other,
    push_to_an_ended_connection_is_returned,
    peers_name_connections_and_close_them,
    after_should_close_nothing_is_processed_and_everything_is_sent,
    input_during_the_last_replies_is_ignored,
    frame_error_closes_after_the_replies_to_valid_frames,
    reply_refused_by_the_codec_closes_the_connection,
    an_unfinished_frame_at_the_end_is_an_error,
    an_unfinished_frame_is_an_error_also_after_this_side_has_finished,
    endless_line_stays_within_its_memory_limit,
    unfinished_line_takes_its_length_and_an_idle_connection_nothing,
    peer_that_reads_no_replies_is_closed_at_the_queue_limit,
    client_sends_first_and_gets_the_answers,
    refused_client_is_closed_with_the_reason,
];

/// `set KEY VALUE`, `get KEY`, `quit`; `shout KEY` answers with an embedded line break.
#[derive(Default)]
struct Store {
    values: Rc<RefCell<BTreeMap<String, String>>>,
    quit: bool,
    log: Log,
}

impl Protocol for Store {
    type Message = String;

    fn process(&mut self, line: String, replies: &mut Replies<String>) {
        self.log.add(&line);
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        let reply = match words[..] {
            ["set", key, value] => {
                self.values.borrow_mut().insert(key.to_owned(), value.to_owned());
                "ok".to_owned()
            }
            ["get", key] => self.values.borrow().get(key).map_or("none".to_owned(), |value| format!("is {value}")),
            ["shout", key] => format!("{key}\n"),
            ["quit"] => {
                self.quit = true;
                "bye".to_owned()
            }
            _ => "what?".to_owned(),
        };
        replies.send(reply);
    }

    fn should_close(&self) -> bool {
        self.quit
    }

    fn closed(&mut self, reason: &Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

/// Greets, publishes its peer handle, and answers nothing.
struct Greeter {
    peers: mpsc::Sender<Peer<String>>,
    log: Log,
}

impl Protocol for Greeter {
    type Message = String;

    fn opened(&mut self, peer: &Peer<String>, replies: &mut Replies<String>) {
        replies.send("welcome".to_owned());
        self.peers.send(peer.clone()).unwrap();
    }

    fn process(&mut self, line: String, _: &mut Replies<String>) {
        self.log.add(line);
    }

    fn closed(&mut self, reason: &Reason) {
        self.log.add(format!("closed: {reason}"));
    }
}

fn listen<C, P>(
    reactor: &mut EventLoop,
    codec: impl FnMut() -> C + 'static,
    protocol: impl FnMut() -> P + 'static,
) -> SocketAddr
where
    C: Codec,
    P: Protocol<Message = C::Message>,
{
    let listener = reactor.listen("127.0.0.1:0", serve(codec, protocol)).unwrap();
    match reactor.listening_on(listener) {
        Some(Address::Tcp(address)) => *address,
        other => panic!("{other:?}"),
    }
}

/// A store and its log.
fn listen_store(reactor: &mut EventLoop, codec: impl FnMut() -> Lines + 'static) -> (SocketAddr, Log) {
    let (values, log) = (Rc::default(), Log::default());
    let entries = log.clone();
    let store = move || Store { values: Rc::clone(&values), quit: false, log: entries.clone() };
    (listen(reactor, codec, store), log)
}

fn listen_greeter(reactor: &mut EventLoop) -> (SocketAddr, mpsc::Receiver<Peer<String>>, Log) {
    let (peers, opened) = mpsc::channel();
    let log = Log::default();
    let entries = log.clone();
    let greeter = move || Greeter { peers: peers.clone(), log: entries.clone() };
    (listen(reactor, Lines::new, greeter), opened, log)
}

/// Sends `text`, finishes, and returns everything received.
fn conversation(address: SocketAddr, text: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    answers
}

fn requests_are_answered_in_order(on: On) {
    let mut reactor = on.reactor();
    let (address, log) = listen_store(&mut reactor, || Lines::new().crlf());
    let answers = run_with(&mut reactor, move || {
        let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
        let mut answers = Vec::new();
        for request in ["get a\n", "set a 1 2\r\n", "get a\r\n", "\n"] {
            stream.get_mut().write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_line(&mut answer).unwrap();
            answers.push(answer);
        }
        answers
    });
    assert_eq!(answers, ["none\r\n", "ok\r\n", "is 1 2\r\n", "what?\r\n"]);
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take().last().unwrap(), "closed: finished by the other side");
}

fn pipelined_requests_are_answered_together(on: On) {
    const COUNT: usize = 1_000;
    let mut reactor = on.reactor();
    let (address, log) = listen_store(&mut reactor, Lines::new);
    let mut stream = TcpStream::connect(address).unwrap();
    let requests: String = (0..COUNT).map(|number| format!("set {number} x\n")).collect();
    stream.write_all(requests.as_bytes()).unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    // One read received them all, so the answers were sent with one write and have arrived.
    assert_eq!(log.take().len(), COUNT);
    stream.set_nonblocking(true).unwrap();
    let mut answers = vec![0; 3 * COUNT + 1];
    assert_eq!(stream.read(&mut answers).unwrap(), 3 * COUNT);
    assert!(answers.starts_with(&b"ok\n".repeat(COUNT)));
}

fn requests_may_come_byte_by_byte(on: On) {
    let mut reactor = on.reactor();
    let (address, log) = listen_store(&mut reactor, Lines::new);
    let mut stream = TcpStream::connect(address).unwrap();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 1);
    for byte in b"set a 1\nget a\n" {
        stream.write_all(&[*byte]).unwrap();
        // Each is read before the next one is sent.
        let calls = reactor.stats().calls(CallbackKind::Connection);
        run_until(&mut reactor, |reactor| reactor.stats().calls(CallbackKind::Connection) > calls);
    }
    assert_eq!(log.take(), ["set a 1", "get a"]);
}

fn another_thread_pushes_in_order(on: On) {
    const COUNT: usize = 10_000;
    let mut reactor = on.reactor();
    let (address, opened, _) = listen_greeter(&mut reactor);
    let (heard, pushed) = run_with(&mut reactor, move || {
        let stream = TcpStream::connect(address).unwrap();
        let peer = opened.recv().unwrap();
        let pushing = thread::spawn(move || {
            let pushed: Vec<_> = (0..COUNT).map(|number| peer.push(number.to_string())).collect();
            peer.close_after_writing();
            pushed.into_iter().filter(Result::is_ok).count()
        });
        let heard: Vec<String> = BufReader::new(stream).lines().map(Result::unwrap).collect();
        (heard, pushing.join().unwrap())
    });
    assert_eq!(pushed, COUNT);
    assert_eq!(heard[0], "welcome");
    assert!(heard[1..].iter().map(|line| line.parse::<usize>().unwrap()).eq(0..COUNT));
}

fn a_burst_of_pushes_takes_one_post_and_one_write(on: On) {
    const COUNT: usize = 1_000;
    let mut reactor = on.reactor();
    let (address, opened, _) = listen_greeter(&mut reactor);
    let mut stream = TcpStream::connect(address).unwrap();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 1);
    stream.read_exact(&mut [0; 8]).unwrap();
    let peer = opened.recv().unwrap();
    for _ in 0..COUNT {
        peer.push("news".to_owned()).unwrap();
    }
    assert_eq!(reactor.handle().pending_posts(), 1);
    run_until(&mut reactor, |reactor| reactor.handle().pending_posts() == 0);
    let mut heard = vec![0; 5 * COUNT + 1];
    assert_eq!(stream.read(&mut heard).unwrap(), 5 * COUNT);
}

fn connections_of_one_loop_push_to_each_other(on: On) {
    #[derive(Clone)]
    struct Chat(Rc<RefCell<Vec<Peer<String>>>>);
    impl Protocol for Chat {
        type Message = String;
        fn opened(&mut self, peer: &Peer<String>, _: &mut Replies<String>) {
            self.0.borrow_mut().push(peer.clone());
        }
        // To all connections, including the sender.
        fn process(&mut self, line: String, replies: &mut Replies<String>) {
            for peer in &*self.0.borrow() {
                peer.push(format!("heard {line}")).unwrap();
            }
            replies.send(format!("said {line}"));
        }
    }
    let mut reactor = on.reactor();
    let room: Rc<RefCell<Vec<Peer<String>>>> = Rc::default();
    let members = Chat(room.clone());
    let address = listen(&mut reactor, Lines::new, move || members.clone());
    let streams = [(); 3].map(|()| TcpStream::connect(address).unwrap());
    run_until(&mut reactor, |_| room.borrow().len() == 3);
    let heard = run_with(&mut reactor, move || {
        (&streams[1]).write_all(b"a\nb\n").unwrap();
        let expected = ["heard a\nheard b\n", "said a\nsaid b\nheard a\nheard b\n", "heard a\nheard b\n"];
        streams.iter().zip(expected).all(|(mut stream, expected)| {
            let mut heard = vec![0; expected.len()];
            stream.read_exact(&mut heard).unwrap();
            heard == expected.as_bytes()
        })
    });
    assert!(heard);
}

fn push_to_an_ended_connection_is_returned(on: On) {
    let mut reactor = on.reactor();
    let (address, opened, _) = listen_greeter(&mut reactor);
    run_with(&mut reactor, move || conversation(address, "hello\n"));
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    let peer = opened.recv().unwrap();
    assert_eq!(peer.push("late".to_owned()), Err(PushError("late".to_owned())));
    assert_eq!(PushError("late").to_string(), "push a message: the connection has ended");

    // The same if the loop is gone, whatever state it left the connection in.
    let _stream = TcpStream::connect(address).unwrap();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 1);
    let peer = opened.recv().unwrap();
    peer.push("in time".to_owned()).unwrap();
    drop(reactor);
    assert_eq!(peer.push("late".to_owned()), Err(PushError("late".to_owned())));
}

fn peers_name_connections_and_close_them(on: On) {
    fn shareable<T: Clone + Send + Sync>() {}
    shareable::<Peer<String>>();
    let mut reactor = on.reactor();
    let (address, opened, log) = listen_greeter(&mut reactor);
    let mut streams = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    run_until(&mut reactor, |reactor| reactor.connection_count() == 2);
    let (one, two) = (opened.recv().unwrap(), opened.recv().unwrap());
    assert!(one == one.clone() && one != two && one.id() != two.id());
    assert_eq!(HashSet::from([one.clone(), two.clone(), one.clone()]).len(), 2);
    one.push("and bye".to_owned()).unwrap();
    one.close_after_writing();
    two.close();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["closed: closed by this side"; 2]);
    let mut heard = streams.each_mut().map(|stream| {
        let mut heard = String::new();
        stream.read_to_string(&mut heard).unwrap();
        heard
    });
    heard.sort();
    assert_eq!(heard, ["welcome\n", "welcome\nand bye\n"]);
}

fn after_should_close_nothing_is_processed_and_everything_is_sent(on: On) {
    let mut reactor = on.reactor();
    let (address, log) = listen_store(&mut reactor, Lines::new);
    let answers = run_with(&mut reactor, move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"set a 1\nget a\nquit\nset a 2\n").unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        answers
    });
    assert_eq!(answers, "ok\nis 1\nbye\n");
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["set a 1", "get a", "quit", "closed: closed by this side"]);
}

fn input_during_the_last_replies_is_ignored(on: On) {
    let mut reactor = on.reactor();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let log = Log::default();
    let store = Framed::new(Lines::new(), Store { log: log.clone(), ..Store::default() });
    // Not established yet, so nothing can be sent.
    let id = reactor.connect(&address.into(), store).unwrap();
    for line in ["quit\n", "get a\n"] {
        reactor.visit(id, |store: &mut Framed<Lines, Store>, io| {
            store.received(io, Chunk::from(line.as_bytes().to_vec()))
        });
    }
    assert_eq!(log.take(), ["quit"]);
}

fn frame_error_closes_after_the_replies_to_valid_frames(on: On) {
    struct Watched(Rc<RefCell<Vec<Reason>>>, Log);
    impl Protocol for Watched {
        type Message = Bytes;
        fn process(&mut self, message: Bytes, replies: &mut Replies<Bytes>) {
            self.1.add(String::from_utf8_lossy(&message));
            replies.send(message);
        }
        fn closed(&mut self, reason: &Reason) {
            if let Reason::Frame(error) = reason {
                self.0.borrow_mut().push(Reason::Frame(*error));
            }
        }
    }
    let mut reactor = on.reactor();
    let (reasons, log) = (Rc::new(RefCell::new(Vec::new())), Log::default());
    let (known, entries) = (reasons.clone(), log.clone());
    let address = listen(&mut reactor, || Netstring::new().limit(10), move || Watched(known.clone(), entries.clone()));
    let malformed = run_with(&mut reactor, move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"2:ok,3:bad;2:no,").unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        answers
    });
    assert_eq!(malformed, "2:ok,");
    run_with(&mut reactor, move || conversation(address, "11:"));
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["ok"], "nothing follows");
    assert!(matches!(
        reasons.borrow()[..],
        [Reason::Frame(FrameError::Malformed { .. }), Reason::Frame(FrameError::TooLong { limit: 10, .. })]
    ));
    assert_eq!(reasons.borrow()[1].to_string(), "a netstring of more than 10 bytes");
}

fn reply_refused_by_the_codec_closes_the_connection(on: On) {
    let mut reactor = on.reactor();
    let (address, log) = listen_store(&mut reactor, Lines::new);
    let answers = run_with(&mut reactor, move || conversation(address, "get a\nshout b\nget c\n"));
    assert_eq!(answers, "none\n");
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["get a", "shout b", "closed: a line with a line break inside"]);
}

fn an_unfinished_frame_at_the_end_is_an_error(on: On) {
    let mut reactor = on.reactor();
    let (address, log) = listen_store(&mut reactor, Lines::new);
    assert_eq!(run_with(&mut reactor, move || conversation(address, "get a\nget")), "none\n");
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["get a", "closed: the input ended 3 bytes into a frame"]);
}

fn an_unfinished_frame_is_an_error_also_after_this_side_has_finished(on: On) {
    let mut reactor = on.reactor();
    for (answer, told) in [
        ("get a\nget", &["get a", "closed: the input ended 3 bytes into a frame"][..]),
        ("", &["closed: finished by the other side"]),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Log::default();
        let client = Framed::new(Lines::new(), Quiet(log.clone()));
        let id = reactor.connect(&address.into(), client).unwrap();
        reactor.connection(id).unwrap().finish();
        run_with(&mut reactor, move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
        assert_eq!(log.take(), told);
    }
}

/// Logs without replying.
struct Quiet(Log);

impl Protocol for Quiet {
    type Message = String;

    fn process(&mut self, line: String, _: &mut Replies<String>) {
        self.0.add(line);
    }

    fn closed(&mut self, reason: &Reason) {
        self.0.add(format!("closed: {reason}"));
    }
}

fn endless_line_stays_within_its_memory_limit(on: On) {
    const LIMIT: usize = 1_000_000;
    let mut reactor = on.reactor();
    let (address, log) = listen_store(&mut reactor, || Lines::new().limit(LIMIT));
    let peer = thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut sent = 0;
        while sent < 100 * LIMIT && stream.write_all(&[b'x'; 10_000]).is_ok() {
            sent += 10_000;
        }
        sent
    });
    // Only allocations of this thread count.
    let memory = allocation_counter::measure(|| run_until(&mut reactor, |_| !log.is_empty())).bytes_max;
    assert_eq!(log.take(), ["closed: a line of more than 1000000 bytes"]);
    // The old buffer and the new one while one is copied to the other, and the last read.
    assert!(memory < 2 * LIMIT as u64 + 200_000, "{memory} bytes");
    // Up to twice the limit is in flight in the kernel.
    assert!(peer.join().unwrap() < 100 * LIMIT);
}

fn unfinished_line_takes_its_length_and_an_idle_connection_nothing(on: On) {
    const COUNT: usize = 20;
    let mut reactor = on.reactor();
    let (address, log) = listen_store(&mut reactor, Lines::new);
    let mut streams = [(); COUNT].map(|()| TcpStream::connect(address).unwrap());
    let mut say = |words: &str| streams.iter_mut().for_each(|stream| stream.write_all(words.as_bytes()).unwrap());
    // The second round comes within one turn, because by then all connections are accepted: the reactor's own lists grow here.
    for _ in 0..2 {
        say("get a\n");
        run_until(&mut reactor, |_| log.len() == COUNT);
        log.take();
    }
    say("get");
    let calls = |reactor: &Reactor| reactor.stats().calls(CallbackKind::Connection);
    let until = calls(&reactor) + COUNT as u64;
    // Only allocations of this thread count.
    let unfinished = allocation_counter::measure(|| run_until(&mut reactor, |reactor| calls(reactor) == until));
    assert!((60..2_000).contains(&unfinished.bytes_current), "{unfinished:?}");
    say(" a\n");
    let finished = allocation_counter::measure(|| {
        run_until(&mut reactor, |_| log.len() == COUNT);
        log.take();
    });
    assert_eq!(unfinished.bytes_current, -finished.bytes_current, "{unfinished:?}, then {finished:?}");
}

fn peer_that_reads_no_replies_is_closed_at_the_queue_limit(on: On) {
    struct Generous(Log);
    impl Protocol for Generous {
        type Message = String;
        fn process(&mut self, _: String, replies: &mut Replies<String>) {
            replies.send("x".repeat(60_000));
        }
        fn closed(&mut self, reason: &Reason) {
            self.0.add(format!("closed: {reason}"));
        }
    }
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, Lines::new, move || Generous(entries.clone()));
    let mut stream = TcpStream::connect(address).unwrap();
    // One read, answered with two billion bytes.
    stream.write_all(&[b'\n'; 40_000]).unwrap();
    let memory = allocation_counter::measure(|| run_until(&mut reactor, |_| !log.is_empty())).bytes_max;
    assert!(memory < 20_000_000, "{memory} bytes");
}

fn client_sends_first_and_gets_the_answers(on: On) {
    struct Client {
        left: usize,
        log: Log,
    }
    impl Protocol for Client {
        type Message = String;
        fn opened(&mut self, _: &Peer<String>, replies: &mut Replies<String>) {
            replies.extend(["set a 1".to_owned(), "get a".to_owned()]);
        }
        fn process(&mut self, line: String, _: &mut Replies<String>) {
            self.left -= 1;
            self.log.add(line);
        }
        fn should_close(&self) -> bool {
            self.left == 0
        }
        fn closed(&mut self, reason: &Reason) {
            self.log.add(format!("closed: {reason}"));
        }
    }
    let mut reactor = on.reactor();
    let (address, _) = listen_store(&mut reactor, Lines::new);
    let log = Log::default();
    let client = Framed::new(Lines::new(), Client { left: 2, log: log.clone() });
    let id = reactor.connect(&address.into(), client).unwrap();
    let left = reactor.visit(id, |framed: &mut Framed<Lines, Client>, _| framed.protocol().left);
    assert_eq!(left, Some(2));
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["ok", "is 1", "closed: closed by this side"]);
}

fn refused_client_is_closed_with_the_reason(on: On) {
    let mut reactor = on.reactor();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let log = Log::default();
    let client = Framed::new(Lines::new(), Store { log: log.clone(), ..Store::default() });
    reactor.connect(&address.into(), client).unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(log.take(), [format!("closed: connect to {address}: refused")]);
}
