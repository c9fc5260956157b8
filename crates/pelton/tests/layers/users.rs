//! Code that does not know about layers, on connections that have them.

use std::io::Write;
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use pelton::codec::Lines;
use pelton::net::{Listener, Stream};
use pelton::{Layered, ListenOptions, Pool, Protocol, Reactor, Reactors, Replies, Service, Sharing, serve, task};
use pelton_testing::{Network, block_on, listen, localhost, on_every_network, pattern};

use super::toys::{BYE, Framer, HELLO, Shift, frame, shift, unframe};
use super::{EchoAll, run_out, with_peer};

on_every_network![
    streams_of_async_code_get_layers,
    a_stream_whose_layer_fails_reports_it,
    a_stream_passes_unread_input_to_its_layer,
    a_codec_and_a_protocol_work_over_layers,
    a_protocol_on_a_pool_works_over_layers;
    with_a_kernel: several_reactors_serve_layered_connections,
];

fn streams_of_async_code_get_layers(on: impl Network) {
    let mut reactor = on.reactor();
    let data = pattern(200_000);
    let sent = data.clone();
    let (there, back) = block_on(&mut reactor, async {
        let listener = Listener::bind(&localhost()).unwrap();
        let address = listener.local_address().unwrap();
        let server = task::spawn(async move {
            let mut stream = listener.accept().await.unwrap();
            stream.push_layer(Framer::default()).await.unwrap();
            stream.push_layer(Shift::default()).await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(&all).await.unwrap();
            stream.close().await.unwrap();
            all
        });
        let mut stream = Stream::connect(&address).await.unwrap();
        stream.push_layer(Framer::default()).await.unwrap();
        stream.push_layer(Shift::default()).await.unwrap();
        stream.write_all(&sent).await.unwrap();
        stream.close().await.unwrap();
        let mut back = Vec::new();
        stream.read_to_end(&mut back).await.unwrap();
        (server.await.unwrap(), back)
    });
    assert!(there == data && back == data);
}

fn a_stream_whose_layer_fails_reports_it(on: impl Network) {
    let mut reactor = on.reactor();
    let listener = on.listen_peer();
    let address = listener.address();
    let peer = std::thread::spawn(move || {
        let mut peer = listener.accept();
        peer.write_all(b"no greeting").unwrap();
        peer.read_all().ok();
    });
    let error = block_on(&mut reactor, async {
        let stream = Stream::connect(&address).await.unwrap();
        stream.push_layer(Framer::default()).await.unwrap_err()
    });
    assert!(error.to_string().ends_with("is no greeting"), "{error}");
    drop(reactor);
    peer.join().unwrap();
}

fn a_stream_passes_unread_input_to_its_layer(on: impl Network) {
    let mut reactor = on.reactor();
    let listener = on.listen_peer();
    let address = listener.address();
    let peer = std::thread::spawn(move || {
        let mut peer = listener.accept();
        peer.write_all(&[b"line\n", HELLO, &frame(b"framed"), BYE].concat()).unwrap();
        peer.read_all().unwrap()
    });
    let text = block_on(&mut reactor, async {
        let mut stream = Stream::connect(&address).await.unwrap();
        let mut line = [0; 5];
        stream.read_exact(&mut line).await.unwrap();
        stream.push_layer(Framer::default()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        stream.write_all(b"answer").await.unwrap();
        stream.close().await.unwrap();
        text
    });
    assert_eq!(text, "framed");
    drop(reactor);
    let back = peer.join().unwrap();
    assert_eq!((&back[..HELLO.len()], unframe(&back[HELLO.len()..])), (HELLO, (b"answer".to_vec(), true)));
}

/// Answers each line in capitals.
struct Shout;

impl Protocol for Shout {
    type Message = String;

    fn process(&mut self, line: String, replies: &mut Replies<String>) {
        replies.send(line.to_uppercase());
    }
}

fn a_codec_and_a_protocol_work_over_layers(on: impl Network) {
    let mut reactor = on.reactor();
    let mut serve = serve(Lines::new, || Shout);
    let address =
        listen(&mut reactor, move |reactor| Layered::new(serve(reactor), |io| io.push_layer(Shift::default())));
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(&shift(b"one\ntwo\n")).unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    assert_eq!(back, shift(b"ONE\nTWO\n"));
    run_out(&mut reactor);
}

fn a_protocol_on_a_pool_works_over_layers(on: impl Network) {
    let mut reactor = on.reactor();
    let pool = Pool::builder().workers(2).build().unwrap();
    let mut serve = serve(Lines::new, || Shout).on(&pool);
    let address =
        listen(&mut reactor, move |reactor| Layered::new(serve(reactor), |io| io.push_layer(Shift::default())));
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(&shift(b"one\ntwo\n")).unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    assert_eq!(back, shift(b"ONE\nTWO\n"));
    run_out(&mut reactor);
}

fn several_reactors_serve_layered_connections(_: pelton_testing::On) {
    for sharing in [Sharing::default(), Sharing::HandOver] {
        let reactors = Reactors::start(2, |_| Reactor::builder(), |_, _| Ok(())).unwrap();
        let options = ListenOptions::default();
        let address = reactors
            .listen(&localhost(), sharing, &options, |_| {
                let handler = EchoAll { kept: Default::default() };
                Layered::new(handler, |io| io.push_layer(Shift::default()))
            })
            .unwrap();
        for _ in 0..4 {
            let mut stream = pelton_testing::dial(&address);
            stream.write_all(&shift(b"hello")).unwrap();
            let mut answer = [0; 5];
            std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
            assert_eq!(&answer[..], shift(b"hello"));
        }
        reactors.drain(Duration::from_secs(10));
        reactors.join();
    }
}
