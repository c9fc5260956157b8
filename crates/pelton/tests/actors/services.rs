//! Servers whose protocols run on a pool.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pelton::codec::Lines;
use pelton::{Address, Codec, EventLoop, Exit, FrameError, Peer, Pool, Protocol, Reason, Replies, Service, serve};
use pelton_testing::{On, POOL_DEADLINE, on_every_engine, run_until, run_with, wait_for};

use super::{blocker, panic_quietly};

on_every_engine![
    pipelined_requests_are_answered_in_order,
    a_slow_request_does_not_delay_other_connections,
    slow_protocol_pauses_reading_and_answers_everything,
    a_peer_that_does_not_read_replies_pauses_processing,
    closing_sends_everything_first,
    malformed_input_closes_after_the_replies,
    pushes_keep_their_order_and_go_out_before_closing,
    panicking_protocol_ends_only_its_connection,
    the_same_protocol_runs_on_the_loop,
    draining_answers_received_requests,
    a_pool_that_has_shut_down_closes_its_connections,
    a_pool_ends_with_its_loop_after_the_connections,
];

/// Answers each line with the line and its number; some lines are commands.
#[derive(Clone, Default)]
struct Desk {
    number: usize,
    quit: bool,
    shared: Arc<Lobby>,
}

#[derive(Default)]
struct Lobby {
    /// `wait` blocks on this.
    gate: Mutex<()>,
    peers: Mutex<Vec<Peer<String>>>,
    closed: Mutex<Vec<String>>,
    faults: Mutex<Vec<pelton::ActorFault>>,
    processed: AtomicUsize,
}

impl Protocol for Desk {
    type Message = String;

    fn opened(&mut self, peer: &Peer<String>, _: &mut Replies<String>) {
        self.shared.peers.lock().unwrap().push(peer.clone());
    }

    fn process(&mut self, line: String, replies: &mut Replies<String>) {
        self.number += 1;
        self.shared.processed.fetch_add(1, Ordering::Relaxed);
        match line.as_str() {
            "wait" => drop(self.shared.gate.lock().unwrap()),
            "panic" => panic_quietly(),
            "quit" => self.quit = true,
            "much" => replies.extend((0..100).map(|_| "x".repeat(10_000))),
            _ => {}
        }
        replies.send(format!("{line} {}", self.number));
    }

    fn should_close(&self) -> bool {
        self.quit
    }

    fn closed(&mut self, reason: &Reason) {
        self.shared.closed.lock().unwrap().push(reason.to_string());
    }
}

struct Server {
    reactor: EventLoop,
    pool: Pool,
    lobby: Arc<Lobby>,
    address: SocketAddr,
}

impl Server {
    fn new(on: On) -> Server {
        let lobby = Arc::new(Lobby::default());
        let hook = lobby.clone();
        let report = move |fault: &pelton::ActorFault| hook.faults.lock().unwrap().push(fault.clone());
        let pool = Pool::builder().workers(2).on_fault(report).build().unwrap();
        let mut reactor = on.reactor();
        let desk = Desk { shared: lobby.clone(), ..Desk::default() };
        let service = serve(|| Lines::new().limit(20_000), move || desk.clone()).on(&pool);
        let listener = reactor.listen("127.0.0.1:0", service).unwrap();
        let Some(Address::Tcp(address)) = reactor.listening_on(listener) else { panic!("not on TCP") };
        let address = *address;
        Server { reactor, pool, lobby, address }
    }

    /// Runs the loop until the other thread is done.
    fn run_with<T: Send + 'static>(&mut self, act: impl FnOnce() -> T + Send + 'static) -> T {
        run_with(&mut self.reactor, act)
    }

    fn run_until(&mut self, mut condition: impl FnMut(&Lobby) -> bool) {
        let waiting = self.reactor.every(Duration::from_millis(1), |_, _| {});
        let lobby = self.lobby.clone();
        run_until(&mut self.reactor, |_| condition(&lobby));
        self.reactor.cancel(waiting);
    }

    /// Waits for this many connections to end, and returns their reasons.
    fn closed(&mut self, count: usize) -> Vec<String> {
        self.run_until(|lobby| lobby.closed.lock().unwrap().len() == count);
        run_until(&mut self.reactor, |reactor| reactor.connection_count() == 0);
        self.lobby.closed.lock().unwrap().clone()
    }
}

fn lines(stream: TcpStream) -> impl Iterator<Item = String> {
    BufReader::new(stream).lines().map(Result::unwrap)
}

fn pipelined_requests_are_answered_in_order(on: On) {
    const COUNT: usize = 20_000;
    let mut server = Server::new(on);
    let address = server.address;
    let answers = server.run_with(move || {
        let clients: Vec<_> = (0..3)
            .map(|client| {
                thread::spawn(move || {
                    let stream = TcpStream::connect(address).unwrap();
                    let mut writing = stream.try_clone().unwrap();
                    let writer = thread::spawn(move || {
                        let requests: String = (0..COUNT).map(|number| format!("{client}:{number}\n")).collect();
                        // Split at arbitrary positions.
                        for part in requests.as_bytes().chunks(777) {
                            writing.write_all(part).unwrap();
                        }
                        writing.shutdown(Shutdown::Write).unwrap();
                    });
                    let answers: Vec<_> = lines(stream).collect();
                    writer.join().unwrap();
                    (client, answers)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    for (client, answers) in answers {
        let expected = (0..COUNT).map(|number| format!("{client}:{number} {}", number + 1));
        assert!(answers.iter().cloned().eq(expected), "{client} had {} answers", answers.len());
    }
    assert_eq!(server.closed(3), ["finished by the other side"; 3]);
}

fn a_slow_request_does_not_delay_other_connections(on: On) {
    let mut server = Server::new(on);
    let (address, lobby) = (server.address, server.lobby.clone());
    server.run_with(move || {
        let gate = lobby.gate.lock().unwrap();
        let mut slow = BufReader::new(TcpStream::connect(address).unwrap());
        slow.get_mut().write_all(b"wait\nafter\n").unwrap();
        let mut quick = BufReader::new(TcpStream::connect(address).unwrap());
        for number in 1..=100 {
            quick.get_mut().write_all(b"quick\n").unwrap();
            let mut answer = String::new();
            quick.read_line(&mut answer).unwrap();
            assert_eq!(answer, format!("quick {number}\n"));
        }
        drop(gate);
        let mut answers = [String::new(), String::new()];
        for answer in &mut answers {
            slow.read_line(answer).unwrap();
        }
        assert_eq!(answers, ["wait 1\n", "after 2\n"]);
    });
    server.closed(2);
}

/// Writes requests until no more are accepted for a while.
fn write_until_stuck(stream: &mut TcpStream, requests: &[u8]) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut written = 0;
    while written < requests.len() {
        match stream.write(&requests[written..]) {
            Ok(count) => written += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(error) => panic!("{error}"),
        }
    }
    stream.set_write_timeout(None).unwrap();
    written
}

fn slow_protocol_pauses_reading_and_answers_everything(on: On) {
    let mut server = Server::new(on);
    let (address, lobby) = (server.address, server.lobby.clone());
    let count = 4_000;
    server.run_with(move || {
        let gate = lobby.gate.lock().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"wait\n").unwrap();
        let requests = format!("{}\n", "r".repeat(9_999)).repeat(count);
        let written = write_until_stuck(&mut stream, requests.as_bytes());
        // The capacity of the kernel's buffers on both sides, and some more.
        assert!(written < 16_000_000, "{written} bytes were accepted without any answer");
        drop(gate);
        let mut writing = stream.try_clone().unwrap();
        let writer = thread::spawn(move || {
            writing.write_all(&requests.as_bytes()[written..]).unwrap();
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let mut answers = lines(stream);
        assert_eq!(answers.next().unwrap(), "wait 1");
        for number in 2..count + 2 {
            assert!(answers.next().unwrap().ends_with(&format!("r {number}")));
        }
        assert_eq!(answers.next(), None);
        writer.join().unwrap();
    });
    server.closed(1);
}

fn a_peer_that_does_not_read_replies_pauses_processing(on: On) {
    const COUNT: usize = 100;
    let mut server = Server::new(on);
    let mut stream = TcpStream::connect(server.address).unwrap();
    // Each of these is answered with a megabyte.
    stream.write_all(&b"much\n".repeat(COUNT)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    server.run_until(|lobby| lobby.processed.load(Ordering::Relaxed) > 3);
    let mut most = 0;
    let mut settled = Instant::now();
    let mut processed = 0;
    // Until there is no progress for a while.
    while settled.elapsed() < Duration::from_millis(300) {
        server.reactor.turn(Some(Duration::from_millis(5))).unwrap();
        most = most.max(server.reactor.queued());
        let now = server.lobby.processed.load(Ordering::Relaxed);
        if std::mem::replace(&mut processed, now) != now {
            settled = Instant::now();
        }
    }
    assert!(processed < COUNT / 2, "{processed} requests were processed for a client that does not read");
    assert!(most < 4_000_000, "{most} bytes were queued");
    let answers = server.run_with(move || lines(stream).filter(|line| line.starts_with("much")).count());
    assert_eq!(answers, COUNT);
    assert_eq!(server.closed(1), ["finished by the other side"]);
}

fn closing_sends_everything_first(on: On) {
    let mut server = Server::new(on);
    let address = server.address;
    let answers = server.run_with(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"much\nquit\nignored\n").unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        answers
    });
    assert_eq!(answers.len(), 100 * 10_001 + "much 1\nquit 2\n".len());
    assert!(answers.ends_with("x\nmuch 1\nquit 2\n"));
    assert_eq!(server.closed(1), ["closed by this side"]);
    assert_eq!(server.lobby.processed.load(Ordering::Relaxed), 2);
}

fn malformed_input_closes_after_the_replies(on: On) {
    let mut server = Server::new(on);
    let address = server.address;
    let answers = server.run_with(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"one\ntwo\n\xff\nthree\n").unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).ok();
        answers
    });
    assert_eq!(answers, "one 1\ntwo 2\n");
    let error = Lines::new().decode(&mut {
        let mut buffer = pelton::codec::Buffer::new();
        buffer.feed(b"\xff\n".to_vec().into());
        buffer
    });
    let expected: FrameError = error.unwrap_err();
    assert_eq!(server.closed(1), [Reason::Frame(expected).to_string()]);
}

fn pushes_keep_their_order_and_go_out_before_closing(on: On) {
    const COUNT: usize = 5_000;
    let mut server = Server::new(on);
    let stream = TcpStream::connect(server.address).unwrap();
    server.run_until(|lobby| lobby.peers.lock().unwrap().len() == 1);
    let peer = server.lobby.peers.lock().unwrap()[0].clone();
    let heard = server.run_with(move || {
        for number in 0..COUNT {
            peer.push(number.to_string()).unwrap();
        }
        peer.close_after_writing();
        lines(stream).collect::<Vec<_>>()
    });
    assert!(heard.iter().map(|line| line.parse::<usize>().unwrap()).eq(0..COUNT), "{} heard", heard.len());
    server.closed(1);
    assert!(server.lobby.peers.lock().unwrap()[0].push("late".to_owned()).is_err());
}

fn panicking_protocol_ends_only_its_connection(on: On) {
    let mut server = Server::new(on);
    let address = server.address;
    server.run_with(move || {
        let mut other = BufReader::new(TcpStream::connect(address).unwrap());
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"panic\nafter\n").unwrap();
        let mut answers = String::new();
        // The connection may be reset because of unread input.
        stream.read_to_string(&mut answers).ok();
        assert_eq!(answers, "");
        other.get_mut().write_all(b"hello\n").unwrap();
        let mut answer = String::new();
        other.read_line(&mut answer).unwrap();
        assert_eq!(answer, "hello 1\n");
    });
    assert_eq!(server.closed(2), ["its handler panicked", "finished by the other side"]);
    assert_eq!(server.pool.stats().panics, 1);
    let faults = server.lobby.faults.lock().unwrap();
    assert!(faults[0].place.file() == file!(), "the place where it was put on the pool: {}", faults[0].place);
}

fn the_same_protocol_runs_on_the_loop(on: On) {
    let mut server = Server::new(on);
    let desk = Desk { shared: server.lobby.clone(), ..Desk::default() };
    let listener = server.reactor.listen("127.0.0.1:0", serve(Lines::new, move || desk.clone())).unwrap();
    let Some(Address::Tcp(on_the_loop)) = server.reactor.listening_on(listener).cloned() else { panic!("not on TCP") };
    let addresses = [server.address, on_the_loop];
    let answers = server.run_with(move || {
        addresses.map(|address| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"a\nb\nquit\n").unwrap();
            lines(stream).collect::<Vec<_>>()
        })
    });
    assert_eq!(answers[0], ["a 1", "b 2", "quit 3"]);
    assert_eq!(answers[0], answers[1]);
    server.closed(2);
}

fn draining_answers_received_requests(on: On) {
    let mut server = Server::new(on);
    let lobby = server.lobby.clone();
    let gate = lobby.gate.lock().unwrap();
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(b"wait\nafter\n").unwrap();
    server.run_until(|lobby| lobby.processed.load(Ordering::Relaxed) == 1);
    server.reactor.drain(POOL_DEADLINE);
    server.reactor.turn(Some(Duration::ZERO)).unwrap();
    drop(gate);
    assert_eq!(server.reactor.run().unwrap(), Exit::Drained);
    assert_eq!(lines(stream).collect::<Vec<_>>(), ["wait 1", "after 2"]);
    wait_for(|| lobby.closed.lock().unwrap().len() == 1);
}

fn a_pool_that_has_shut_down_closes_its_connections(on: On) {
    let mut server = Server::new(on);
    let stream = TcpStream::connect(server.address).unwrap();
    server.run_until(|lobby| lobby.peers.lock().unwrap().len() == 1);
    server.pool.shutdown(POOL_DEADLINE).unwrap();
    (&stream).write_all(b"too late\n").unwrap();
    assert_eq!(server.closed(1), ["closed by this side"]);
}

fn a_pool_ends_with_its_loop_after_the_connections(on: On) {
    let mut server = Server::new(on);
    let stream = TcpStream::connect(server.address).unwrap();
    (&stream).write_all(b"hello\n").unwrap();
    server.run_until(|lobby| lobby.processed.load(Ordering::Relaxed) == 1);
    // A running message is waited for, and queued ones are received.
    let (slow, begun, release) = blocker(&server.pool);
    slow.send(()).unwrap();
    begun.recv_timeout(POOL_DEADLINE).unwrap();
    let (sender, received) = channel();
    let last = server.pool.spawn_fn(move |word: &str, _| sender.send(word).unwrap());
    last.send("received at the end").unwrap();
    server.reactor.shut_down_at_end(&server.pool, POOL_DEADLINE);
    let lobby = server.lobby.clone();
    let freeing = std::thread::spawn(move || {
        wait_for(|| lobby.closed.lock().unwrap().len() == 1);
        drop(release);
    });
    server.reactor.stop();
    server.reactor.run().unwrap();
    freeing.join().unwrap();
    assert_eq!(received.recv_timeout(POOL_DEADLINE).unwrap(), "received at the end");
    assert!(slow.send(()).is_err(), "the pool accepts nothing more");
}
