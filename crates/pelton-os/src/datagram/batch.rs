//! Receiving and sending several datagrams per system call, on systems that support it.

use std::io;

use super::DatagramOutbox;
use crate::Address;
use crate::chunk::Buffer;
use crate::endpoint::Endpoint;

/// Datagrams per system call. A call costs as much as a handful of small datagrams, so beyond a few dozen there is little to
/// save, and queued datagrams would wait longer.
pub(crate) const BATCH: usize = 32;

/// A datagram in a receive buffer.
pub(crate) struct Arrived {
    pub(crate) len: usize,
    pub(crate) from: Address,
    /// It was longer than the buffer. The system has dropped the rest.
    pub(crate) cut: bool,
}

impl Endpoint {
    /// Receives one datagram per buffer and lists them in order. An error, which may follow datagrams, comes last. An empty
    /// queue is no error.
    pub(crate) fn receive_datagrams(&self, buffers: &mut [Box<Buffer>], arrived: &mut Vec<io::Result<Arrived>>) {
        let received = self.with_socket(|socket| system::receive(socket, buffers, arrived));
        match received {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => arrived.push(Err(error)),
            Ok(()) => {}
        }
    }

    /// Sends the first datagrams of the outbox and returns how many. An error concerns the first one.
    pub(crate) fn send_datagrams(&self, outbox: &DatagramOutbox) -> io::Result<usize> {
        self.with_socket(|socket| system::send(socket, outbox))
    }

    /// Returns whether the socket would accept more, regardless of the receiver.
    pub(crate) fn has_room(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Ok(fd) = self.fd() else { return false };
        let mut polled = [PollFd::new(&fd, PollFlags::OUT)];
        let found = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        found.is_ok() && polled[0].revents().contains(PollFlags::OUT)
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
use one_by_one as system;
#[cfg(any(target_os = "linux", target_os = "android"))]
use together as system;

/// Linux: `recvmmsg` and `sendmmsg`.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod together {
    use std::io;
    use std::os::fd::AsRawFd;

    use socket2::{SockAddr, SockAddrStorage, Socket};

    use super::{Arrived, BATCH};
    use crate::{Address, DatagramOutbox};

    pub(super) fn receive(
        socket: &Socket,
        buffers: &mut [Box<impl AsMut<[u8]> + ?Sized>],
        arrived: &mut Vec<io::Result<Arrived>>,
    ) -> io::Result<()> {
        let mut names: [SockAddrStorage; BATCH] = std::array::from_fn(|_| SockAddrStorage::zeroed());
        let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: a header consists of numbers and pointers, for which zero is valid.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let parts = headers.iter_mut().zip(&mut pieces).zip(&mut names).zip(buffers);
        let mut count = 0;
        for (((header, piece), name), buffer) in parts {
            let buffer = (**buffer).as_mut();
            *piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            header.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            header.msg_hdr.msg_namelen = size_of::<SockAddrStorage>() as libc::socklen_t;
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: the first `count` headers are filled in. Each points to its own name and piece in the arrays above, and the
        // piece to a buffer that was mutably borrowed. All lengths are correct, and nothing else touches this memory during the
        // call. There is no control buffer and no timeout.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut::<libc::timespec>(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (header, name) in headers.iter().zip(names).take(received) {
            // SAFETY: the storage was zeroed, and the kernel has written an address of this length to it. If
            // the sender has no name, the length is 0 and the family is still zero.
            let from = unsafe { SockAddr::new(name, header.msg_hdr.msg_namelen) };
            arrived.push(Ok(Arrived {
                len: header.msg_len as usize,
                from: Address::from_socket(&from),
                cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            }));
        }
        Ok(())
    }

    pub(super) fn send(socket: &Socket, outbox: &DatagramOutbox) -> io::Result<usize> {
        let mut names: [Option<SockAddr>; BATCH] = [const { None }; BATCH];
        let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: a header consists of numbers and pointers, for which zero is valid.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let parts = headers.iter_mut().zip(&mut pieces).zip(&mut names).zip(outbox.iter());
        let mut count = 0;
        for (((header, piece), name), (to, bytes)) in parts {
            match to.map(Address::to_socket).transpose() {
                Ok(to) => *name = to.map(|(_, to)| to),
                // The system cannot express this address. The datagrams before it are sent first.
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
            *piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
            if let Some(name) = name {
                header.msg_hdr.msg_name = name.as_ptr().cast_mut().cast();
                header.msg_hdr.msg_namelen = name.len();
            }
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        // SAFETY: the first `count` headers are filled in. Each points to its own piece, the piece to bytes in the outbox, and
        // to its own name or none. The kernel only reads these, and they live unchanged until the call returns. It writes to
        // the headers, which are local. There is no control buffer.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                count,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// All systems: one call per datagram.
#[cfg(any(test, not(any(target_os = "linux", target_os = "android"))))]
mod one_by_one {
    use std::io;
    use std::mem::MaybeUninit;

    use socket2::{MaybeUninitSlice, Socket};

    use super::{Arrived, BATCH};
    use crate::{Address, DatagramOutbox};

    /// A borrowed socket may be in blocking mode.
    const SEND_FLAGS: i32 = crate::socket::SEND_FLAGS | libc::MSG_DONTWAIT;

    pub(super) fn receive(
        socket: &Socket,
        buffers: &mut [Box<impl AsMut<[u8]> + ?Sized>],
        arrived: &mut Vec<io::Result<Arrived>>,
    ) -> io::Result<()> {
        for buffer in buffers.iter_mut().take(BATCH) {
            // SAFETY: it is the same memory, and `recv_from_vectored` promises not to write uninitialised bytes to it.
            let bytes = unsafe { &mut *(std::ptr::from_mut::<[u8]>((**buffer).as_mut()) as *mut [MaybeUninit<u8>]) };
            let (len, flags, from) =
                socket.recv_from_vectored_with_flags(&mut [MaybeUninitSlice::new(bytes)], libc::MSG_DONTWAIT)?;
            arrived.push(Ok(Arrived { len, from: Address::from_socket(&from), cut: flags.is_truncated() }));
        }
        Ok(())
    }

    pub(super) fn send(socket: &Socket, outbox: &DatagramOutbox) -> io::Result<usize> {
        let mut count = 0;
        for (to, bytes) in outbox.iter().take(BATCH) {
            let sent = match to.map(Address::to_socket).transpose() {
                Ok(None) => socket.send_with_flags(bytes, SEND_FLAGS),
                Ok(Some((_, to))) => socket.send_to_with_flags(bytes, &to, SEND_FLAGS),
                Err(error) => Err(error),
            };
            match sent {
                Ok(_) => count += 1,
                Err(error) if count == 0 => return Err(error),
                // The next call returns the error first.
                Err(_) => break,
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::DatagramOptions;
    use crate::socket::SystemSocket;

    type Receive = fn(&socket2::Socket, &mut [Box<[u8]>], &mut Vec<io::Result<Arrived>>) -> io::Result<()>;
    type Send = fn(&socket2::Socket, &DatagramOutbox) -> io::Result<usize>;

    /// The implementation for this system, and the portable one.
    const WAYS: [(Receive, Send); 2] = [(system::receive, system::send), (one_by_one::receive, one_by_one::send)];

    fn socket() -> (SystemSocket, Address) {
        let localhost = "127.0.0.1:0".parse().unwrap();
        let socket = SystemSocket::bound_datagrams(&localhost, &DatagramOptions::default()).unwrap();
        let address = crate::stream::local_address(socket.0.as_fd()).unwrap();
        (socket, address)
    }

    fn buffers(count: usize, size: usize) -> Vec<Box<[u8]>> {
        (0..count).map(|_| vec![0; size].into_boxed_slice()).collect()
    }

    #[test]
    fn datagrams_arrive_in_order_with_their_sender_and_the_rest_is_left_for_the_next_call() {
        for (receive, send) in WAYS {
            let ((ours, our_address), (theirs, their_address)) = (socket(), socket());
            let mut outbox = DatagramOutbox::default();
            for number in 0..BATCH + 3 {
                outbox.push_copy(Some(their_address.clone()), &vec![number as u8; number]);
            }
            assert_eq!(send(&ours.0, &outbox).unwrap(), BATCH);
            outbox.advance(BATCH);
            assert_eq!(send(&ours.0, &outbox).unwrap(), 3);
            let mut buffers = buffers(20, 100);
            let mut next = 0;
            for expected in [20, 15] {
                let mut arrived = Vec::new();
                if let Err(error) = receive(&theirs.0, &mut buffers, &mut arrived) {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                }
                assert_eq!(arrived.len(), expected);
                for (arrived, buffer) in arrived.into_iter().zip(&buffers) {
                    let Arrived { len, from, cut } = arrived.unwrap();
                    assert_eq!((&buffer[..len], &from, cut), (&vec![next as u8; next][..], &our_address, false));
                    next += 1;
                }
            }
        }
    }

    #[test]
    fn datagram_that_does_not_fit_is_marked_as_truncated() {
        for (receive, send) in WAYS {
            let ((ours, _), (theirs, their_address)) = (socket(), socket());
            let mut outbox = DatagramOutbox::default();
            outbox.push_copy(Some(their_address.clone()), &[7; 101]);
            outbox.push_copy(Some(their_address), &[8; 100]);
            assert_eq!(send(&ours.0, &outbox).unwrap(), 2);
            let mut arrived = Vec::new();
            receive(&theirs.0, &mut buffers(2, 100), &mut arrived).unwrap();
            let cut: Vec<bool> = arrived.into_iter().map(|arrived| arrived.unwrap().cut).collect();
            assert_eq!(cut, [true, false]);
        }
    }

    #[test]
    fn an_error_concerns_the_first_datagram() {
        for (_, send) in WAYS {
            let ((ours, _), (theirs, address)) = (socket(), socket());
            let mut outbox = DatagramOutbox::default();
            outbox.push_copy(Some(address.clone()), b"fine");
            outbox.push_copy(Some(address.clone()), &[0; 70_000]);
            outbox.push_copy(Some(Address::Unnamed), b"nobody");
            outbox.push_copy(Some(address), b"fine again");
            assert_eq!(send(&ours.0, &outbox).unwrap(), 1);
            outbox.advance(1);
            assert_eq!(send(&ours.0, &outbox).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
            outbox.advance(1);
            assert_eq!(send(&ours.0, &outbox).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            outbox.advance(1);
            assert_eq!(send(&ours.0, &outbox).unwrap(), 1);
            drop(theirs);
        }
    }
}
