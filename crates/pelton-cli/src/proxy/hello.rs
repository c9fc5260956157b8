//! Reads the name that a TLS client asks for, without terminating TLS.

use rustls::server::Acceptor;

/// The longest hello: one record, and a second one for hellos with large keys.
pub const MOST: usize = 2 * (16 * 1024 + 5);

/// What the first bytes of a client say.
#[derive(PartialEq, Eq, Debug)]
pub enum Hello {
    /// More bytes are needed.
    Incomplete,
    /// A hello, with the name if it has one.
    Complete(Option<String>),
    /// Not a TLS client.
    NotTls,
}

/// Looks into the first bytes of a stream.
pub fn look(bytes: &[u8]) -> Hello {
    // A record with a handshake message: refuse other protocols at the first byte.
    if bytes.first().is_some_and(|kind| *kind != 0x16) {
        return Hello::NotTls;
    }
    let (mut acceptor, mut rest) = (Acceptor::default(), bytes);
    loop {
        match acceptor.read_tls(&mut rest) {
            Ok(0) => return Hello::Incomplete,
            Ok(_) => {}
            Err(_) => return Hello::NotTls,
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Hello::Complete(accepted.client_hello().server_name().map(str::to_owned)),
            Ok(None) => {}
            Err(_) => return Hello::NotTls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_protocols_are_told_apart_at_the_first_byte() {
        for bytes in [&b"G"[..], b"\x17\x03\x03", b"\0", b"PROXY TCP4"] {
            assert_eq!(look(bytes), Hello::NotTls, "{bytes:?}");
        }
        assert_eq!(look(b"\x16\x03\x01\xff\xffaaaa"), Hello::NotTls, "longer than a record can be");
        assert_eq!(
            (look(b""), look(b"\x16"), look(b"\x16\x03\x01\x02\x00")),
            (Hello::Incomplete, Hello::Incomplete, Hello::Incomplete)
        );
    }
}
