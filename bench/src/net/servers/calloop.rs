//! calloop: a source per connection, level-triggered, one buffer for all of them.

use std::cell::RefCell;
use std::io;
use std::net::TcpStream;
use std::rc::Rc;

use anyhow::{Context, Result};
use calloop::generic::Generic;
use calloop::{EventLoop, EventSource, Interest, LoopHandle, Mode, Poll, PostAction, Readiness, Token, TokenFactory};

use super::{Echoed, SHARED_BUFFER, echo_once, is_temporary, listener, send_pending};

type Buffer = Rc<RefCell<Vec<u8>>>;

pub fn serve() -> Result<()> {
    let mut event_loop = EventLoop::<()>::try_new().context("make a calloop loop")?;
    let buffer = Rc::new(RefCell::new(vec![0; SHARED_BUFFER]));
    let handle = event_loop.handle();
    let accepting = Generic::new(listener()?, Interest::READ, Mode::Level);
    let inserted = event_loop.handle().insert_source(accepting, move |_, listener, ()| {
        loop {
            match listener.accept() {
                Ok((stream, _)) => adopt(&handle, stream, buffer.clone())?,
                Err(error) if is_temporary(&error) => return Ok(PostAction::Continue),
                Err(error) => return Err(error),
            }
        }
    });
    inserted.map_err(|refused| refused.error).context("watch a listener")?;
    loop {
        event_loop.dispatch(None, &mut ()).context("dispatch")?;
    }
}

fn adopt(handle: &LoopHandle<()>, stream: TcpStream, buffer: Buffer) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let stream = Generic::new(stream, Interest::READ, Mode::Level);
    let inserted = handle.insert_source(Echo { stream, pending: Vec::new(), buffer }, |(), (), ()| {});
    inserted.map(drop).map_err(|refused| io::Error::other(refused.error))
}

/// A connection. It is a custom source, because only that can change its interest when there is no room to send.
struct Echo {
    stream: Generic<TcpStream>,
    pending: Vec<u8>,
    buffer: Buffer,
}

impl EventSource for Echo {
    type Event = ();
    type Metadata = ();
    type Ret = ();
    type Error = io::Error;

    fn process_events<F>(&mut self, readiness: Readiness, token: Token, _: F) -> io::Result<PostAction>
    where
        F: FnMut((), &mut ()),
    {
        let Self { stream, pending, buffer } = self;
        let mut blocked = false;
        let action = stream.process_events(readiness, token, |_, stream| {
            let mut stream: &TcpStream = stream;
            let echoed = if pending.is_empty() {
                echo_once(&mut stream, &mut buffer.borrow_mut(), pending)
            } else {
                send_pending(&mut stream, pending)
            };
            blocked = echoed == Echoed::Blocked;
            Ok(if echoed == Echoed::Ended { PostAction::Remove } else { PostAction::Continue })
        })?;
        if action == PostAction::Continue && blocked != stream.interest.writable {
            stream.interest = if blocked { Interest::WRITE } else { Interest::READ };
            return Ok(PostAction::Reregister);
        }
        Ok(action)
    }

    fn register(&mut self, poll: &mut Poll, tokens: &mut TokenFactory) -> calloop::Result<()> {
        self.stream.register(poll, tokens)
    }

    fn reregister(&mut self, poll: &mut Poll, tokens: &mut TokenFactory) -> calloop::Result<()> {
        self.stream.reregister(poll, tokens)
    }

    fn unregister(&mut self, poll: &mut Poll) -> calloop::Result<()> {
        self.stream.unregister(poll)
    }
}
