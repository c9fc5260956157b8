//! Allocations, memory and system calls.

use std::process::Command;

use pelton::{PanicPolicy, Reactor};
use pelton_testing::{Echo, Log, child, poll};

use super::{bind, peer, scripted};

#[test]
fn echoed_datagrams_allocate_nothing() {
    let mut reactor = Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap();
    let copying = scripted(&Log::default(), |io, datagram| io.send_to(&datagram.from, &datagram.bytes).unwrap());
    let mut servers = vec![bind(&mut reactor, copying).1];
    // Several, so that received ones are held until they are forwarded.
    servers.extend((0..6).map(|_| bind(&mut reactor, Echo).1));
    let client = peer("127.0.0.1:0");
    client.set_nonblocking(true).unwrap();
    let mut turns = |count| {
        for _ in 0..count {
            for server in servers.iter().cycle().take(20 * servers.len()) {
                client.send_to(b"ping", server).unwrap();
            }
            for _ in 0..20 * servers.len() {
                while client.recv(&mut [0; 10]).is_err() {
                    poll(&mut reactor);
                }
            }
        }
    };
    turns(100);
    assert_eq!(allocation_counter::measure(|| turns(300)).count_total, 0);
}

#[test]
fn closed_datagram_sockets_leave_no_memory() {
    let mut reactor = Reactor::builder().panic_policy(PanicPolicy::Propagate).build().unwrap();
    // Warm up: the first sources and signals allocate once.
    let (id, _) = bind(&mut reactor, Echo);
    reactor.datagrams(id).unwrap().close();
    poll(&mut reactor);
    let left = allocation_counter::measure(|| {
        let (id, address) = bind(&mut reactor, Echo);
        let client = peer("127.0.0.1:0");
        for _ in 0..100 {
            client.send_to(&[0; 1_000], address).unwrap();
        }
        for _ in 0..100 {
            poll(&mut reactor);
        }
        reactor.datagrams(id).unwrap().close();
        poll(&mut reactor);
    });
    assert!(left.bytes_total > 32 * 65_536, "{left:?}");
    // The list of events has grown, and belongs to the loop.
    assert!(left.bytes_current < 16_384, "{left:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_thousand_each_way_take_far_fewer_system_calls() {
    const COUNT: usize = 1_000;
    const NAME: &str = "cost::a_thousand_each_way_take_far_fewer_system_calls";
    if let Some(name) = child::role() {
        let mut reactor =
            Reactor::builder().engine(name.parse().unwrap()).panic_policy(PanicPolicy::Propagate).build().unwrap();
        let (server, address) = bind(&mut reactor, Echo);
        let client = scripted(&Log::default(), |io, _| *io.reactor().state::<usize>() += 1);
        let client = reactor.connect_datagrams(&address.into(), client).unwrap();
        let mut exchange = |count: usize| {
            for _ in 0..count / 100 {
                *reactor.state::<usize>() = 0;
                for number in 0..100 {
                    reactor.datagrams(client).unwrap().send(&[number]).unwrap();
                }
                reactor.run_until(|reactor| *reactor.state::<usize>() == 100).unwrap();
            }
        };
        exchange(COUNT);
        let _ = rustix::process::getppid();
        exchange(COUNT);
        let _ = rustix::process::getppid();
        reactor.datagrams(server).unwrap().close();
        std::process::exit(0);
    }
    for engine in ["epoll", "poll", "select"] {
        let trace = std::env::temp_dir().join(format!("pelton-{}-datagrams-{engine}.strace", std::process::id()));
        let output = Command::new("strace")
            .args(["-f", "-o", trace.to_str().unwrap()])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(child::CHILD, engine)
            .output()
            .expect("this test needs strace");
        assert!(output.status.success(), "{output:?}");
        let text = std::fs::read_to_string(&trace).unwrap();
        std::fs::remove_file(&trace).unwrap();
        let calls: Vec<&str> = text.split("getppid(").nth(1).expect("the marks").lines().collect();
        let count = |name: &str| calls.iter().filter(|line| line.contains(name)).count();
        // Each datagram is sent and received twice.
        assert!(calls.len() < COUNT / 2, "{engine}: {} calls", calls.len());
        assert!(count("recvmmsg(") < 150 && count("sendmmsg(") < 150, "{engine}: {calls:#?}");
        assert_eq!(count("epoll_ctl("), 0, "{engine}");
    }
}
