//! Descriptors that Python code names or owns. Rust cannot know whether they are still open.

use std::cell::Cell;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use pelton::DescriptorOwner;
use pyo3::prelude::*;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};

use crate::call::{Call, clear_raised, has_raised};
use crate::lock;
use crate::slot::{Shared, Slot};

/// Returns a descriptor that Python code has named. It may be closed, or be another file by now.
pub fn named<'a>(fd: RawFd) -> io::Result<BorrowedFd<'a>> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is not -1. It is used for system calls, which fail if the descriptor is closed. Python code can do the same with
    // any number.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Takes over a descriptor that Python code gives away. Returns `None` if it is not a number of one.
pub fn take_over(fd: i64) -> Option<OwnedFd> {
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the number is not -1. Python code says that nothing else owns it, and can close any number itself.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Closes a descriptor that Python code may have closed already: dropping it would then abort a debug build.
pub fn close(own: OwnedFd) {
    // SAFETY: the number was owned here.
    unsafe { libc::close(own.into_raw_fd()) };
}

/// The descriptor of a transport, as the reactor borrows it. The transport keeps it up to date.
pub struct Lent {
    /// -1 after the transport has closed it.
    number: Cell<RawFd>,
    /// The socket object that owns the descriptor, if there is one, and the method that returns its number. The program may close it.
    sock: Slot,
    fileno: Slot,
}

owns!(Lent { sock, fileno });

impl Lent {
    /// Lends a descriptor.
    pub fn new(number: RawFd) -> Shared<Lent> {
        Shared::new(Lent { number: Cell::new(number), sock: Slot::empty(), fileno: Slot::empty() })
    }

    /// Sets the socket object that owns the descriptor from now on, and the method, written in C, that returns its number.
    pub fn set_socket<'py>(&self, sock: &Bound<'py, PyAny>, fileno: &Bound<'py, PyAny>) {
        self.fileno.set(fileno.clone());
        self.sock.set(sock.clone());
    }

    /// Notes that the descriptor is closed, or about to be.
    pub fn end(&self, py: Python<'_>) {
        self.number.set(-1);
        drop((self.sock.take(py), self.fileno.take(py)));
    }
}

/// The reactor's reference to a lent descriptor.
pub struct Borrower(Rc<Lent>);

impl Borrower {
    /// Borrows the descriptor.
    pub fn of(lent: &Shared<Lent>) -> Borrower {
        Borrower(lent.rc().clone())
    }
}

// SAFETY: a loop's reactor is used, and dropped, only with the interpreter lock held, as are transports. So no two threads use it at once,
// and the reference count does not need to be atomic.
unsafe impl Send for Borrower {}

impl DescriptorOwner for Borrower {
    #[inline]
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let number = if self.0.sock.is_empty() { self.0.number.get() } else { lock::held(|py| self.0.ask(py)) };
        // SAFETY: the number is that of an open descriptor: the transport closes its own only after `end`, and a socket object that was
        // closed returns -1.
        (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })
    }
}

impl Lent {
    /// Returns the descriptor of the socket object, or -1.
    fn ask(&self, py: Python<'_>) -> RawFd {
        match (self.fileno.get(py), self.sock.get(py)) {
            (Some(fileno), Some(sock)) => number_of(&sock, &fileno),
            _ => -1,
        }
    }
}

/// A descriptor of the program, as the reactor borrows it.
pub struct BorrowedFromProgram {
    number: RawFd,
    /// A weak reference to the socket object that owns the descriptor, and the method that returns its number. A pipe has none: its
    /// transport releases it before it is closed.
    socket: Option<(Py<PyWeakrefReference>, Py<PyAny>)>,
}

impl BorrowedFromProgram {
    /// Borrows a descriptor, of a socket object if there is one. `fileno` is a method, written in C, that returns its number.
    pub fn new<'py>(
        number: RawFd,
        socket: Option<&Bound<'py, PyAny>>,
        fileno: &Bound<'py, PyAny>,
    ) -> PyResult<BorrowedFromProgram> {
        let weak = socket.map(PyWeakrefReference::new).transpose()?;
        let socket = weak.map(|weak| (weak.unbind(), fileno.clone().unbind()));
        Ok(BorrowedFromProgram { number, socket })
    }
}

impl DescriptorOwner for BorrowedFromProgram {
    #[inline]
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        if let Some((weak, fileno)) = &self.socket {
            let number = lock::held(|py| weak.bind(py).upgrade().map(|socket| number_of(&socket, fileno.bind(py))))?;
            if number != self.number {
                return None;
            }
        }
        // SAFETY: a socket object that was closed returns -1, and the transport of a pipe releases the descriptor before it is closed,
        // so the number is that of an open descriptor.
        Some(unsafe { BorrowedFd::borrow_raw(self.number) })
    }
}

/// Returns the descriptor of a socket object, or -1.
fn number_of<'py>(sock: &Bound<'py, PyAny>, fileno: &Bound<'py, PyAny>) -> RawFd {
    let py = sock.py();
    // The reactor may ask while an exception ends a run.
    let pending = if has_raised(py) { PyErr::take(py) } else { None };
    let number = fileno.call_one(sock).and_then(|number| number.whole()).unwrap_or(-1);
    clear_raised(py);
    if let Some(pending) = pending {
        pending.restore(py);
    }
    RawFd::try_from(number).unwrap_or(-1)
}
