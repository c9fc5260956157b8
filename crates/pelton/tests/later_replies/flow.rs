//! The bound on pending replies, and pausing.

use std::io::{ErrorKind, Write};
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self};
use std::thread;
use std::time::Duration;

use pelton::Pool;
use pelton_testing::{On, on_every_engine, run_with};

use super::{Client, clerks, pool, soon};

on_every_engine![
    pending_replies_are_bounded,
    pending_replies_are_bounded_on_a_pool,
    client_with_too_many_pending_replies_is_not_read,
    client_with_too_many_pending_replies_is_not_read_on_a_pool,
    a_protocol_pauses_and_is_resumed,
    a_protocol_pauses_and_is_resumed_on_a_pool,
    a_peer_pauses_and_resumes,
];

fn pending_is_bounded(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 3);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send(&"slot\n".repeat(10));
        let mut pending: Vec<_> = (0..3).map(|_| soon(&desk.slots).1).collect();
        // Answers out of order make no room: they are held, too.
        pending.remove(1).send("second".to_owned());
        assert_eq!(desk.slots.recv_timeout(Duration::from_millis(50)).map(drop), Err(mpsc::RecvTimeoutError::Timeout));
        assert_eq!(desk.processed.load(Ordering::SeqCst), 3);
        pending.remove(0).send("first".to_owned());
        assert_eq!(client.lines(2), ["first", "second"]);
        pending.extend((0..2).map(|_| soon(&desk.slots).1));
        assert_eq!(desk.processed.load(Ordering::SeqCst), 5);
        for slot in pending {
            slot.send("more".to_owned());
        }
        for _ in 5..10 {
            soon(&desk.slots).1.send("last".to_owned());
        }
        assert_eq!(client.lines(3 + 5)[7], "last");
    });
}

fn pending_replies_are_bounded(on: On) {
    pending_is_bounded(on, None);
}

fn pending_replies_are_bounded_on_a_pool(on: On) {
    pending_is_bounded(on, Some(&pool()));
}

/// More than the kernel's buffers hold.
const FLOOD: usize = 64 << 20;

fn reading_stops(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 1);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        client.send("slot\n");
        let (_, slot) = soon(&desk.slots);
        let stream = client.0.get_mut();
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let line = [vec![b'x'; (1 << 20) - 1], vec![b'\n']].concat();
        let mut taken = 0;
        // Ends when no byte was accepted for a while.
        let stuck = loop {
            match stream.write(&line[taken % line.len()..]) {
                Ok(count) if taken + count < FLOOD => taken += count,
                other => break other.map_err(|error| error.kind()),
            }
        };
        assert!(matches!(stuck, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{taken} bytes were accepted");
        slot.send("go on".to_owned());
        assert_eq!(client.line(), "go on");
        client.0.get_mut().set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        // The echo must be read, or the server waits for that.
        let mut writer = client.0.get_ref().try_clone().unwrap();
        let rest = line[taken % line.len()..].to_vec();
        let writing = thread::spawn(move || {
            writer.write_all(&rest).unwrap();
            writer.write_all(b"end\n").unwrap();
        });
        while client.line() != "end" {}
        writing.join().unwrap();
    });
}

fn client_with_too_many_pending_replies_is_not_read(on: On) {
    reading_stops(on, None);
}

fn client_with_too_many_pending_replies_is_not_read_on_a_pool(on: On) {
    reading_stops(on, Some(&pool()));
}

fn pausing(on: On, pool: Option<&Pool>) {
    let (mut reactor, address, desk) = clerks(on, pool, 16);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        let peer = soon(&desk.peers);
        for _ in 0..3 {
            client.send("pause\nafter\nand so on\n");
            assert_eq!(client.line(), "pause");
            client.send("more\n");
            // The loop has handled this push, so it would also have processed the rest.
            peer.push("still there".to_owned()).unwrap();
            assert_eq!(client.line(), "still there");
            assert_eq!(desk.processed.swap(0, Ordering::SeqCst), 1);
            peer.resume();
            assert_eq!(client.lines(3), ["after", "and so on", "more"]);
            desk.processed.store(0, Ordering::SeqCst);
        }
    });
}

fn a_protocol_pauses_and_is_resumed(on: On) {
    pausing(on, None);
}

fn a_protocol_pauses_and_is_resumed_on_a_pool(on: On) {
    pausing(on, Some(&pool()));
}

fn a_peer_pauses_and_resumes(on: On) {
    let (mut reactor, address, desk) = clerks(on, None, 16);
    run_with(&mut reactor, move || {
        let mut client = Client::new(address);
        let peer = soon(&desk.peers);
        peer.pause();
        peer.push("paused".to_owned()).unwrap();
        assert_eq!(client.line(), "paused");
        client.send("held\n");
        client.0.get_ref().shutdown(Shutdown::Write).unwrap();
        peer.push("held".to_owned()).unwrap();
        assert_eq!(client.line(), "held");
        assert_eq!(desk.processed.load(Ordering::SeqCst), 0);
        peer.resume();
        assert_eq!(client.rest(), "held\n");
        assert_eq!(soon(&desk.closed), "finished by the other side");
    });
}
