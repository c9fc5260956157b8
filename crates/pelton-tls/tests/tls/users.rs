//! Code that does not know about TLS, on connections that have it.

use std::time::Duration;

use pelton::codec::Lines;
use pelton::{ListenOptions, Pool, Protocol, Reactors, Replies, Service, Sharing};
use pelton_testing::{Network, On, listen, localhost, on_every_network};

use super::*;

on_every_network![
    a_codec_and_a_protocol_work_over_tls,
    a_protocol_on_a_pool_works_over_tls;
    with_a_kernel: several_reactors_share_a_configuration, a_connection_moves_before_its_handshake,
];

/// Answers each line in capitals.
struct Shout;

impl Protocol for Shout {
    type Message = String;

    fn process(&mut self, line: String, replies: &mut Replies<String>) {
        replies.send(line.to_uppercase());
    }
}

/// Sends two lines, finishes, and reads the answers up to the closing message.
fn shouts(mut stream: BlockingClient) {
    stream.write_all(b"one\ntwo\n").unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    assert_eq!(back, "ONE\nTWO\n");
}

fn a_codec_and_a_protocol_work_over_tls(on: impl Network) {
    let (mut reactor, tls) = (on.reactor(), server());
    let mut serve = pelton::serve(Lines::new, || Shout);
    let address = listen(&mut reactor, move |reactor| tls.wrap(serve(reactor)));
    with_client(&mut reactor, on, &address, blocking_config(), shouts);
    run_out(&mut reactor);
}

fn a_protocol_on_a_pool_works_over_tls(on: impl Network) {
    let (mut reactor, tls) = (on.reactor(), server());
    let pool = Pool::builder().workers(2).build().unwrap();
    let mut serve = pelton::serve(Lines::new, || Shout).on(&pool);
    let address = listen(&mut reactor, move |reactor| tls.wrap(serve(reactor)));
    with_client(&mut reactor, on, &address, blocking_config(), shouts);
    run_out(&mut reactor);
}

fn several_reactors_share_a_configuration(on: On) {
    for sharing in [Sharing::default(), Sharing::HandOver] {
        let reactors = Reactors::start(2, move |_| on.builder(), |_, _| Ok(())).unwrap();
        let tls = server();
        let shared = tls.clone();
        let serve = move |_: &mut Reactor| shared.wrap(pelton_testing::Echo);
        let address = reactors.listen(&localhost(), sharing, &ListenOptions::default(), serve).unwrap();
        let config = Arc::new(blocking_config());
        for _ in 0..4 {
            let mut stream = blocking_client(Peer::new(pelton_testing::dial(&address)), Arc::clone(&config));
            assert_eq!(exchange(&mut stream, b"hello"), b"hello");
        }
        assert_eq!((tls.stats().completed, tls.stats().resumed), (4, 3), "any loop resumes a session of another");
        reactors.drain(Duration::from_secs(10));
        reactors.join();
    }
}

/// Moves its connection to another reactor before TLS begins.
struct Moves {
    to: pelton::Handle,
    tls: Server,
}

impl Connection for Moves {
    fn opened(&mut self, io: &mut Io<'_>) {
        let tls = self.tls.clone();
        io.move_to(&self.to, move |_| tls.wrap(pelton_testing::Echo)).unwrap();
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {
        panic!("the other reactor receives");
    }
}

fn a_connection_moves_before_its_handshake(on: On) {
    let (mut reactor, tls) = (on.reactor(), server());
    let reactors = Reactors::start(1, move |_| on.builder(), |_, _| Ok(())).unwrap();
    let to = reactors.handles()[0].clone();
    let address = listen(&mut reactor, move |_| Moves { to: to.clone(), tls: tls.clone() });
    with_client(&mut reactor, on, &address, blocking_config(), |mut stream| {
        assert_eq!(exchange(&mut stream, b"hello"), b"hello");
    });
    assert_eq!(reactor.connection_count(), 0);
    reactors.drain(Duration::from_secs(10));
    reactors.join();
}
