//! Things that happen to a connection that does not want to read.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use pelton_testing::{On, dial, on_every_engine};

use crate::scene::{FINISHED, LOCAL, Moment, RESET, Scene, plain, reset};

on_every_engine![
    what_came_before_the_end_is_delivered_first,
    what_came_before_a_reset_is_delivered_first,
    a_hang_up_costs_no_turns,
    a_reset_costs_no_turns_and_shows_when_something_is_sent,
    a_reset_shows_while_output_is_queued,
    closing_ends_it_at_once,
    output_goes_on,
];

/// Two reads' worth, and no more than the kernel takes in while nobody reads.
const SOME: usize = 100_000;
/// More than the kernel takes in on its way.
const MUCH: usize = 12_000_000;

/// A connection that has paused, and its peer.
fn paused(scene: &mut Scene) -> TcpStream {
    let address = scene.listen(|io, moment| match moment {
        Moment::Opened => io.pause(),
        other => plain(io, other),
    });
    let peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    peer
}

fn resume(scene: &mut Scene) {
    let id = scene.cast.ids()[0];
    scene.reactor.connection(id).expect("it is not over").resume();
}

fn what_came_before_the_end_is_delivered_first(on: On) {
    let mut scene = Scene::new(on);
    let mut peer = paused(&mut scene);
    peer.write_all(&[b'x'; SOME]).unwrap();
    drop(peer);
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    assert_eq!(scene.told(0), ["opened"]);
    resume(&mut scene);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "received", "peer finished", FINISHED]);
    assert_eq!(scene.cast.received(), SOME);
    scene.finish();
}

/// Linux keeps what has come in before a reset, and hands it out before the error, so nothing may be lost. Other systems
/// throw it away together with the connection.
fn what_came_before_a_reset_is_delivered_first(on: On) {
    let mut scene = Scene::new(on);
    let mut peer = paused(&mut scene);
    peer.write_all(&[b'x'; SOME]).unwrap();
    reset(peer);
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    assert_eq!(scene.told(0), ["opened"]);
    resume(&mut scene);
    scene.until(|cast| cast.over() == 1);
    if cfg!(target_os = "linux") {
        assert_eq!(scene.told(0), ["opened", "received", RESET]);
        assert_eq!(scene.cast.received(), SOME);
    }
    assert_eq!(scene.told(0).last().unwrap(), RESET);
    scene.finish();
}

fn a_hang_up_costs_no_turns(on: On) {
    let mut scene = Scene::new(on);
    let peer = paused(&mut scene);
    peer.shutdown(Shutdown::Both).unwrap();
    // Both directions at their end is what pollers report whether one asked or not.
    let id = scene.cast.ids()[0];
    scene.reactor.connection(id).unwrap().finish();
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    assert_eq!(scene.told(0), ["opened"]);
    resume(&mut scene);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", FINISHED]);
    drop(peer);
    scene.finish();
}

fn a_reset_costs_no_turns_and_shows_when_something_is_sent(on: On) {
    let mut scene = Scene::new(on);
    reset(paused(&mut scene));
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    assert_eq!(scene.told(0), ["opened"], "nobody looks at a connection that wants nothing");
    let id = scene.cast.ids()[0];
    scene.reactor.connection(id).unwrap().send(b"are you there?").unwrap();
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", RESET]);
    scene.finish();
}

fn a_reset_shows_while_output_is_queued(on: On) {
    let mut scene = Scene::new(on);
    let peer = paused(&mut scene);
    let id = scene.cast.ids()[0];
    scene.reactor.connection(id).unwrap().send_bytes(vec![b'x'; MUCH]).unwrap();
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    reset(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", RESET]);
    scene.finish();
}

fn closing_ends_it_at_once(on: On) {
    let mut scene = Scene::new(on);
    let mut peer = paused(&mut scene);
    peer.write_all(&[b'x'; SOME]).unwrap();
    let id = scene.cast.ids()[0];
    scene.reactor.connection(id).unwrap().close();
    scene.turn();
    assert_eq!(scene.told(0), ["opened", LOCAL]);
    drop(peer);
    scene.finish();
}

fn output_goes_on(on: On) {
    let mut scene = Scene::new(on);
    let mut peer = paused(&mut scene);
    let id = scene.cast.ids()[0];
    let mut io = scene.reactor.connection(id).unwrap();
    io.send_bytes(vec![b'x'; SOME]).unwrap();
    io.close_after_writing();
    scene.until(|cast| cast.over() == 1);
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), SOME);
    drop(peer);
    scene.finish();
}
