//! Manual listeners, datagram sockets and pipes: the caller decides when to take something in. Manual stream sockets are in
//! `tests/connections`. Owners that close a borrowed descriptor early are tested with the engine alone, in `pelton-os`.

mod datagrams;
mod listeners;
mod pipes;

use std::os::fd::AsFd;

use rustix::fs::{OFlags, fcntl_getfl};

fn is_blocking(fd: impl AsFd) -> bool {
    !fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK)
}
