//! A reactor that was told to stop but is not dropped: it refuses everything with an error, and nobody waits for it.
//! `docs/turn.md` states the rule; each entry has a test here.

mod connections;
mod on_the_loop;
mod threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, ThreadId};

use pelton::{Address, Chunk, Connection, Datagram, DatagramIo, Datagrams, EventLoop, Exit, Io, Lost, Reply};
use pelton_testing::{DEADLINE, Network};

/// A loop that has run and stopped.
fn stopped(on: impl Network) -> EventLoop {
    let mut reactor = on.reactor();
    reactor.next_tick(|reactor| reactor.stop());
    assert_eq!(reactor.run().unwrap(), Exit::Stopped);
    reactor
}

fn within_deadline<T: std::fmt::Debug>(reply: Reply<T>) -> Result<T, Lost> {
    reply.wait_timeout(DEADLINE).expect("the reply was neither sent nor lost")
}

/// Awaits a future on its own thread; it must be ready before the deadline.
fn outcome<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (done, ready) = channel();
    thread::spawn(move || done.send(futures::executor::block_on(future)));
    match ready.recv_timeout(DEADLINE) {
        Ok(value) => value,
        Err(error) => panic!("the future is not ready: {error}"),
    }
}

/// Counts how often it was dropped, and on which thread.
#[derive(Clone)]
struct Dropped(Arc<AtomicUsize>, ThreadId);

impl Dropped {
    fn here() -> Dropped {
        Dropped(Arc::default(), thread::current().id())
    }

    /// A value that records when it is dropped.
    fn tells(&self) -> impl Send + 'static {
        struct Tells(Dropped);
        impl Drop for Tells {
            fn drop(&mut self) {
                assert_eq!(thread::current().id(), self.0.1, "dropped on another thread than the loop's");
                self.0.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        Tells(self.clone())
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

struct Mute;

impl Connection for Mute {
    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

struct Deaf;

impl Datagrams for Deaf {
    fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}
}

fn loopback() -> Address {
    "127.0.0.1:0".parse().unwrap()
}
