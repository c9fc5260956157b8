//! Slow peers, and what they may cost.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use pelton::{Address, Io, SendError};
use pelton_testing::{On, dial, on_every_engine};

use crate::scene::{FINISHED, LOCAL, Moment, RESET, Scene, echo, plain, reset};

on_every_engine![
    message_received_byte_by_byte_is_complete,
    message_sent_byte_by_byte_is_complete,
    a_peer_that_reads_byte_by_byte_gets_everything,
    pieces_of_all_sizes_reach_a_peer_with_small_reads,
    slow_reader_slows_down_reading,
    sends_to_a_peer_that_never_reads_are_limited,
    peer_that_never_reads_does_not_delay_others,
];

/// More than the kernel buffers in both directions.
const MUCH: usize = 12_000_000;
/// The documented maximum of queued bytes.
const MOST_QUEUED: usize = 16 * 1024 * 1024;

fn message_received_byte_by_byte_is_complete(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(echo);
    let mut peer = dial(address);
    for number in 0..2_000u32 {
        let byte = [(number % 251) as u8];
        peer.write_all(&byte).unwrap();
        scene.until(|cast| cast.received() == number as usize + 1);
        let mut answer = [0];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(answer, byte);
    }
    drop(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "received", "peer finished", FINISHED]);
    assert!((0..2_000).all(|number| scene.cast.story(0).received[number] == (number % 251) as u8));
    scene.finish();
}

fn message_sent_byte_by_byte_is_complete(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io, moment| {
        if let Moment::Opened = moment {
            // Alternates between all ways of sending, so that pieces of all kinds are adjacent.
            for number in 0..30_000u32 {
                let byte = [(number % 251) as u8];
                let sent = if number % 3 == 0 { io.send_bytes(byte.to_vec()) } else { io.send(&byte) };
                sent.unwrap();
            }
            io.close_after_writing();
        }
    });
    let mut peer = dial(address);
    scene.until(|cast| cast.len() == 1 && cast.over() == 1);
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 30_000);
    assert!(all.iter().enumerate().all(|(number, byte)| *byte == (number % 251) as u8));
    assert_eq!(scene.told(0), ["opened", LOCAL]);
    drop(peer);
    scene.finish();
}

/// Reads available data, at most `most` bytes.
fn read_some(peer: &mut TcpStream, most: usize) -> usize {
    match peer.read(&mut vec![0; most]) {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

fn a_peer_that_reads_byte_by_byte_gets_everything(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(echo);
    let mut peer = dial(address);
    // Small buffers, so that there is never enough room.
    socket2::SockRef::from(&peer).set_recv_buffer_size(2_048).unwrap();
    peer.write_all(&[b'x'; 10_000]).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut read = 0;
    while read < 10_000 {
        scene.turn();
        while read_some(&mut peer, 1) == 1 {
            read += 1;
            assert!(read <= 10_000);
        }
    }
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "received", "peer finished", FINISHED]);
    drop(peer);
    scene.finish();
}

/// The byte at `position` of the data that is sent in pieces.
fn byte(position: usize) -> u8 {
    (position * 7 + (position >> 8)) as u8
}

fn pieces_of_all_sizes_reach_a_peer_with_small_reads(on: On) {
    const TOTAL: usize = 3_000_000;
    let mut scene = Scene::new(on);
    // A Unix socket with a small buffer, so that writes end in the middle of pieces.
    let path = std::env::temp_dir().join(format!("pelton-{}-pieces-{}.sock", std::process::id(), on.0));
    let listener = scene.listen_on(&Address::Unix(path.clone()), |io, moment| {
        if let Moment::Opened = moment {
            let (mut position, mut size) = (0, 1);
            while position < TOTAL {
                let bytes: Vec<u8> = (position..TOTAL.min(position + size)).map(byte).collect();
                position += bytes.len();
                let sent = if size % 2 == 0 { io.send(&bytes) } else { io.send_bytes(bytes) };
                sent.unwrap();
                size = size * 5 % 7_919;
            }
            io.close_after_writing();
        }
    });
    let mut peer = UnixStream::connect(&path).unwrap();
    peer.set_nonblocking(true).unwrap();
    let (mut read, mut buffer) = (0, [0; 10_007]);
    while read < TOTAL {
        scene.turn();
        match peer.read(&mut buffer) {
            Ok(count @ 1..) => {
                assert!(
                    buffer[..count].iter().enumerate().all(|(offset, got)| *got == byte(read + offset)),
                    "at {read}"
                );
                read += count;
            }
            Ok(_) => panic!("only {read} bytes arrived"),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0).last().unwrap(), LOCAL);
    drop(peer);
    assert!(scene.reactor.end(listener));
    scene.is_set_up();
    scene.finish();
}

fn slow_reader_slows_down_reading(on: On) {
    const TOTAL: usize = 30_000_000;
    let mut scene = Scene::new(on);
    let most = Rc::new(Cell::new(0));
    let seen = most.clone();
    // Ten bytes for each received byte.
    let address = scene.listen(move |io: &mut Io<'_>, moment: Moment<'_>| match moment {
        Moment::Received(bytes) => {
            io.send_bytes(vec![b'x'; bytes.len() * 10]).unwrap();
            seen.set(seen.get().max(io.queued()));
        }
        other => plain(io, other),
    });
    let mut peer = dial(address);
    peer.set_nonblocking(true).unwrap();
    let used = allocation_counter::measure(|| {
        let (mut written, mut read, mut step) = (0, 0, 0);
        let question = [b'?'; 10_000];
        while read < TOTAL {
            if written < TOTAL / 10 {
                match peer.write(&question[..question.len().min(TOTAL / 10 - written)]) {
                    Ok(count) => written += count,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            // Long pauses at first, then shorter ones: the queue grows and shrinks.
            step += 1;
            if step % 10 == 0 {
                read += read_some(&mut peer, 1_000 * (step / 100 + 1));
            }
            scene.turn();
        }
    });
    // The high-water mark, and the answer to one more read.
    assert!(most.get() <= 64 * 1024 + 10 * 64 * 1024, "{} bytes were queued", most.get());
    assert!(used.bytes_max <= 2_000_000, "{} bytes were in use at once", used.bytes_max);
    assert!(used.bytes_current <= 500_000, "{} bytes are in use", used.bytes_current);
    drop(peer);
    scene.until(|cast| cast.over() == 1);
    assert!(scene.told(0).contains(&"writable".to_owned()));
    scene.finish();
}

fn sends_to_a_peer_that_never_reads_are_limited(on: On) {
    let mut scene = Scene::new(on);
    let refused = Rc::new(Cell::new(0));
    let seen = refused.clone();
    let address = scene.listen(move |io: &mut Io<'_>, moment: Moment<'_>| match moment {
        Moment::Received(_) => {
            for _ in 0..100 {
                match io.send(&[b'x'; 100_000]) {
                    Ok(()) => assert!(io.queued() <= MOST_QUEUED),
                    Err(SendError::Full { queued, bytes: 100_000, most: MOST_QUEUED }) => {
                        assert_eq!(queued, io.queued());
                        assert!(queued + 100_000 > MOST_QUEUED);
                        seen.set(seen.get() + 1);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        other => plain(io, other),
    });
    let mut peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    let used = allocation_counter::measure(|| {
        // The first one pauses reading, so the others are not read.
        for number in 0..10 {
            peer.write_all(b"more").unwrap();
            scene.turn();
            // Sends directly, which the pause does not prevent.
            let id = scene.cast.ids()[0];
            let sent = scene.reactor.connection(id).unwrap().send(&vec![b'x'; 3_000_000]);
            assert!(number < 4 || sent.is_err());
        }
    });
    assert!(scene.cast.received() < 40, "reading has paused");
    assert!(used.bytes_max < MOST_QUEUED as u64 * 9 / 8 + 3_000_000, "{} bytes were in use at once", used.bytes_max);
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    assert_eq!(scene.reactor.stats().panics, 0);
    reset(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "received", RESET]);
    scene.finish();
}

fn peer_that_never_reads_does_not_delay_others(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io, moment| match moment {
        Moment::Received(b"much") => io.send_bytes(vec![b'x'; MUCH]).unwrap(),
        other => echo(io, other),
    });
    let mut deaf: Vec<TcpStream> = (0..5).map(|_| dial(address)).collect();
    for peer in &mut deaf {
        peer.write_all(b"much").unwrap();
    }
    let mut other = dial(address);
    scene.until(|cast| cast.received() == 20 && cast.len() == 6);
    for number in 0..200 {
        other.write_all(b"ping").unwrap();
        let wanted = 20 + 4 * (number + 1);
        scene.until(|cast| cast.received() == wanted);
        other.read_exact(&mut [0; 4]).unwrap();
    }
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    drop((deaf, other));
    scene.finish();
}
