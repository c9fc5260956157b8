//! Multicast and broadcast.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pelton::{Address, DatagramOptions, MulticastInterface};
use pelton_testing::{Log, On, localhost, on_every_engine, run_until};

use super::{bind, internet, local, logging};

on_every_engine![
    multicast_reaches_its_members_until_they_leave,
    multicast_over_v6_reaches_its_members,
    broadcast_has_to_be_allowed,
];

/// A group for this test only: tests run in parallel and receive each other's multicast.
fn group(on: On) -> Ipv4Addr {
    let engine = pelton::EngineKind::ALL.iter().position(|kind| *kind == on.0).unwrap() as u8;
    let process = std::process::id().to_be_bytes();
    Ipv4Addr::new(239, 192 + engine, process[2], process[3])
}

fn multicast_reaches_its_members_until_they_leave(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let group = group(on);
    let lo = MulticastInterface::Address(Ipv4Addr::LOCALHOST);
    let options = DatagramOptions::default().reuse_address(true);
    let mut address: Address = "0.0.0.0:0".parse().unwrap();
    let mut members = Vec::new();
    for _ in 0..2 {
        let id = reactor.bind_datagrams_with(&address, &options, logging(&log)).unwrap();
        // The second socket shares the first one's port.
        address = local(&mut reactor, id);
        reactor.datagrams(id).unwrap().join_multicast(group.into(), lo).unwrap();
        members.push(id);
    }
    let to = Address::from(SocketAddr::new(group.into(), internet(&address).port()));
    let (sender, _) = bind(&mut reactor, logging(&log));
    let mut io = reactor.datagrams(sender).unwrap();
    io.set_multicast_interface(lo).unwrap();
    io.set_multicast_ttl(1).unwrap();
    io.send_to(&to, b"to both").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["received to both", "received to both"]);

    reactor.datagrams(members[0]).unwrap().leave_multicast(group.into(), lo).unwrap();
    reactor.datagrams(members[0]).unwrap().close();
    reactor.datagrams(sender).unwrap().send_to(&to, b"to one").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["closed: closed by this side", "received to one"]);

    // Loopback always loops back, so disabling it cannot be observed there.
    let mut io = reactor.datagrams(sender).unwrap();
    for on in [false, true] {
        io.set_multicast_loop(on).unwrap();
        assert_eq!(socket2::SockRef::from(&io.descriptor().unwrap()).multicast_loop_v4().unwrap(), on);
    }
    let error = reactor.datagrams(sender).unwrap().join_multicast(Ipv4Addr::LOCALHOST.into(), lo).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "not a multicast address: {error}");
}

/// The index of an interface with IPv6 multicast, which loopback often lacks.
fn interface_for_v6() -> Option<u32> {
    if cfg!(not(target_os = "linux")) {
        return Some(1);
    }
    let routes = std::fs::read_to_string("/proc/net/ipv6_route").ok()?;
    let multicast = routes.lines().find(|route| route.starts_with("ff000000000000000000000000000000 08"))?;
    let name = multicast.split_whitespace().last()?;
    std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?.trim().parse().ok()
}

fn multicast_over_v6_reaches_its_members(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let Some(interface) = interface_for_v6() else {
        return eprintln!("SKIPPED: no interface of this machine has a route for multicast over IPv6");
    };
    let [.., a, b, c] = group(on).octets();
    let group = Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, a.into(), u16::from_be_bytes([b, c]));
    let interface = MulticastInterface::Index(interface);
    let member = reactor.bind_datagrams(&"[::]:0".parse().unwrap(), logging(&log)).unwrap();
    let port = internet(&local(&mut reactor, member)).port();
    reactor.datagrams(member).unwrap().join_multicast(group.into(), interface).unwrap();
    let sender = reactor.bind_datagrams(&"[::]:0".parse().unwrap(), logging(&log)).unwrap();
    let mut io = reactor.datagrams(sender).unwrap();
    io.set_multicast_interface(interface).unwrap();
    // It stays on this machine, whichever interface it uses.
    io.set_multicast_loop(true).unwrap();
    io.set_multicast_ttl(0).unwrap();
    io.send_to(&SocketAddr::new(IpAddr::V6(group), port).into(), b"to the group").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received to the group"]);
    let named_by_address = MulticastInterface::Address(Ipv4Addr::LOCALHOST);
    assert!(reactor.datagrams(member).unwrap().join_multicast(group.into(), named_by_address).is_err());
}

fn broadcast_has_to_be_allowed(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    // Loopback has a broadcast address, too.
    let receiver = reactor.bind_datagrams(&"0.0.0.0:0".parse().unwrap(), logging(&log)).unwrap();
    let port = internet(&local(&mut reactor, receiver)).port();
    let everybody = Address::from(SocketAddr::new([127, 255, 255, 255].into(), port));
    let (sender, _) = bind(&mut reactor, logging(&log));
    reactor.datagrams(sender).unwrap().send_to(&everybody, b"not allowed").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), [format!("failed, to {everybody}: PermissionDenied")]);
    reactor.datagrams(sender).unwrap().set_broadcast(true).unwrap();
    reactor.datagrams(sender).unwrap().send_to(&everybody, b"allowed").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received allowed"]);
    let options = DatagramOptions::default().broadcast(true);
    let sender = reactor.bind_datagrams_with(&localhost(), &options, logging(&log)).unwrap();
    reactor.datagrams(sender).unwrap().send_to(&everybody, b"from the start").unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["received from the start"]);
}
