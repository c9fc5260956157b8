//! mio: edge-triggered, one buffer for all connections.

use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use mio::event::Event;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use super::{Echoed, SHARED_BUFFER, echo_once, is_temporary, listener, send_pending};

struct Connection {
    stream: TcpStream,
    pending: Vec<u8>,
}

struct Server {
    poll: Poll,
    listener: TcpListener,
    /// By descriptor, which is also the token.
    connections: Vec<Option<Connection>>,
    buffer: Vec<u8>,
}

pub fn serve() -> Result<()> {
    let mut listener = TcpListener::from_std(listener()?);
    let poll = Poll::new().context("make a mio poll")?;
    let token = token_of(&listener);
    poll.registry().register(&mut listener, token, Interest::READABLE).context("watch a listener")?;
    Server { poll, listener, connections: Vec::new(), buffer: vec![0; SHARED_BUFFER] }.run()
}

fn token_of(socket: &impl AsRawFd) -> Token {
    Token(socket.as_raw_fd() as usize)
}

impl Server {
    fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        let listener = token_of(&self.listener);
        loop {
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled.context("poll")?,
            }
            for event in &events {
                if event.token() == listener {
                    self.accept()?;
                } else {
                    self.serve(event)?;
                }
            }
        }
    }

    fn accept(&mut self) -> Result<()> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if is_temporary(&error) => return Ok(()),
                Err(error) => return Err(error).context("accept a connection"),
            };
            stream.set_nodelay(true).context("send without delay")?;
            let token = token_of(&stream);
            self.poll.registry().register(&mut stream, token, Interest::READABLE).context("watch a connection")?;
            if token.0 >= self.connections.len() {
                self.connections.resize_with(token.0 + 1, || None);
            }
            self.connections[token.0] = Some(Connection { stream, pending: Vec::new() });
        }
    }

    fn serve(&mut self, event: &Event) -> Result<()> {
        let Token(index) = event.token();
        let Some(Connection { stream, pending }) = &mut self.connections[index] else { return Ok(()) };
        if !pending.is_empty() {
            match send_pending(stream, pending) {
                Echoed::All(_) => {
                    self.poll.registry().reregister(stream, event.token(), Interest::READABLE)?;
                }
                Echoed::Blocked => return Ok(()),
                Echoed::Ended => return self.end(index),
            }
        }
        loop {
            match echo_once(stream, &mut self.buffer, pending) {
                // A read that did not fill the buffer has emptied the socket: its next byte is a new edge.
                Echoed::All(count) if count < self.buffer.len() => return Ok(()),
                Echoed::All(_) => {}
                Echoed::Blocked => {
                    let both = Interest::READABLE | Interest::WRITABLE;
                    return Ok(self.poll.registry().reregister(stream, event.token(), both)?);
                }
                Echoed::Ended => return self.end(index),
            }
        }
    }

    fn end(&mut self, index: usize) -> Result<()> {
        if let Some(mut connection) = self.connections[index].take() {
            self.poll.registry().deregister(&mut connection.stream)?;
        }
        Ok(())
    }
}
