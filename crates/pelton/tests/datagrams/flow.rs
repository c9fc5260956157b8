//! Pausing, full receivers, and the bound on queued datagrams.

use std::os::unix::net::UnixDatagram;

use pelton::{Address, SendError, WaterMarks};
use pelton_testing::{Log, On, activity, on_every_engine, poll, run_until, run_with};

use super::{bind, logging, peer, scratch, scripted, unix_peer};

on_every_engine![
    a_paused_socket_delivers_nothing_and_costs_nothing_and_loses_nothing,
    full_receiver_is_waited_for_only_if_connected,
    queue_is_bounded_and_writable_is_called,
];

fn a_paused_socket_delivers_nothing_and_costs_nothing_and_loses_nothing(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let seen = log.clone();
    // Pauses after each datagram: the rest of the batch must wait.
    let handler = scripted(&log, move |io, datagram| {
        seen.add(String::from_utf8_lossy(&datagram.bytes));
        io.pause();
        assert!(io.is_paused());
    });
    let (id, address) = bind(&mut reactor, handler);
    let sender = peer("127.0.0.1:0");
    for number in 0..20 {
        sender.send_to(number.to_string().as_bytes(), address).unwrap();
    }
    for number in 0..20 {
        run_until(&mut reactor, |_| !log.is_empty());
        assert_eq!(log.take(), [number.to_string()]);
        if number == 10 {
            let (turns, calls) = activity(&mut reactor, &log);
            assert!(turns <= 3 && calls == 0, "{turns} turns, {calls} calls");
        }
        reactor.datagrams(id).unwrap().resume();
    }
}

fn full_receiver_is_waited_for_only_if_connected(on: On) {
    const COUNT: usize = 1_000;
    let path = scratch(on, "full.sock");
    let mut reactor = on.reactor();
    let log = Log::default();
    // Nobody reads yet, and the kernel buffers a few.
    let receiver = unix_peer(UnixDatagram::bind(&path).unwrap());
    let connected = reactor.connect_datagrams(&Address::Unix(path.clone()), logging(&log)).unwrap();
    for number in 0..COUNT {
        reactor.datagrams(connected).unwrap().send(number.to_string().as_bytes()).unwrap();
    }
    let (turns, calls) = activity(&mut reactor, &log);
    assert!(turns <= 3 && calls == 0, "{turns} turns, {calls} calls: {:?}", log.take());
    assert!(reactor.datagrams(connected).unwrap().queued() > 0);

    // An unconnected socket may send to others, which should not wait.
    let other = scratch(on, "other.sock");
    let other_receiver = unix_peer(UnixDatagram::bind(&other).unwrap());
    let free = reactor.bind_datagrams(&Address::Unnamed, logging(&log)).unwrap();
    let mut io = reactor.datagrams(free).unwrap();
    io.send_to(&Address::Unix(path.clone()), b"no room").unwrap();
    io.send_to(&Address::Unix(other.clone()), b"room").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("failed, to unix:{}: WouldBlock", path.display())]);
    let mut bytes = [0; 10];
    assert_eq!(other_receiver.recv(&mut bytes).unwrap(), 4);

    run_with(&mut reactor, move || {
        for number in 0..COUNT {
            let count = receiver.recv(&mut bytes).unwrap();
            assert_eq!(bytes[..count], *number.to_string().as_bytes());
        }
    });
    assert_eq!(reactor.datagrams(connected).unwrap().queued(), 0);
    assert_eq!(log.take(), ["writable"], "the queue was above the high-water mark");
    for path in [path, other] {
        std::fs::remove_file(path).unwrap();
    }
}

fn queue_is_bounded_and_writable_is_called(on: On) {
    let path = scratch(on, "bounded.sock");
    let mut reactor = on.reactor();
    let log = Log::default();
    let receiver = unix_peer(UnixDatagram::bind(&path).unwrap());
    let id = reactor.connect_datagrams(&Address::Unix(path.clone()), logging(&log)).unwrap();
    let mut io = reactor.datagrams(id).unwrap();
    io.set_water_marks(WaterMarks { low: 10_000, high: 100_000, most: 1_000_000 });
    let mut sent = 0;
    let error = loop {
        match io.send(&[0; 1_000]) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SendError::Full { bytes: 1_000, queued: 900_000.., most: 1_000_000 }), "{error}");
    assert!((500..1_000).contains(&sent), "{sent}");
    // Empty datagrams take up memory, too.
    let empty = (0..1_000_000).take_while(|_| io.send(b"").is_ok()).count();
    assert!(empty < 100, "{empty}");
    assert!(reactor.queued() > 900_000);
    poll(&mut reactor);
    assert_eq!(log.len(), 0);
    let path_again = path.clone();
    run_with(&mut reactor, move || {
        for _ in 0..sent + empty {
            receiver.recv(&mut [0; 1_000]).unwrap();
        }
        std::fs::remove_file(path_again).unwrap();
    });
    assert_eq!(log.take(), ["writable"]);
    assert_eq!((reactor.queued(), reactor.datagrams(id).unwrap().queued()), (0, 0));
}
