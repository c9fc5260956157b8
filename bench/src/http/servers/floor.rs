//! The floor: a level-triggered epoll loop by hand. One read per event, every head that is there parsed, one write with as many copies of
//! the same answer. No routes, no clock, no limits, no timeouts: the least that can be called serving HTTP.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use httparse::Status;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustix::io::Errno as Error;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send, sockopt};

use super::listener;

/// How many descriptors one wait reports at most; the same as pelton's.
const EVENTS_PER_WAIT: usize = 1024;

/// Connections accepted per event at most.
const ACCEPTS_PER_EVENT: usize = 64;

/// How much one read takes in.
const BUFFER: usize = 64 << 10;

/// As many as pelton allows.
const MOST_FIELDS: usize = 100;

/// As long as pelton's.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\n\
    Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 14\r\n\
    \r\n\
    Hello, world!\n";

struct Floor {
    epoll: Epoll,
    listener: TcpListener,
    /// By descriptor.
    streams: Vec<Option<OwnedFd>>,
    /// The beginnings of heads, by descriptor.
    begun: HashMap<usize, Vec<u8>>,
    /// Answers that found no room, by descriptor. Such a connection is not read from until all of it has gone out.
    waiting: HashMap<usize, Vec<u8>>,
    buffer: Vec<u8>,
    answers: Vec<u8>,
}

/// Whether a connection goes on.
#[derive(PartialEq, Eq)]
enum Stream {
    Open,
    Over,
}

pub fn serve() -> Result<()> {
    let listener = listener()?;
    // Accepted sockets inherit it.
    sockopt::set_tcp_nodelay(&listener, true).context("send without delay")?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll set")?;
    epoll.add(&listener, interest(EpollFlags::EPOLLIN, listener.as_raw_fd() as usize)).context("watch a listener")?;
    let floor = Floor {
        epoll,
        listener,
        streams: Vec::new(),
        begun: HashMap::new(),
        waiting: HashMap::new(),
        buffer: vec![0; BUFFER],
        answers: Vec::new(),
    };
    floor.run()
}

fn interest(flags: EpollFlags, fd: usize) -> EpollEvent {
    EpollEvent::new(flags, fd as u64)
}

/// Appends an answer for every request in `input`. Says how much of it has been answered; `None` if some of it is no request.
fn answer(mut input: &[u8], answers: &mut Vec<u8>) -> Option<usize> {
    let whole = input.len();
    while !input.is_empty() {
        let mut fields = [const { std::mem::MaybeUninit::uninit() }; MOST_FIELDS];
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(input, &mut fields) {
            Ok(Status::Complete(length)) => {
                answers.extend_from_slice(ANSWER);
                input = &input[length..];
            }
            Ok(Status::Partial) => break,
            Err(_) => return None,
        }
    }
    Some(whole - input.len())
}

impl Floor {
    fn run(mut self) -> Result<()> {
        let mut events = vec![EpollEvent::empty(); EVENTS_PER_WAIT];
        let listener = self.listener.as_raw_fd() as usize;
        loop {
            let ready = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
                Err(Errno::EINTR) => 0,
                found => found.context("wait for an epoll set")?,
            };
            for event in &events[..ready] {
                let fd = event.data() as usize;
                if fd == listener {
                    self.accept()?;
                } else if self.serve(fd, event.events()) == Stream::Over {
                    self.streams[fd] = None;
                    self.begun.remove(&fd);
                    self.waiting.remove(&fd);
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        for _ in 0..ACCEPTS_PER_EVENT {
            let stream = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(stream) => stream,
                Err(Error::AGAIN) => break,
                Err(Error::CONNABORTED | Error::INTR) => continue,
                Err(error) => return Err(error).context("accept a connection"),
            };
            let fd = stream.as_raw_fd() as usize;
            self.epoll.add(&stream, interest(EpollFlags::EPOLLIN, fd)).context("watch a connection")?;
            if fd >= self.streams.len() {
                self.streams.resize_with(fd + 1, || None);
            }
            self.streams[fd] = Some(stream);
        }
        Ok(())
    }

    fn serve(&mut self, fd: usize, flags: EpollFlags) -> Stream {
        if flags.contains(EpollFlags::EPOLLOUT) {
            return self.send_waiting(fd);
        }
        let Some(stream) = &self.streams[fd] else { return Stream::Over };
        let count = match recv(stream, &mut self.buffer[..], RecvFlags::empty()) {
            Ok((count, _)) if count > 0 => count,
            Err(Error::AGAIN | Error::INTR) => return Stream::Open,
            Ok(_) | Err(_) => return Stream::Over,
        };
        self.answers.clear();
        let input = &self.buffer[..count];
        if self.begun.is_empty() {
            let Some(used) = answer(input, &mut self.answers) else { return Stream::Over };
            if used < count {
                self.begun.insert(fd, input[used..].to_vec());
            }
        } else {
            let mut begun = self.begun.remove(&fd).unwrap_or_default();
            begun.extend_from_slice(input);
            let Some(used) = answer(&begun, &mut self.answers) else { return Stream::Over };
            if used < begun.len() {
                begun.drain(..used);
                self.begun.insert(fd, begun);
            }
        }
        if self.answers.is_empty() {
            return Stream::Open;
        }
        match send(stream, &self.answers, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == self.answers.len() => Stream::Open,
            Ok(sent) => self.wait_for_room(fd, sent),
            Err(Error::AGAIN | Error::INTR) => self.wait_for_room(fd, 0),
            Err(_) => Stream::Over,
        }
    }

    #[cold]
    fn wait_for_room(&mut self, fd: usize, sent: usize) -> Stream {
        self.waiting.insert(fd, self.answers[sent..].to_vec());
        self.watch(fd, EpollFlags::EPOLLOUT)
    }

    #[cold]
    fn send_waiting(&mut self, fd: usize) -> Stream {
        let (Some(stream), Some(waiting)) = (&self.streams[fd], self.waiting.get_mut(&fd)) else { return Stream::Over };
        match send(stream, waiting, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == waiting.len() => {
                self.waiting.remove(&fd);
                self.watch(fd, EpollFlags::EPOLLIN)
            }
            Ok(sent) => {
                waiting.drain(..sent);
                Stream::Open
            }
            Err(Error::AGAIN | Error::INTR) => Stream::Open,
            Err(_) => Stream::Over,
        }
    }

    fn watch(&self, fd: usize, flags: EpollFlags) -> Stream {
        let Some(stream) = &self.streams[fd] else { return Stream::Over };
        match self.epoll.modify(stream, &mut interest(flags, fd)) {
            Ok(()) => Stream::Open,
            Err(_) => Stream::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_that_is_there_is_answered_once() {
        let request = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut answers = Vec::new();
        let input = [&request[..], request, &request[..10]].concat();
        assert_eq!(answer(&input, &mut answers), Some(2 * request.len()));
        assert_eq!(answers, [ANSWER, ANSWER].concat());
        assert_eq!(answer(b"\0", &mut answers), None);
    }
}
