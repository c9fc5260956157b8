//! The floor: a hand-written level-triggered epoll loop. One read and one write per event, one buffer for all connections,
//! `EPOLLOUT` only after a write found no room, no statistics, no error recovery, no other sources.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustix::io::Errno as Error;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send, sockopt};

/// Most descriptors that one wait reports; the same as pelton's.
const EVENTS_PER_WAIT: usize = 1024;

/// Most connections accepted per event.
const ACCEPTS_PER_EVENT: usize = 64;

/// How much one read takes in, in bytes.
const BUFFER: usize = 64 << 10;

/// What the loop serves. A type parameter, so that calls are inlined.
pub trait Service {
    /// Returns what to send for this input of a descriptor, which may be nothing; `None` ends the connection.
    fn answer<'a>(&'a mut self, fd: usize, input: &'a [u8]) -> Option<&'a [u8]>;

    /// Called when this descriptor's connection is over.
    fn ended(&mut self, fd: usize);
}

struct Floor<S> {
    service: S,
    epoll: Epoll,
    listener: TcpListener,
    /// By descriptor.
    streams: Vec<Option<OwnedFd>>,
    /// Output that found no room, by descriptor. Such a connection is not read until all of it is sent.
    waiting: HashMap<usize, Vec<u8>>,
    buffer: Vec<u8>,
}

/// Whether a connection stays open.
#[derive(PartialEq, Eq)]
enum Stream {
    Open,
    Over,
}

/// Serves every connection to `listener`, forever.
pub fn serve(listener: TcpListener, service: impl Service) -> Result<()> {
    // Accepted sockets inherit it.
    sockopt::set_tcp_nodelay(&listener, true).context("send without delay")?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("create an epoll set")?;
    epoll.add(&listener, interest(EpollFlags::EPOLLIN, listener.as_raw_fd() as usize)).context("watch a listener")?;
    let (streams, waiting, buffer) = (Vec::new(), HashMap::new(), vec![0; BUFFER]);
    Floor { service, epoll, listener, streams, waiting, buffer }.run()
}

fn interest(flags: EpollFlags, fd: usize) -> EpollEvent {
    EpollEvent::new(flags, fd as u64)
}

impl<S: Service> Floor<S> {
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
                    self.service.ended(fd);
                    if !self.waiting.is_empty() {
                        self.waiting.remove(&fd);
                    }
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
        let Some(answer) = self.service.answer(fd, &self.buffer[..count]) else { return Stream::Over };
        if answer.is_empty() {
            return Stream::Open;
        }
        let sent = match send(stream, answer, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == answer.len() => return Stream::Open,
            Ok(sent) => sent,
            Err(Error::AGAIN | Error::INTR) => 0,
            Err(_) => return Stream::Over,
        };
        self.waiting.insert(fd, answer[sent..].to_vec());
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

    #[cold]
    fn watch(&self, fd: usize, flags: EpollFlags) -> Stream {
        let Some(stream) = &self.streams[fd] else { return Stream::Over };
        match self.epoll.modify(stream, &mut interest(flags, fd)) {
            Ok(()) => Stream::Open,
            Err(_) => Stream::Over,
        }
    }
}
