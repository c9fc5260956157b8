//! Connecting by name, on every engine; and the race between addresses on an engine with a simulated clock and network.

mod attempts;
mod lookups;
mod race;

use std::io::{self};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use pelton::{Chunk, Connection, Io, Reactor, Reason, Resolver};
use pelton_testing::{DEADLINE, Log};

/// Logs its callbacks and the address it was connected to.
#[derive(Clone, Default)]
struct Logging(Log);

impl Connection for Logging {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.0.add(format!("opened: {}", io.peer_address().unwrap()));
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.0.add(format!("received {}", String::from_utf8_lossy(&chunk)));
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.0.add(format!("closed: {reason}"));
    }
}

/// Resolves every name to the same addresses, whatever the port.
fn table(addresses: &[SocketAddr]) -> impl Resolver {
    let addresses = addresses.to_vec();
    move |_: &str, _: u16| Ok(addresses.clone())
}

/// A resolver that answers on request, and counts questions and answers.
struct Slow {
    released: Mutex<Receiver<()>>,
    asked: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
    address: SocketAddr,
}

impl Resolver for Slow {
    fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.released.lock().unwrap().recv_timeout(DEADLINE).map_err(io::Error::other)?;
        self.answered.fetch_add(1, Ordering::SeqCst);
        Ok(vec![self.address])
    }
}

struct Release {
    sender: Sender<()>,
    asked: Arc<AtomicUsize>,
    answered: Arc<AtomicUsize>,
}

fn slow(address: SocketAddr) -> (Slow, Release) {
    let (sender, receiver) = channel();
    let (asked, answered) = (Arc::default(), Arc::default());
    let release = Release { sender, asked: Arc::clone(&asked), answered: Arc::clone(&answered) };
    (Slow { released: Mutex::new(receiver), asked, answered, address }, release)
}

impl Release {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An address where nobody listens.
fn refusing() -> SocketAddr {
    listening().1
}

/// A resolver without a thread: simulated time does not wait for threads.
struct Known(Vec<SocketAddr>);

impl Resolver for Known {
    fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(self.0.clone())
    }

    fn blocks(&self) -> bool {
        false
    }
}
