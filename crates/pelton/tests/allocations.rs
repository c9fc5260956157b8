//! Steady state allocates nothing.

use std::io::{IoSlice, Read, Write, pipe};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use allocation_counter::measure;
use pelton::{
    Batch, Chunk, Connection, ConnectionId, EventLoop, Guest, Interest, Io, Layer, LayerIo, Layered, Reactor, Reason,
};
use pelton_testing::Echo;

/// Warms the reactor up, then counts the allocations of many more turns.
fn allocations(reactor: &mut EventLoop, mut work: impl FnMut(&mut EventLoop)) -> u64 {
    let mut turns = |count| {
        for _ in 0..count {
            work(reactor);
            reactor.turn(Some(Duration::ZERO)).unwrap();
        }
    };
    turns(100);
    measure(|| turns(1_000)).count_total
}

#[test]
fn idle_turns_allocate_nothing() {
    let mut reactor = Reactor::new().unwrap();
    reactor.after(Duration::from_secs(3600), |_| {});
    assert_eq!(allocations(&mut reactor, |_| {}), 0);
}

#[test]
fn rearming_timers_allocates_nothing() {
    let mut reactor = Reactor::new().unwrap();
    reactor.every(Duration::from_micros(1), |reactor, _| *reactor.state::<u64>() += 1);
    let far = reactor.after(Duration::from_secs(3600), |_| {});
    let mut round = 0u64;
    let allocated = allocations(&mut reactor, |reactor| {
        // The deadlines fall into ever new slots, on all levels.
        round += 1;
        assert!(reactor.reset(far, Duration::from_micros(1_000 + round * round * 7)));
        // A new timer whose closure captures as much as small closures usually do.
        let (a, b, c) = (round, round + 1, round + 2);
        reactor.after(Duration::from_nanos(100), move |reactor| *reactor.state::<u64>() += a + b + c);
        let cancelled = reactor.after(Duration::from_millis(5), move |_| unreachable!("{a}"));
        assert!(reactor.cancel(cancelled));
    });
    assert!(*reactor.state::<u64>() > 1_000);
    assert_eq!(allocated, 0);
}

#[test]
fn ticks_and_posts_of_capturing_closures_allocate_nothing() {
    let mut reactor = Reactor::new().unwrap();
    let handle = reactor.handle();
    let mut round = 0u64;
    let allocated = allocations(&mut reactor, |reactor| {
        round += 1;
        for number in 0..100 {
            let (a, b, c) = (round, number, 1);
            handle.post(move |reactor| *reactor.state::<u64>() += a + b + c).unwrap();
            reactor.next_tick(move |reactor| *reactor.state::<u64>() += a + b + c);
            handle.try_post(|_| {}).unwrap();
        }
    });
    assert!(*reactor.state::<u64>() > 1_000);
    assert_eq!(allocated, 0);
}

#[test]
fn watch_events_and_changes_of_interest_allocate_nothing() {
    let mut reactor = Reactor::new().unwrap();
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let readable = ours.try_clone().unwrap();
    let watch = reactor
        .watch(&readable, Interest::READABLE, move |reactor, _| {
            ours.read_exact(&mut [0]).unwrap();
            *reactor.state::<u64>() += 1;
        })
        .unwrap();
    let allocated = allocations(&mut reactor, |reactor| {
        reactor.set_interest(watch, Interest::NONE).unwrap();
        reactor.set_interest(watch, Interest::READABLE).unwrap();
        theirs.write_all(b"x").unwrap();
    });
    assert_eq!(*reactor.state::<u64>(), 1_100);
    assert_eq!(allocated, 0);
}

#[test]
fn batches_of_a_guest_allocate_nothing() {
    struct Busy(u32);
    impl Guest for Busy {
        fn has_work(&mut self) -> bool {
            true
        }
        fn run(&mut self, reactor: &mut Reactor) -> Batch {
            *reactor.state::<u64>() += 1;
            self.0 += 1;
            // Some turns have one batch, some have many.
            if self.0.is_multiple_of(100) { Batch::EndsTurn } else { Batch::MayContinue }
        }
    }
    let mut reactor = Reactor::new().unwrap();
    reactor.host(Busy(0)).unwrap();
    assert_eq!(allocations(&mut reactor, |_| {}), 0);
    assert!(*reactor.state::<u64>() > 2_000);
    let (ours, _theirs) = UnixStream::pair().unwrap();
    reactor.watch(&ours, Interest::READABLE, |_, _| {}).unwrap();
    assert_eq!(allocations(&mut reactor, |_| {}), 0);
}

/// Serves connections with `serve`, and counts the allocations per echoed message.
fn allocations_of_echoes<C: Connection>(serve: fn() -> C) -> u64 {
    let mut reactor = Reactor::new().unwrap();
    let listener = reactor.listen("127.0.0.1:0", move |_| serve()).unwrap();
    let address = reactor.listening_on(listener).unwrap().to_string();
    let mut clients = [TcpStream::connect(&address).unwrap(), TcpStream::connect(&address).unwrap()];
    allocations(&mut reactor, |reactor| {
        for client in &mut clients {
            client.write_all(b"ping").unwrap();
        }
        for client in &mut clients {
            // Loopback delivers immediately, but a client may have to wait to be accepted.
            client.set_nonblocking(true).unwrap();
            let mut answer = [0; 4];
            while client.read_exact(&mut answer).is_err() {
                reactor.turn(Some(Duration::ZERO)).unwrap();
            }
            assert_eq!(&answer, b"ping");
        }
    })
}

#[test]
fn forwarded_messages_allocate_nothing() {
    assert_eq!(allocations_of_echoes(|| Echo), 0);
}

#[test]
fn messages_through_layers_allocate_nothing() {
    /// Passes on everything, and holds no memory of its own.
    struct Pass;
    impl Layer for Pass {
        fn receive(&mut self, io: &mut LayerIo<'_>, mut input: &[u8]) -> Result<usize, Reason> {
            io.deliver_with(|buffer| input.read(buffer)).map_err(Reason::layer)
        }

        fn send(&mut self, io: &mut LayerIo<'_>, output: &[IoSlice<'_>]) -> Result<usize, Reason> {
            io.write_vectored(output).map_err(Reason::layer)
        }
    }
    let layered = || {
        Layered::new(Echo, |io| {
            io.push_layer(Pass);
            io.push_layer(Pass);
        })
    };
    assert_eq!(allocations_of_echoes(layered), 0);
}

#[test]
fn copied_messages_allocate_nothing() {
    struct Copy;
    impl Connection for Copy {
        fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
            let (first, rest) = chunk.split_at(1);
            io.send(first).unwrap();
            io.send(rest).unwrap();
        }
    }
    assert_eq!(allocations_of_echoes(|| Copy), 0);
}

#[test]
fn messages_through_pipes_allocate_nothing() {
    struct Forward(ConnectionId);
    impl Connection for Forward {
        fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
            let to = self.0;
            io.reactor().connection(to).unwrap().send_chunk(chunk).unwrap();
        }
    }
    let mut reactor = Reactor::new().unwrap();
    let ((reader, mut writer), (mut result, answer)) = (pipe().unwrap(), pipe().unwrap());
    let to = reactor.adopt(answer, Echo).unwrap();
    reactor.adopt(reader, Forward(to)).unwrap();
    // The first turn opens them.
    reactor.turn(Some(Duration::ZERO)).unwrap();
    let allocated = allocations(&mut reactor, |reactor| {
        writer.write_all(b"ping").unwrap();
        // One turn receives, and the flush of this or the next sends.
        reactor.turn(Some(Duration::ZERO)).unwrap();
        reactor.turn(Some(Duration::ZERO)).unwrap();
        result.read_exact(&mut [0; 4]).unwrap();
    });
    assert_eq!(allocated, 0);
}
