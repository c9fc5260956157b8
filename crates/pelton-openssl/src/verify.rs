//! Asks the program about certificates.
//!
//! OpenSSL asks in the middle of a handshake, from C code that a panic must not cross, and that knows nothing of the reactor. So
//! the layer lends the reactor to the call, and panics wait until OpenSSL has returned.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use openssl::x509::{X509Ref, X509StoreContextRef};
use pelton::Reactor;

/// Returns whether a certificate of the peer's chain is acceptable.
pub(crate) type Check = Arc<dyn Fn(&mut Reactor, &X509Ref) -> bool + Send + Sync>;

/// The checks of one connection.
pub(crate) struct Checks {
    check: Option<Check>,
    /// OpenSSL's own verification counts too.
    verifies: bool,
    /// The depths of the chain that the program was asked about, as bits. OpenSSL mentions a certificate once for each of its
    /// errors.
    asked: AtomicU64,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Checks {
    pub(crate) fn new(check: Option<Check>, verifies: bool) -> Checks {
        Checks { check, verifies, asked: AtomicU64::new(0), panic: Mutex::default() }
    }

    /// Called by OpenSSL for each certificate, and for each error. Returns whether to go on.
    pub(crate) fn accepts(&self, verified: bool, context: &mut X509StoreContextRef) -> bool {
        if self.verifies && !verified {
            return false;
        }
        let Some(check) = &self.check else { return true };
        let depth = 1_u64.checked_shl(context.error_depth()).unwrap_or(0);
        if self.asked.fetch_or(depth, Ordering::Relaxed) & depth != 0 {
            return true;
        }
        let Some(certificate) = context.current_cert() else { return false };
        let asked = catch_unwind(AssertUnwindSafe(|| Reactor::with_current(|reactor| check(reactor, certificate))));
        match asked {
            Ok(answer) => answer.unwrap_or(false),
            Err(panic) => {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                false
            }
        }
    }

    /// Returns the panic of a check.
    pub(crate) fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
