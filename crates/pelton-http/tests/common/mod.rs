//! Helpers for tests of HTTP servers: servers to talk to, and clients that block on other threads. Engines and deadlines come from
//! `pelton-testing`.

#![allow(dead_code, unused_imports, unused_macros, reason = "no test uses all of it")]

pub(crate) mod program;
pub(crate) mod scripted;
pub(crate) mod tree;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use pelton::{EventLoop, Reactor};
use pelton_http::{Handler, Server, Settings};
pub(crate) use pelton_testing::{DEADLINE, On, on_every_engine};

/// Serves HTTP on an engine.
pub(crate) trait Serve {
    /// Serves with the default settings.
    fn serve(self, handler: impl Handler) -> Site;

    /// Serves with these settings.
    fn serve_with(self, handler: impl Handler, settings: Settings) -> Site;

    /// Serves on a reactor that catches panics, as reactors do by default.
    fn serve_catching(self, handler: impl Handler) -> Site;
}

impl Serve for On {
    fn serve(self, handler: impl Handler) -> Site {
        self.serve_with(handler, Settings::default())
    }

    fn serve_with(self, handler: impl Handler, settings: Settings) -> Site {
        Site::new(self.reactor(), handler, settings)
    }

    fn serve_catching(self, handler: impl Handler) -> Site {
        Site::new(self.catching(), handler, Settings::default())
    }
}

/// A server and its event loop.
pub(crate) struct Site {
    pub(crate) reactor: EventLoop,
    pub(crate) server: Server,
    pub(crate) address: String,
}

impl Site {
    pub(crate) fn new(mut reactor: EventLoop, handler: impl Handler, settings: Settings) -> Site {
        let server = Server::with_settings(handler, settings);
        let listener = server.listen(&mut reactor, "127.0.0.1:0").unwrap();
        let address = reactor.listening_on(listener).unwrap().to_string();
        Site { reactor, server, address }
    }

    /// Runs the loop until another thread is done.
    pub(crate) fn run<T: Send + 'static>(&mut self, act: impl FnOnce(String) -> T + Send + 'static) -> T {
        let address = self.address.clone();
        pelton_testing::run_with(&mut self.reactor, move || act(address))
    }

    pub(crate) fn run_until(&mut self, condition: impl FnMut(&mut Reactor) -> bool) {
        pelton_testing::run_until(&mut self.reactor, condition);
    }

    /// Runs the loop while `act` talks to the server over a connection.
    pub(crate) fn with_client<T: Send + 'static>(&mut self, act: impl FnOnce(Client) -> T + Send + 'static) -> T {
        self.run(move |address| act(Client::connect(&address)))
    }

    /// Sends `request`, ends the output, and returns everything up to the end of the connection.
    pub(crate) fn ask(&mut self, request: impl Into<Vec<u8>>) -> String {
        let request = request.into();
        self.with_client(move |mut client| {
            client.send(request);
            client.finish();
            client.read_to_end()
        })
    }

    /// Sends a request with these fields over a new connection, and returns the head and the body of the answer.
    pub(crate) fn request(&mut self, method: &str, target: &str, fields: &[&str]) -> (String, Vec<u8>) {
        let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
        let request = format!("{method} {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n");
        let answer = self.with_client(move |mut client| {
            client.send(request);
            client.read_all()
        });
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        (String::from_utf8(answer[..end].to_vec()).unwrap(), answer[end..].to_vec())
    }
}

/// A blocking connection to a server.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) fn connect(address: &str) -> Client {
        Client(pelton_testing::dial(address))
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// Resets the connection.
    pub(crate) fn reset(self) {
        socket2::SockRef::from(&self.0).set_linger(Some(Duration::ZERO)).unwrap();
    }

    pub(crate) fn finish(&self) {
        // The peer may have closed it already.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Reads up to the end. A reset counts as the end.
    pub(crate) fn read_to_end(&mut self) -> String {
        String::from_utf8_lossy(&self.read_all()).into_owned()
    }

    /// The same, as bytes.
    pub(crate) fn read_all(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buffer = [0; 65536];
        loop {
            match self.0.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => all.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}, after {:?}", String::from_utf8_lossy(&all)),
            }
        }
        all
    }

    /// Reads up to and including `end`.
    pub(crate) fn read_until(&mut self, end: &str) -> String {
        let mut all = Vec::new();
        let mut byte = [0];
        while !all.ends_with(end.as_bytes()) {
            match self.0.read(&mut byte) {
                Ok(1) => all.push(byte[0]),
                outcome => panic!("{outcome:?}, after {:?}", String::from_utf8_lossy(&all)),
            }
        }
        String::from_utf8(all).unwrap()
    }

    pub(crate) fn read_exactly(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Reads the head and the body of the next response, which must have a `Content-Length`.
    pub(crate) fn response(&mut self) -> (String, String) {
        let head = self.read_until("\r\n\r\n");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .map_or(0, |length| length.parse().unwrap());
        (head, String::from_utf8(self.read_exactly(length)).unwrap())
    }
}

/// Returns the answer without its `Date`.
pub(crate) fn undated(answer: &str) -> String {
    let mut kept: String = String::new();
    for line in answer.split_inclusive("\r\n") {
        if !line.starts_with("Date: ") {
            kept.push_str(line);
        }
    }
    kept
}

/// The value of a field in a head.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The statuses of all responses in `answer`.
pub(crate) fn statuses(answer: &str) -> Vec<u16> {
    answer.split("HTTP/1.1 ").skip(1).map(|rest| rest[..3].parse().unwrap()).collect()
}
