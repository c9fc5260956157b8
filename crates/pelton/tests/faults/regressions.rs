//! Regression tests.

use std::io::{Read, Write};
use std::net::TcpListener;

use pelton::Io;
use pelton_testing::{On, dial, on_every_engine};

use crate::scene::{LOCAL, Moment, RESET, Scene, echo, plain, reset};

on_every_engine![
    closing_after_writing_loses_nothing_while_the_peer_sends,
    closing_after_writing_loses_nothing_with_unread_input,
    large_send_to_an_echoing_peer_does_not_deadlock,
    data_before_a_reset_is_delivered_while_answering,
    data_before_a_reset_is_delivered_while_paused_with_queued_output,
    half_close_after_a_reset_is_reported_as_a_reset,
];

/// If reading stopped while more than the high-water mark is queued, and the peer does not read until its own output is read,
/// both would wait for each other forever. It only takes `cat` at the other end and more data than the kernel buffers: 200 KiB
/// for Unix sockets, a few megabytes for TCP.
fn large_send_to_an_echoing_peer_does_not_deadlock(on: On) {
    const MUCH: usize = 16_000_000;
    let mut scene = Scene::new(on);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    scene.connect(listener.local_addr().unwrap(), |io: &mut Io<'_>, moment: Moment<'_>| match moment {
        Moment::Opened => {
            io.send_bytes(vec![b'x'; MUCH]).unwrap();
            io.finish();
        }
        other => plain(io, other),
    });
    let peer = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut piece = [0; 8192];
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            stream.write_all(&piece[..count]).unwrap();
        }
    });
    scene.until(|cast| cast.received() == MUCH);
    peer.join().unwrap();
    scene.finish();
}

/// The first read is delivered. Its answer cannot be sent; the rest of the kernel's buffer is read anyway.
fn data_before_a_reset_is_delivered_while_answering(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(echo);
    let mut peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    peer.write_all(&[b'x'; 100_000]).unwrap();
    reset(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "received", RESET]);
    assert_eq!(scene.cast.received(), 100_000);
    scene.finish();
}

/// The same for a paused connection, when sending queued output fails with the reset.
fn data_before_a_reset_is_delivered_while_paused_with_queued_output(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io, moment| match moment {
        Moment::Opened => {
            io.pause();
            io.send_bytes(vec![b'x'; 12_000_000]).unwrap();
        }
        other => plain(io, other),
    });
    let mut peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    peer.write_all(&[b'x'; 100_000]).unwrap();
    reset(peer);
    scene.turn();
    let id = scene.cast.ids()[0];
    if let Some(mut io) = scene.reactor.connection(id) {
        io.resume();
    }
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "received", RESET]);
    assert_eq!(scene.cast.received(), 100_000);
    scene.finish();
}

/// The system returns "not connected" for a half-close of a socket that was reset.
fn half_close_after_a_reset_is_reported_as_a_reset(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io, moment| match moment {
        Moment::Opened => io.pause(),
        other => plain(io, other),
    });
    let peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    reset(peer);
    let id = scene.cast.ids()[0];
    scene.reactor.connection(id).unwrap().finish();
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", RESET]);
    scene.finish();
}

/// Closing a socket with unread input resets the connection, which discards data that the peer has not read.
fn closing_after_writing_loses_nothing_while_the_peer_sends(on: On) {
    const MUCH: usize = 10_000_000;
    let mut scene = Scene::new(on);
    let address = scene.listen(|io: &mut Io<'_>, moment: Moment<'_>| {
        if let Moment::Opened = moment {
            io.send_bytes(vec![b'x'; MUCH]).unwrap();
            io.close_after_writing();
        }
    });
    let peer = std::thread::spawn(move || {
        let mut stream = dial(address);
        // Before it reads, so that the server notices before it has sent everything, however late the other thread is.
        stream.write_all(b"y").unwrap();
        let mut writer = stream.try_clone().unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let sending = std::thread::spawn(move || {
            while stopped.try_recv().is_err() && writer.write_all(&[b'y'; 1_000]).is_ok() {}
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stop.send(()).unwrap();
        sending.join().unwrap();
        all.len()
    });
    scene.until(|cast| cast.over() == 1);
    assert_eq!(peer.join().unwrap(), MUCH);
    assert_eq!(scene.told(0), ["opened", LOCAL]);
    scene.finish();
}

/// More than one read, of which only the first is examined before the answer.
fn closing_after_writing_loses_nothing_with_unread_input(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io: &mut Io<'_>, moment: Moment<'_>| {
        if let Moment::Received(_) = moment {
            io.send(b"too long").unwrap();
            io.close_after_writing();
        }
    });
    let mut peer = dial(address);
    peer.write_all(&[b'?'; 200_000]).unwrap();
    scene.until(|cast| cast.len() == 1 && !cast.story(0).told.is_empty());
    for _ in 0..10 {
        scene.turn();
    }
    let mut answer = String::new();
    peer.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "too long");
    drop(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "received", LOCAL]);
    scene.finish();
}
