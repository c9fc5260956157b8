//! The length of a socket's send queue. Each system has its own way to ask.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Returns the length of the send queue, or `None` if the system cannot tell.
pub(crate) fn length(socket: BorrowedFd<'_>) -> Option<u64> {
    u64::try_from(ask(socket)?).ok()
}

/// `SIOCOUTQ`, which Linux defines as `TIOCOUTQ`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn ask(socket: BorrowedFd<'_>) -> Option<libc::c_int> {
    by_ioctl(socket, libc::TIOCOUTQ)
}

#[cfg(any(target_os = "freebsd", target_os = "netbsd"))]
fn ask(socket: BorrowedFd<'_>) -> Option<libc::c_int> {
    by_ioctl(socket, libc::FIONWRITE)
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd", target_os = "netbsd"))]
fn by_ioctl(
    socket: BorrowedFd<'_>,
    #[cfg(any(target_os = "linux", target_os = "android"))] request: libc::Ioctl,
    #[cfg(not(any(target_os = "linux", target_os = "android")))] request: libc::c_ulong,
) -> Option<libc::c_int> {
    let mut length: libc::c_int = 0;
    // SAFETY: the descriptor is open while it is borrowed. Both requests write one `int` through the pointer, to a local that
    // outlives the call, and read nothing from it.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut length) };
    (outcome == 0).then_some(length)
}

#[cfg(target_vendor = "apple")]
fn ask(socket: BorrowedFd<'_>) -> Option<libc::c_int> {
    let mut length: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open while it is borrowed. The option is an `int`. The system writes at most `size` bytes to
    // a local variable of that size, and the number of bytes written to `size`. Both variables outlive the call.
    let outcome = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_NWRITE, (&raw mut length).cast(), &raw mut size)
    };
    (outcome == 0).then_some(length)
}

/// OpenBSD and DragonFly have no such request.
#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_os = "netbsd",
    target_vendor = "apple"
)))]
fn ask(_: BorrowedFd<'_>) -> Option<libc::c_int> {
    None
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::length;

    /// Waits until the queue has the expected length: acknowledgements take a moment.
    fn until(socket: BorrowedFd<'_>, fits: impl Fn(u64) -> bool) -> u64 {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let length = length(socket).unwrap();
            if fits(length) {
                return length;
            }
            assert!(Instant::now() < deadline, "the length stays at {length}");
            std::thread::yield_now();
        }
    }

    fn falls_as_the_other_side_reads(mut near: impl Write + AsFd, mut far: impl Read) {
        assert_eq!(length(near.as_fd()), Some(0));
        let block = [0; 64 * 1024];
        let mut sent = 0;
        while let Ok(count) = near.write(&block) {
            sent += count;
        }
        let full = until(near.as_fd(), |length| length > 0);
        let mut buffer = vec![0; sent / 2];
        far.read_exact(&mut buffer).unwrap();
        until(near.as_fd(), |length| length < full);
        buffer.resize(sent - sent / 2, 0);
        far.read_exact(&mut buffer).unwrap();
        until(near.as_fd(), |length| length == 0);
    }

    #[test]
    fn the_send_queue_of_tcp_falls_as_the_other_side_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        falls_as_the_other_side_reads(near, far);
    }

    #[test]
    fn the_send_queue_of_a_unix_socket_falls_as_the_other_side_reads() {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        falls_as_the_other_side_reads(near, far);
    }

    #[test]
    fn other_descriptors_have_no_send_queue() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(length(file.as_fd()), None);
    }
}
