//! The floor: a level-triggered epoll loop by hand. One read per event and one write, one buffer for all connections,
//! `EPOLLOUT` only after a write found no room, nothing measured, nothing caught, nobody else to serve.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send, sockopt};

use super::{SHARED_BUFFER, listener};

/// How many descriptors one wait reports at most; the same as pelton's.
const EVENTS_PER_WAIT: usize = 1024;

/// Connections accepted per event at most.
const ACCEPTS_PER_EVENT: usize = 64;

struct Floor {
    epoll: Epoll,
    listener: TcpListener,
    /// By descriptor.
    streams: Vec<Option<OwnedFd>>,
    /// What found no room, by descriptor. Such a connection is not read from until all of it has gone out.
    waiting: HashMap<usize, Vec<u8>>,
    buffer: Vec<u8>,
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
    Floor { epoll, listener, streams: Vec::new(), waiting: HashMap::new(), buffer: vec![0; SHARED_BUFFER] }.run()
}

fn interest(flags: EpollFlags, fd: usize) -> EpollEvent {
    EpollEvent::new(flags, fd as u64)
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
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => continue,
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
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Stream::Open,
            Ok(_) | Err(_) => return Stream::Over,
        };
        match send(stream, &self.buffer[..count], SendFlags::NOSIGNAL) {
            Ok(sent) if sent == count => Stream::Open,
            Ok(sent) => self.wait_for_room(fd, sent, count),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => self.wait_for_room(fd, 0, count),
            Err(_) => Stream::Over,
        }
    }

    #[cold]
    fn wait_for_room(&mut self, fd: usize, sent: usize, count: usize) -> Stream {
        self.waiting.insert(fd, self.buffer[sent..count].to_vec());
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
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Stream::Open,
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
