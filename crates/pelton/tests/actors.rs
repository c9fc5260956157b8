//! Actors on a pool of workers, and servers whose protocols run there, on every engine.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pelton::codec::Lines;
use pelton::{
    Actor, ActorRef, Address, Codec, Context, EventLoop, Exit, FrameError, MailError, Peer, Pool, Protocol, Reason,
    Replies, Service, serve,
};
use pelton_testing::{Alive, Counted, On, POOL_DEADLINE, on_every_engine, run_until, run_with, wait_for};

fn pool(workers: usize) -> Pool {
    Pool::builder().workers(workers).build().unwrap()
}

/// Panics without the noise of a panic hook.
fn panic_quietly() -> ! {
    resume_unwind(Box::new("on purpose"))
}

/// An actor that keeps its worker until it is let go.
fn blocker(pool: &Pool) -> (ActorRef<()>, Receiver<()>, Sender<()>) {
    let (entered, inside) = channel();
    let (release, released) = channel::<()>();
    let actor = pool.spawn_fn(move |(), _| {
        entered.send(()).unwrap();
        released.recv().ok();
    });
    (actor, inside, release)
}

#[test]
fn a_million_messages_of_eight_senders_to_a_thousand_actors_keep_their_order() {
    const SENDERS: usize = 8;
    const ACTORS: usize = 1_000;
    const EACH: u32 = 125_000;
    struct Checker {
        next: [u32; SENDERS],
        busy: bool,
        count: usize,
        total: Arc<AtomicUsize>,
    }
    impl Actor for Checker {
        type Message = (usize, u32);
        fn receive(&mut self, (sender, number): (usize, u32), _: &mut Context<'_, (usize, u32)>) {
            assert!(!std::mem::replace(&mut self.busy, true));
            assert!(number >= self.next[sender], "{number} of {sender} after {}", self.next[sender]);
            self.next[sender] = number + 1;
            self.count += 1;
            if fastrand::u32(..1_000) == 0 {
                thread::yield_now();
            }
            self.busy = false;
        }
        fn stopped(&mut self) {
            self.total.fetch_add(self.count, Ordering::Relaxed);
        }
    }
    let (pool, total) = (pool(4), Arc::new(AtomicUsize::new(0)));
    let actors: Arc<[_]> = (0..ACTORS)
        .map(|_| pool.spawn(Checker { next: [0; SENDERS], busy: false, count: 0, total: total.clone() }))
        .collect();
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let actors = actors.clone();
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(sender as u64);
                for number in 0..EACH {
                    actors[random.usize(..ACTORS)].send((sender, number)).unwrap();
                    match random.u32(..20_000) {
                        0 => thread::sleep(Duration::from_micros(random.u64(..300))),
                        1..50 => thread::yield_now(),
                        _ => {}
                    }
                }
            })
        })
        .collect();
    for sender in senders {
        sender.join().unwrap();
    }
    drop(actors);
    pool.shutdown(POOL_DEADLINE).unwrap();
    assert_eq!(total.load(Ordering::Relaxed), SENDERS * EACH as usize);
    let stats = pool.stats();
    assert_eq!((stats.messages, stats.panics, stats.actors), (SENDERS as u64 * u64::from(EACH), 0, 0));
}

#[test]
fn actors_that_panic_at_random_leave_the_others_alone_and_nothing_behind() {
    const ACTORS: usize = 200;
    let (alive, faults, received) = (Alive::default(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let told = faults.clone();
    let pool = Pool::builder().workers(3).on_fault(move |fault| {
        assert!(fault.to_string().contains("panicked: on purpose"), "{fault}");
        told.fetch_add(1, Ordering::Relaxed);
    });
    let pool = pool.build().unwrap();
    let actors: Arc<[_]> = (0..ACTORS)
        .map(|_| {
            let (own, received) = (Counted::new(&alive), received.clone());
            pool.spawn_fn(move |_: Counted, _| {
                let _own = &own;
                received.fetch_add(1, Ordering::Relaxed);
                if fastrand::u32(..500) == 0 {
                    panic_quietly();
                }
            })
        })
        .collect();
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let (actors, alive) = (actors.clone(), alive.clone());
            thread::spawn(move || {
                let mut refused = 0;
                for _ in 0..50_000 {
                    match actors[fastrand::usize(..ACTORS)].send(Counted::new(&alive)) {
                        Ok(()) => {}
                        Err(MailError::Closed(_)) => refused += 1,
                        Err(MailError::Full(_)) => unreachable!(),
                    }
                }
                refused
            })
        })
        .collect();
    let refused: usize = senders.into_iter().map(|sender| sender.join().unwrap()).sum();
    pool.shutdown(POOL_DEADLINE).unwrap();
    let closed = actors.iter().filter(|actor| actor.is_closed()).count();
    assert_eq!(closed, faults.load(Ordering::Relaxed));
    assert_eq!(pool.stats().panics as usize, closed);
    assert!(closed > 0 && refused > 0, "{closed} closed, {refused} refused");
    assert!(received.load(Ordering::Relaxed) + refused <= 200_000);
    assert_eq!(alive.count(), ACTORS - closed);
    drop(actors);
    assert_eq!((alive.count(), pool.stats().actors), (0, 0));
}

#[test]
fn a_closed_actor_gives_messages_back() {
    let pool = pool(1);
    let stopping = pool.spawn_fn(|stop: bool, context: &mut Context<'_, bool>| {
        if stop {
            context.stop();
        }
    });
    stopping.send(true).unwrap();
    wait_for(|| stopping.is_closed());
    assert_eq!(stopping.send(false), Err(MailError::Closed(false)));
    assert_eq!(stopping.try_send(false), Err(MailError::Closed(false)));
    assert_eq!(MailError::Full(7).to_string(), "send to an actor: its mailbox is full");
    assert_eq!(MailError::Closed(7).into_inner(), 7);
}

#[test]
fn a_flooded_actor_has_no_more_than_its_share() {
    let pool = Pool::builder().workers(1).messages_per_turn(10).build().unwrap();
    let (gate, inside, release) = blocker(&pool);
    gate.send(()).unwrap();
    inside.recv().unwrap();
    let (flooded, seen) = (Arc::new(AtomicUsize::new(0)), channel());
    let count = flooded.clone();
    let flood = pool.spawn_fn(move |_: u32, _| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    for number in 0..10_000 {
        flood.send(number).unwrap();
    }
    let count = flooded.clone();
    let other = pool.spawn_fn(move |(), _| seen.0.send(count.load(Ordering::Relaxed)).unwrap());
    other.send(()).unwrap();
    release.send(()).unwrap();
    assert_eq!(seen.1.recv_timeout(POOL_DEADLINE), Ok(10));
    pool.shutdown(POOL_DEADLINE).unwrap();
    assert_eq!(flooded.load(Ordering::Relaxed), 10_000);
}

#[test]
fn actors_that_keep_each_other_busy_do_not_starve_what_comes_from_outside() {
    let pool = pool(1);
    let busy = pool.spawn_fn(|stop: bool, context: &mut Context<'_, bool>| {
        if stop {
            return context.stop();
        }
        if let Some(me) = context.me() {
            me.send(false).ok();
        }
    });
    busy.send(false).unwrap();
    for _ in 0..100 {
        let (answer, answered) = channel();
        pool.spawn_fn(move |(), _| answer.send(()).unwrap()).send(()).unwrap();
        answered.recv_timeout(POOL_DEADLINE).unwrap();
    }
    busy.send(true).unwrap();
    pool.shutdown(POOL_DEADLINE).unwrap();
}

#[test]
fn a_full_mailbox_refuses_and_tells_of_room_once() {
    let pool = pool(1);
    let (room, rooms) = channel();
    let (entered, inside) = channel();
    let (release, released) = channel::<()>();
    let actor =
        pool.actor().bound(4).label("slow").on_room(move || room.send(()).unwrap()).spawn_fn(move |_: u32, _| {
            entered.send(()).unwrap();
            released.recv().unwrap();
        });
    actor.try_send(0).unwrap();
    inside.recv_timeout(POOL_DEADLINE).unwrap();
    // The one being received may still count.
    let sent = (1..).find(|number| actor.try_send(*number) == Err(MailError::Full(*number))).unwrap();
    assert!(sent == 4 || sent == 5, "{sent}");
    assert_eq!(actor.try_send(9), Err(MailError::Full(9)));
    actor.send(5).unwrap();
    assert!(rooms.try_recv().is_err() && actor.waiting() >= 4 && actor.bound() == 4);
    for _ in 0..sent {
        release.send(()).unwrap();
    }
    rooms.recv_timeout(POOL_DEADLINE).unwrap();
    actor.try_send(6).unwrap();
    drop(actor);
    for _ in 0..2 {
        release.send(()).unwrap();
    }
    pool.shutdown(POOL_DEADLINE).unwrap();
    assert!(rooms.try_recv().is_err(), "once for both refusals");
}

#[test]
fn everything_is_dropped_once_whichever_way_an_actor_ends() {
    let alive = Alive::default();
    let pool = Pool::builder().workers(2).on_fault(|_| {}).build().unwrap();
    for ending in 0..4 {
        let own = Counted::new(&alive);
        let actor = pool.spawn_fn(move |(what, _counted): (u32, Counted), context: &mut Context<'_, _>| {
            let _own = &own;
            match what {
                1 => context.stop(),
                2 => panic_quietly(),
                _ => {}
            }
        });
        for number in 0..1_000 {
            let what = if number == 500 { ending } else { 0 };
            actor.send((what, Counted::new(&alive))).ok();
        }
        // The others are ended by the last reference.
        drop(actor);
    }
    wait_for(|| pool.stats().actors == 0);
    wait_for(|| alive.count() == 0);
}

#[test]
fn a_chain_of_actors_that_own_each_other_ends_on_the_pool_or_after_it() {
    struct Link(#[expect(dead_code, reason = "is dropped with it")] Option<ActorRef<()>>);
    impl Actor for Link {
        type Message = ();
        fn receive(&mut self, (): (), _: &mut Context<'_, ()>) {}
    }
    for stopped in [false, true] {
        let pool = pool(2);
        let chain = (0..50_000).fold(None, |next, _| Some(pool.spawn(Link(next))));
        if stopped {
            pool.shutdown(POOL_DEADLINE).unwrap();
        }
        drop(chain);
        wait_for(|| pool.stats().actors == 0);
    }
}

#[test]
fn no_worker_waits_for_an_actor_that_blocks() {
    let pool = pool(2);
    let (gate, inside, release) = blocker(&pool);
    gate.send(()).unwrap();
    inside.recv_timeout(POOL_DEADLINE).unwrap();
    // More for the one that blocks keeps nobody else busy either.
    gate.send(()).unwrap();
    let (done, finished) = channel();
    for number in 0..1_000 {
        let done = done.clone();
        pool.spawn_fn(move |number: u32, _| done.send(number).unwrap()).send(number).unwrap();
    }
    for _ in 0..1_000 {
        finished.recv_timeout(POOL_DEADLINE).unwrap();
    }
    drop(release);
    pool.shutdown(POOL_DEADLINE).unwrap();
}

#[test]
fn what_a_blocking_worker_has_in_its_own_queue_is_taken_by_others() {
    let pool = pool(2);
    for _ in 0..50 {
        let (done, finished) = channel();
        let (release, released) = channel::<()>();
        // Its messages go into the queue of the worker that it is about to block.
        let (targets, waiting): (Vec<_>, _) = ((0..10).map(|_| done.clone()).collect(), released);
        let spreader = pool.spawn_fn(move |(), context: &mut Context<'_, ()>| {
            for done in targets.clone() {
                context.spawn(Once(done)).send(()).unwrap();
            }
            waiting.recv().ok();
        });
        spreader.send(()).unwrap();
        for _ in 0..10 {
            finished.recv_timeout(POOL_DEADLINE).unwrap();
        }
        drop(release);
    }
    struct Once(Sender<()>);
    impl Actor for Once {
        type Message = ();
        fn receive(&mut self, (): (), _: &mut Context<'_, ()>) {
            self.0.send(()).unwrap();
        }
    }
}

#[test]
fn shutdown_finishes_what_waits_and_refuses_what_comes() {
    let pool = pool(2);
    let count = Arc::new(AtomicUsize::new(0));
    let counter = {
        let count = count.clone();
        pool.spawn_fn(move |left: u32, context: &mut Context<'_, u32>| {
            count.fetch_add(1, Ordering::Relaxed);
            // What actors send each other is finished too.
            if left > 0 {
                context.me().unwrap().send(left - 1).unwrap();
            }
        })
    };
    for _ in 0..1_000 {
        counter.send(9).unwrap();
    }
    pool.shutdown(POOL_DEADLINE).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 10_000);
    assert_eq!(counter.send(0), Err(MailError::Closed(0)));
    pool.shutdown(POOL_DEADLINE).unwrap();
}

#[test]
fn shutdown_drops_what_is_left_at_the_deadline() {
    let alive = Alive::default();
    let pool = pool(1);
    let (gate, inside, release) = blocker(&pool);
    gate.send(()).unwrap();
    inside.recv_timeout(POOL_DEADLINE).unwrap();
    let other = pool.spawn_fn(|_: Counted, _| unreachable!("it never has its turn"));
    for _ in 0..100 {
        other.send(Counted::new(&alive)).unwrap();
    }
    let error = pool.shutdown(Duration::from_millis(20)).unwrap_err();
    assert_eq!((error.busy, error.waiting), (1, 1));
    drop(release);
    wait_for(|| alive.count() == 0 && other.is_closed());
}

#[test]
fn an_idle_pool_sleeps() {
    let pool = pool(3);
    wait_for(|| pool.stats().asleep == 3);
    let parks = pool.stats().parks;
    let (done, finished) = channel();
    let actor = pool.spawn_fn(move |(), _| done.send(()).unwrap());
    actor.send(()).unwrap();
    finished.recv_timeout(POOL_DEADLINE).unwrap();
    wait_for(|| pool.stats().asleep == 3);
    assert!(pool.stats().parks > parks);
}

on_every_engine![
    pipelined_requests_are_answered_in_order,
    a_slow_request_does_not_delay_other_connections,
    a_slow_protocol_pauses_reading_and_all_is_answered_in_the_end,
    a_peer_that_does_not_read_replies_pauses_processing,
    closing_sends_everything_first,
    bytes_that_are_no_message_close_with_their_reason_after_the_replies,
    pushes_keep_their_order_and_go_out_before_closing,
    a_protocol_that_panics_ends_its_connection_only,
    the_same_protocol_runs_on_the_loop,
    draining_answers_what_has_come_in,
    a_pool_that_has_shut_down_closes_its_connections,
    a_pool_ends_with_its_loop_after_the_connections,
];

/// Answers each line with itself and its number; does what some lines say.
#[derive(Clone, Default)]
struct Desk {
    number: usize,
    quit: bool,
    shared: Arc<Lobby>,
}

#[derive(Default)]
struct Lobby {
    /// Where `wait` waits.
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

    /// Turns the loop until the other thread is done.
    fn run_with<T: Send + 'static>(&mut self, act: impl FnOnce() -> T + Send + 'static) -> T {
        run_with(&mut self.reactor, act)
    }

    fn run_until(&mut self, mut condition: impl FnMut(&Lobby) -> bool) {
        let waiting = self.reactor.every(Duration::from_millis(1), |_, _| {});
        let lobby = self.lobby.clone();
        run_until(&mut self.reactor, |_| condition(&lobby));
        self.reactor.cancel(waiting);
    }

    /// Waits for so many connections to be over, and gives their reasons.
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
                        // Cut anywhere.
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

/// Writes requests until nothing more is taken for a while.
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

fn a_slow_protocol_pauses_reading_and_all_is_answered_in_the_end(on: On) {
    let mut server = Server::new(on);
    let (address, lobby) = (server.address, server.lobby.clone());
    let count = 4_000;
    server.run_with(move || {
        let gate = lobby.gate.lock().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"wait\n").unwrap();
        let requests = format!("{}\n", "r".repeat(9_999)).repeat(count);
        let written = write_until_stuck(&mut stream, requests.as_bytes());
        // What the kernel keeps on both sides, and a little more.
        assert!(written < 16_000_000, "{written} bytes were taken from a client that nobody answers");
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
    // A megabyte of replies for each of these.
    stream.write_all(&b"much\n".repeat(COUNT)).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    server.run_until(|lobby| lobby.processed.load(Ordering::Relaxed) > 3);
    let mut most = 0;
    let mut settled = Instant::now();
    let mut processed = 0;
    // Until nothing happens for a while.
    while settled.elapsed() < Duration::from_millis(300) {
        server.reactor.turn(Some(Duration::from_millis(5))).unwrap();
        most = most.max(server.reactor.queued());
        let now = server.lobby.processed.load(Ordering::Relaxed);
        if std::mem::replace(&mut processed, now) != now {
            settled = Instant::now();
        }
    }
    assert!(processed < COUNT / 2, "{processed} requests were processed for a client that does not read");
    assert!(most < 4_000_000, "{most} bytes waited");
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

fn bytes_that_are_no_message_close_with_their_reason_after_the_replies(on: On) {
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

fn a_protocol_that_panics_ends_its_connection_only(on: On) {
    let mut server = Server::new(on);
    let address = server.address;
    server.run_with(move || {
        let mut other = BufReader::new(TcpStream::connect(address).unwrap());
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"panic\nafter\n").unwrap();
        let mut answers = String::new();
        // It may be reset, as there is something unread.
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
    assert!(faults[0].place.file().ends_with("actors.rs"), "where it was put on the pool: {}", faults[0].place);
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

fn draining_answers_what_has_come_in(on: On) {
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
    // What is in the middle of something is waited for, and what waits is received.
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
    assert!(slow.send(()).is_err(), "the pool takes nothing more");
}
