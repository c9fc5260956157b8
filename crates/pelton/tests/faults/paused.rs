//! Events on a paused connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use pelton_testing::{On, dial, on_every_engine};

use crate::scene::{FINISHED, LOCAL, Moment, RESET, Scene, plain, reset};

on_every_engine![
    data_before_the_end_is_delivered_first,
    data_before_a_reset_is_delivered_first,
    a_hang_up_costs_no_turns,
    reset_costs_no_turns_and_is_noticed_on_sending,
    reset_is_noticed_while_output_is_queued,
    closing_ends_it_at_once,
    output_continues,
];

/// Two reads, and no more than the kernel buffers while nobody reads.
const SOME: usize = 100_000;
/// More than the kernel buffers.
const MUCH: usize = 12_000_000;

/// A paused connection and its peer.
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
    scene.reactor.connection(id).expect("the connection has ended").resume();
}

fn data_before_the_end_is_delivered_first(on: On) {
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

/// Linux keeps data that arrived before a reset and returns it before the error, so nothing may be lost. Other systems discard
/// it.
fn data_before_a_reset_is_delivered_first(on: On) {
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
    // Pollers report a hang-up in both directions regardless of the interest.
    let id = scene.cast.ids()[0];
    scene.reactor.connection(id).unwrap().finish();
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    assert_eq!(scene.told(0), ["opened"]);
    resume(&mut scene);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "peer finished", FINISHED]);
    drop(peer);
    scene.finish();
}

fn reset_costs_no_turns_and_is_noticed_on_sending(on: On) {
    let mut scene = Scene::new(on);
    reset(paused(&mut scene));
    let turns = scene.turns_at_rest();
    assert!(turns <= 3, "{turns} turns");
    assert_eq!(scene.told(0), ["opened"], "a connection without interest is not checked");
    let id = scene.cast.ids()[0];
    scene.reactor.connection(id).unwrap().send(b"are you there?").unwrap();
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", RESET]);
    scene.finish();
}

fn reset_is_noticed_while_output_is_queued(on: On) {
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

fn output_continues(on: On) {
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
