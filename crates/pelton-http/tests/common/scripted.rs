//! Servers that follow a script, on a thread of their own: they may answer wrongly, slowly, or not at all.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use pelton_testing::DEADLINE;

/// A server that calls a function with each connection, one after the other, until it is dropped.
pub(crate) struct Scripted {
    address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// One connection of a [`Scripted`] server.
pub(crate) struct Visitor {
    pub(crate) stream: Arc<TcpStream>,
    /// How many were accepted before it.
    pub(crate) number: usize,
    unread: Vec<u8>,
}

impl Scripted {
    pub(crate) fn new(serve: impl Fn(&mut Visitor) + Send + Sync + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let serve = Arc::new(serve);
        let thread = std::thread::spawn(move || {
            let mut handlers = Vec::new();
            let mut streams: Vec<Weak<TcpStream>> = Vec::new();
            loop {
                let (stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(DEADLINE)).unwrap();
                stream.set_write_timeout(Some(DEADLINE)).unwrap();
                let mut first = [0; 4];
                if stream.peek(&mut first).is_ok_and(|count| &first[..count] == b"STOP") {
                    break;
                }
                let stream = Arc::new(stream);
                streams.push(Arc::downgrade(&stream));
                let number = count.fetch_add(1, Ordering::SeqCst);
                let serve = serve.clone();
                handlers.push(std::thread::spawn(move || {
                    serve(&mut Visitor { stream, number, unread: Vec::new() });
                }));
            }
            // Clients may keep their connections.
            for stream in streams.iter().filter_map(Weak::upgrade) {
                let _ = stream.shutdown(Shutdown::Both);
            }
            for handler in handlers {
                handler.join().unwrap();
            }
        });
        Scripted { address, accepted, thread: Some(thread) }
    }

    /// Answers every request with these bytes, and keeps the connection open.
    pub(crate) fn answering(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Scripted {
        Scripted::new(move |visitor| while visitor.request().is_some() && visitor.send(bytes.as_ref()) {})
    }

    /// Answers the first request of every connection with these bytes, and closes it.
    pub(crate) fn closing_after(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Scripted {
        Scripted::new(move |visitor| {
            if visitor.request().is_some() {
                visitor.send(bytes.as_ref());
            }
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of connections that were accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        let mut stop = TcpStream::connect(self.address).unwrap();
        stop.write_all(b"STOP").unwrap();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server has panicked");
        }
    }
}

impl Visitor {
    /// Reads the head of the next request, and its body if that has a `Content-Length`. `None` at the end.
    pub(crate) fn request(&mut self) -> Option<String> {
        let mut buffer = [0; 65536];
        loop {
            if let Some(end) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.unread[..end]).to_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                let end = end + 4 + length.map_or(0, |length| length.parse::<usize>().unwrap());
                if self.unread.len() >= end {
                    return Some(String::from_utf8(self.unread.drain(..end).collect()).unwrap());
                }
            }
            match (&*self.stream).read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
            }
        }
    }

    /// Sends bytes. Returns whether the client is still there.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        (&*self.stream).write_all(bytes.as_ref()).is_ok()
    }

    /// Waits until the client closes the connection.
    pub(crate) fn wait_for_end(&mut self) {
        let mut buffer = [0; 65536];
        while (&*self.stream).read(&mut buffer).is_ok_and(|count| count > 0) {}
    }

    pub(crate) fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Makes the end of the connection a reset.
    pub(crate) fn reset(&self) {
        socket2::SockRef::from(&*self.stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}
