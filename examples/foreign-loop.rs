//! The reactor inside somebody else's loop: a program's own `poll` loop.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin foreign-loop
//! the program reads 'a'
//! the reactor's timer fires
//! the program reads 'b'
//! the reactor's timer fires
//! the program reads 'c'
//! the reactor's timer fires
//! the reactor was stopped by another thread
//! ```
//!
//! This takes three things: wait for the reactor's descriptor along with your own, at most until its next deadline,
//! and then turn the reactor without waiting.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use pelton::Reactor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    reactor.every(Duration::from_millis(100), |_, _| println!("the reactor's timer fires"));

    // The program's own input: bytes from a thread, which finally stops the reactor.
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let handle = reactor.handle();
    let writer = thread::spawn(move || {
        for letter in b'a'..=b'c' {
            theirs.write_all(&[letter])?;
            thread::sleep(Duration::from_millis(120));
        }
        handle.stop();
        std::io::Result::Ok(theirs)
    });

    while !reactor.stopped() {
        // Call this right before the wait: from here on, a post from another thread makes the descriptor readable. `None`
        // means that only events bring work; a time in the past means that there is work already.
        let timeout = match reactor.next_deadline() {
            Some(deadline) => Some(Timespec::try_from(deadline - reactor.clock())?),
            None => None,
        };
        let descriptor = reactor.as_fd().ok_or("this engine has no descriptor; epoll and kqueue have one")?;
        let mut waits = [PollFd::new(&ours, PollFlags::IN), PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if waits[0].revents().contains(PollFlags::IN) {
            let mut byte = [0];
            ours.read_exact(&mut byte)?;
            println!("the program reads {:?}", char::from(byte[0]));
        }
        // It does not matter what ended the wait: a turn with nothing to do is cheap.
        reactor.turn(Some(Duration::ZERO))?;
    }
    println!("the reactor was stopped by another thread");
    reactor.shutdown()?;
    writer.join().map_err(|_| "the writer panicked")??;
    Ok(())
}
