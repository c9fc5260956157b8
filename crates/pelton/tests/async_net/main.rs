//! Streams, listeners and datagrams in `async` code.

#![forbid(unsafe_code)]

mod connecting;
mod datagrams;
mod ending;
mod reading_and_writing;

use std::thread;

use pelton::net::{Listener, Stream};
use pelton_testing::{Network, localhost};

/// A stream and a plain blocking peer.
async fn accepted<N: Network>(network: N) -> (Stream, pelton_testing::Peer) {
    let listener = Listener::bind(&localhost()).unwrap();
    let address = listener.local_address().unwrap();
    let peer = thread::spawn(move || network.connect_peer(&address));
    let stream = listener.accept().await.unwrap();
    (stream, peer.join().unwrap())
}

/// Two streams connected to each other.
async fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(&localhost()).unwrap();
    let address = listener.local_address().unwrap();
    let (accepted, connected) = futures::join!(listener.accept(), Stream::connect(&address));
    (accepted.unwrap(), connected.unwrap())
}

/// Runs a blocking function on a thread.
async fn off_the_loop<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = async_channel::bounded(1);
    thread::spawn(move || sender.send_blocking(work()));
    receiver.recv().await.unwrap()
}
