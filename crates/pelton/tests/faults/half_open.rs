//! Half-open connections: the peer sends nothing, not even an end.

use std::net::{SocketAddr, TcpListener, TcpStream};

use pelton::Io;
use pelton_testing::{On, dial, on_every_engine};

use crate::scene::{LOCAL, Moment, Scene, plain};

on_every_engine![
    a_silent_peer_costs_no_turns_and_can_be_closed,
    connection_with_queued_output_can_be_closed,
    a_connection_whose_half_close_is_never_answered_can_be_closed,
    a_connection_that_is_never_established_can_be_closed,
    stopping_the_loop_closes_unestablished_connections,
];

/// More than the kernel buffers.
const MUCH: usize = 12_000_000;

/// Closes the first connection and expects it to end within the turn.
fn close_first(scene: &mut Scene) {
    let id = scene.cast.ids()[0];
    scene.reactor.connection(id).unwrap().close();
    scene.turn();
    assert_eq!(scene.told(0), ["opened", LOCAL]);
}

fn a_silent_peer_costs_no_turns_and_can_be_closed(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(plain);
    let peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    close_first(&mut scene);
    drop(peer);
    scene.finish();
}

fn connection_with_queued_output_can_be_closed(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io, moment| {
        if let Moment::Opened = moment {
            io.send_bytes(vec![b'x'; MUCH]).unwrap();
            io.close_after_writing();
        }
    });
    let peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    assert_eq!(scene.told(0), ["opened"]);
    close_first(&mut scene);
    drop(peer);
    scene.finish();
}

fn a_connection_whose_half_close_is_never_answered_can_be_closed(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io: &mut Io<'_>, moment: Moment<'_>| {
        if let Moment::Opened = moment {
            io.finish();
        }
    });
    let peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    close_first(&mut scene);
    drop(peer);
    scene.finish();
}

/// A listener with a full queue, and the sockets that fill it. On Linux, further connections wait without an answer.
fn full_listener() -> (TcpListener, TcpStream, SocketAddr) {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(0).unwrap();
    let listener = TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    // A queue of 0 holds one connection.
    let filling = TcpStream::connect(address).unwrap();
    (listener, filling, address)
}

fn a_connection_that_is_never_established_can_be_closed(on: On) {
    let mut scene = Scene::new(on);
    let (listener, filling, address) = full_listener();
    let id = scene.connect(address, plain);
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    if cfg!(target_os = "linux") {
        assert_eq!(scene.told(0), [""; 0]);
    }
    let mut io = scene.reactor.connection(id).unwrap();
    io.send(b"queued until it is established").unwrap();
    io.close();
    scene.turn();
    assert_eq!(scene.told(0).last().unwrap(), LOCAL);
    drop((listener, filling));
    scene.finish();
}

fn stopping_the_loop_closes_unestablished_connections(on: On) {
    let mut scene = Scene::new(on);
    let (listener, filling, unanswered) = full_listener();
    let address = scene.listen(plain);
    scene.connect(unanswered, plain);
    let peer = dial(address);
    scene.until(|cast| cast.len() == 2);
    scene.reactor.stop();
    scene.reactor.run().unwrap();
    assert_eq!(scene.told(0).last().unwrap(), LOCAL);
    assert_eq!(scene.told(1), ["opened", LOCAL]);
    drop((listener, filling, peer));
    scene.has_stopped();
}
