//! The other side resets the connection, at every stage of its life.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;

use pelton::Address;
use pelton_testing::{On, dial, on_every_engine};

use crate::scene::{Cast, FINISHED, Moment, RESET, Scene, echo, plain, reset};

on_every_engine![
    before_it_is_accepted,
    many_before_they_are_accepted_do_not_delay_others,
    after_it_is_accepted_and_before_any_data,
    in_the_middle_of_a_message,
    with_data_just_before,
    while_output_is_queued,
    after_our_half_close,
    after_its_own_half_close_while_it_is_being_answered,
    right_after_accepting_a_client,
    without_accepting_a_client,
    by_closing_a_unix_socket_without_reading,
];

/// More than the kernel buffers.
const MUCH: usize = 12_000_000;

fn before_it_is_accepted(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(plain);
    reset(dial(address));
    // Some systems accept it and some do not. The last connection shows that its turn has passed.
    let next = dial(address);
    drop(next);
    scene.until(|cast| cast.len() > 0 && cast.over() == cast.len() && cast.story(cast.len() - 1).told.len() == 3);
    let last = scene.cast.len() - 1;
    assert_eq!(scene.told(last), ["opened", "peer finished", FINISHED]);
    if last == 1 {
        assert_eq!(scene.told(0), ["opened", RESET]);
    }
    scene.finish();
}

fn many_before_they_are_accepted_do_not_delay_others(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(echo);
    let mut healthy = Vec::new();
    for number in 0..300u32 {
        let mut stream = dial(address);
        if number % 10 == 0 {
            stream.write_all(&number.to_be_bytes()).unwrap();
            healthy.push((number, stream));
            continue;
        }
        // With unread data, half-closed, and without either.
        match number % 3 {
            0 => stream.write_all(b"never mind").unwrap(),
            1 => stream.shutdown(Shutdown::Write).unwrap(),
            _ => {}
        }
        reset(stream);
    }
    let asked = |cast: &Cast| (0..cast.len()).filter(|number| cast.story(*number).received.len() == 4).count();
    scene.until(|cast| asked(cast) == healthy.len() && cast.over() + healthy.len() == cast.len());
    for (number, stream) in &mut healthy {
        let mut answer = [0; 4];
        // The loop has run until all were answered.
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(u32::from_be_bytes(answer), *number);
    }
    drop(healthy);
    scene.until(|cast| cast.over() == cast.len());
    for number in 0..scene.cast.len() {
        let told = scene.told(number);
        assert!(told.len() >= 2 && [RESET, FINISHED].contains(&told.last().unwrap().as_str()), "{told:?}");
    }
    scene.finish();
}

fn after_it_is_accepted_and_before_any_data(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(plain);
    let peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    reset(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", RESET]);
    scene.finish();
}

fn in_the_middle_of_a_message(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(plain);
    let mut peer = dial(address);
    peer.write_all(b"length: 100, and then not").unwrap();
    scene.until(|cast| cast.received() == 25);
    reset(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "received", RESET]);
    scene.finish();
}

/// Linux keeps data that arrived before a reset and returns it before the error. Other systems discard it.
fn with_data_just_before(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(plain);
    let mut peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    // Two reads.
    peer.write_all(&[b'x'; 100_000]).unwrap();
    reset(peer);
    scene.until(|cast| cast.over() == 1);
    if cfg!(target_os = "linux") {
        assert_eq!(scene.told(0), ["opened", "received", RESET]);
        assert_eq!(scene.cast.received(), 100_000);
    }
    assert_eq!(scene.told(0).last().unwrap(), RESET);
    scene.finish();
}

fn while_output_is_queued(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io, moment| match moment {
        Moment::Opened => io.send_bytes(vec![b'x'; MUCH]).unwrap(),
        other => plain(io, other),
    });
    let mut peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    // A part of it, so that some writes succeed.
    peer.read_exact(&mut [0; 100_000]).unwrap();
    scene.turn();
    let id = scene.cast.ids()[0];
    assert!(scene.reactor.connection(id).unwrap().queued() > 1_000_000);
    reset(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", RESET]);
    assert!(scene.reactor.connection(id).is_none());
    scene.finish();
}

fn after_our_half_close(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io, moment| match moment {
        Moment::Opened => {
            io.send(b"all I have to say").unwrap();
            io.finish();
        }
        other => plain(io, other),
    });
    let mut peer = dial(address);
    scene.until(|cast| cast.len() == 1);
    let mut said = String::new();
    peer.read_to_string(&mut said).unwrap();
    assert_eq!(said, "all I have to say");
    reset(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", RESET]);
    scene.finish();
}

fn after_its_own_half_close_while_it_is_being_answered(on: On) {
    let mut scene = Scene::new(on);
    let address = scene.listen(|io, moment| {
        if let Moment::PeerFinished = moment {
            io.send_bytes(vec![b'x'; MUCH]).unwrap();
            io.close_after_writing();
        }
    });
    let mut peer = dial(address);
    peer.write_all(b"question").unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    scene.until(|cast| cast.len() == 1 && cast.story(0).told.len() == 3);
    peer.read_exact(&mut [0; 100_000]).unwrap();
    reset(peer);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", "received", "peer finished", RESET]);
    scene.finish();
}

fn right_after_accepting_a_client(on: On) {
    let mut scene = Scene::new(on);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    scene.connect(listener.local_addr().unwrap(), plain);
    reset(listener.accept().unwrap().0);
    scene.until(|cast| cast.over() == 1);
    // Whether it was established for a moment depends on when the loop checks.
    let told = scene.told(0);
    assert!(told == ["opened", RESET] || told == [RESET], "{told:?}");
    drop(listener);
    scene.finish();
}

fn without_accepting_a_client(on: On) {
    let mut scene = Scene::new(on);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    scene.connect(listener.local_addr().unwrap(), plain);
    scene.until(|cast| cast.story(0).told.len() == 1);
    // A listener resets unaccepted connections when it is closed.
    drop(listener);
    scene.until(|cast| cast.over() == 1);
    assert_eq!(scene.told(0), ["opened", RESET]);
    scene.finish();
}

fn by_closing_a_unix_socket_without_reading(on: On) {
    let mut scene = Scene::new(on);
    let path = std::env::temp_dir().join(format!("pelton-{}-unread-{}.sock", std::process::id(), on.0));
    let listener = scene.listen_on(&Address::Unix(path.clone()), |io, moment| match moment {
        Moment::Opened => io.send(b"not read").unwrap(),
        other => plain(io, other),
    });
    let peer = UnixStream::connect(&path).unwrap();
    scene.until(|cast| cast.len() == 1);
    drop(peer);
    scene.until(|cast| cast.over() == 1);
    // Linux reports a reset, other systems an end.
    let told = scene.told(0);
    assert!(told == ["opened", RESET] || told == ["opened", "peer finished", FINISHED], "{told:?}");
    assert!(scene.reactor.end(listener));
    scene.is_set_up();
    scene.finish();
}
