//! Exit codes, in the families of curl's.

use pelton::Reason;
use pelton_http::client::{Error, ErrorKind};
use pelton_tls::TlsError;

pub const WRITE: u8 = 23;
pub const STATUS: u8 = 22;
pub const BAD_RESUME: u8 = 33;
/// The file is not the expected one. curl has no code for this; wget and sha256sum fail with 1.
pub const HASH: u8 = 1;

/// The exit code for an error.
pub fn of(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::BadUrl(_) | ErrorKind::BadRequest(_) => 3,
        ErrorKind::Proxy(_) => 97,
        ErrorKind::Tls(_) => 35,
        ErrorKind::Connect(reason) => of_connecting(reason),
        ErrorKind::TimedOut { .. } => 28,
        ErrorKind::Ended { begun: false, .. } => 52,
        ErrorKind::Ended { .. } => 18,
        ErrorKind::Malformed(_) => 8,
        ErrorKind::TooLarge { .. } => 63,
        ErrorKind::Undecodable(_) => 61,
        ErrorKind::Redirect { .. } => 47,
        ErrorKind::Status(_) => STATUS,
        _ => 56,
    }
}

fn of_connecting(reason: &Reason) -> u8 {
    match reason {
        Reason::Unresolved(_) => 6,
        Reason::TimedOut { .. } => 28,
        Reason::Layer(_) => match TlsError::of(reason).and_then(TlsError::certificate) {
            Some(_) => 60,
            None => 35,
        },
        _ => 7,
    }
}
