//! A network that cuts connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Forwards connections to a Unix socket, and cuts each one after a random number of bytes, in either direction.
pub struct CuttingProxy {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    connections: Arc<AtomicUsize>,
}

impl CuttingProxy {
    /// Starts it. The seed decides where connections are cut.
    pub fn start(to: PathBuf, seed: u64) -> CuttingProxy {
        // A reply to HELLO has about 200 bytes. Some connections are cut inside of it.
        CuttingProxy::start_with(to, seed, 1..1500)
    }

    /// Starts it, and lets as many bytes as this through in each direction.
    pub fn start_with(to: PathBuf, seed: u64, budget: Range<usize>) -> CuttingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, connections) = (stop.clone(), Arc::new(AtomicUsize::new(0)));
        let counted = connections.clone();
        thread::spawn(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            for client in listener.incoming().map_while(Result::ok) {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                let budget = [random.usize(budget.clone()), random.usize(budget.clone())];
                let Ok(server) = UnixStream::connect(&to) else { continue };
                forward(client, server, budget);
            }
        });
        CuttingProxy { address, stop, connections }
    }
}

impl CuttingProxy {
    /// Returns how many connections there were.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn forward(client: TcpStream, server: UnixStream, budget: [usize; 2]) {
    let cut = {
        let (client, server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        move || {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    };
    let cut = Arc::new(cut);
    let (other, done) = (client.try_clone().unwrap(), cut.clone());
    let (mut up, mut down) = (server.try_clone().unwrap(), server);
    thread::spawn(move || {
        pump(&mut &other, &mut up, budget[0]);
        done();
    });
    thread::spawn(move || {
        pump(&mut down, &mut &client, budget[1]);
        cut();
    });
}

fn pump(from: &mut impl Read, to: &mut impl Write, mut budget: usize) {
    let mut bytes = [0; 512];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let count = count.min(budget);
        budget -= count;
        if to.write_all(&bytes[..count]).is_err() || budget == 0 {
            return;
        }
    }
}
