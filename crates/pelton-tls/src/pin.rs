//! Hashes that identify keys and certificates.

use std::fmt;
use std::str::FromStr;

use ring::digest::{SHA256, digest};

/// A SHA-256, which identifies a public key or a certificate. It is written as 64 hexadecimal digits; colons between
/// them are accepted.
///
/// ```
/// use pelton_tls::Pin;
///
/// let pin: Pin = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855".parse()?;
/// assert_eq!(pin, Pin::of(b""));
/// assert_eq!(pin.to_string().parse(), Ok(pin));
/// # Ok::<(), pelton_tls::BadPin>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pin(pub [u8; 32]);

/// The text is not a [`Pin`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a SHA-256: write 64 hexadecimal digits")]
pub struct BadPin(String);

impl Pin {
    /// Returns the hash of `bytes`.
    pub fn of(bytes: &[u8]) -> Pin {
        let hash = digest(&SHA256, bytes);
        let mut pin = Pin([0; 32]);
        pin.0.copy_from_slice(hash.as_ref());
        pin
    }

    /// Returns the hash of a public key in DER (SubjectPublicKeyInfo), which is what pins are usually made of.
    pub fn of_key(spki: &rustls::pki_types::SubjectPublicKeyInfoDer<'_>) -> Pin {
        Pin::of(spki)
    }
}

impl FromStr for Pin {
    type Err = BadPin;

    fn from_str(text: &str) -> Result<Pin, BadPin> {
        let digits: Option<Vec<u8>> =
            text.chars().filter(|letter| *letter != ':').map(|letter| Some(letter.to_digit(16)? as u8)).collect();
        let bad = || BadPin(text.into());
        let (pairs, []) = digits.as_deref().ok_or_else(bad)?.as_chunks() else { return Err(bad()) };
        let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high << 4 | low).collect();
        Ok(Pin(bytes.try_into().map_err(|_| bad())?))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({self})")
    }
}
