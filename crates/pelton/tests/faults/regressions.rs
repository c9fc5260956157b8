//! What once did not hold.

use std::io::{Read, Write};
use std::net::TcpListener;

use pelton::Io;

use crate::common::{On, on_every_engine};
use crate::scene::{Moment, RESET, Scene, dial, echo, plain, reset};

on_every_engine![
    a_client_that_sends_much_at_once_gets_it_back_from_a_peer_that_echoes,
    what_came_before_a_reset_is_delivered_also_when_it_is_being_answered,
    what_came_before_a_reset_is_delivered_also_when_it_came_while_paused_with_output_queued,
    a_half_close_that_meets_a_reset_is_told_as_a_reset,
];

/// If nothing were read while more than the high-water mark waits to be sent, and the peer does not read either until somebody
/// takes its answer, both would wait for each other, for good. It takes nothing more than `cat` at the other end and more
/// data than the kernel's buffers hold, 200 KiB for Unix sockets, some megabytes for TCP.
fn a_client_that_sends_much_at_once_gets_it_back_from_a_peer_that_echoes(on: On) {
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

/// The first read's worth is delivered. Its answer cannot be sent; what else the kernel holds is read all the same.
fn what_came_before_a_reset_is_delivered_also_when_it_is_being_answered(on: On) {
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

/// The same for a connection that has paused, when queued output meets the reset.
fn what_came_before_a_reset_is_delivered_also_when_it_came_while_paused_with_output_queued(on: On) {
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

/// "Not connected" is what the system calls a half-close of a socket that was reset.
fn a_half_close_that_meets_a_reset_is_told_as_a_reset(on: On) {
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
