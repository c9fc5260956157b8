//! Writes responses. The caller has validated names, values and lengths: they come from the server or from
//! [`ResponseFields`](crate::ResponseFields).

use super::{DATE_LENGTH, reason_phrase};

/// How a response announces the end of its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// This many bytes.
    Known(u64),
    /// Chunked.
    Chunked,
    /// Not announced: there is no body, or it ends with the connection.
    Unsaid,
}

/// The `Connection` field of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistence {
    /// None: an HTTP/1.1 connection stays open by default.
    Unsaid,
    /// The connection stays open, which HTTP/1.0 clients must be told.
    KeepAlive,
    /// The connection is closed.
    Close,
    /// The connection switches to another protocol.
    Upgrade,
}

/// Appends the head of a response. `date` and `fields` are complete header lines.
#[inline]
pub fn head(
    out: &mut Vec<u8>,
    status: u16,
    date: Option<&[u8; DATE_LENGTH]>,
    length: Length,
    persistence: Persistence,
    fields: &[u8],
) {
    // Reserve once for the status line, the date, the length and the connection option.
    out.reserve(192 + fields.len());
    status_line(out, status);
    if let Some(date) = date {
        out.extend_from_slice(date);
    }
    match length {
        Length::Known(length) => {
            out.extend_from_slice(b"Content-Length: ");
            out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Length::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        Length::Unsaid => {}
    }
    match persistence {
        Persistence::Unsaid => {}
        Persistence::KeepAlive => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        Persistence::Close => out.extend_from_slice(b"Connection: close\r\n"),
        Persistence::Upgrade => out.extend_from_slice(b"Connection: upgrade\r\n"),
    }
    out.extend_from_slice(fields);
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn status_line(out: &mut Vec<u8>, status: u16) {
    if status == 200 {
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.push(b' ');
    out.extend_from_slice(reason_phrase(status).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// The interim response `100 Continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Appends the size line of a chunk. The data must not be empty, and [`CHUNK_END`] must follow it.
pub fn chunk_start(out: &mut Vec<u8>, length: usize) {
    debug_assert_ne!(length, 0, "an empty chunk would end the body");
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let nibbles = (usize::BITS - length.leading_zeros()).div_ceil(4);
    out.extend((0..nibbles).rev().map(|nibble| DIGITS[(length >> (4 * nibble)) & 15]));
    out.extend_from_slice(b"\r\n");
}

/// Follows the data of a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// Appends the end of a chunked body. `trailers` are complete header lines.
pub fn last_chunk(out: &mut Vec<u8>, trailers: &[u8]) {
    out.extend_from_slice(b"0\r\n");
    out.extend_from_slice(trailers);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_encoded() {
        let mut out = Vec::new();
        head(
            &mut out,
            200,
            Some(b"Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"),
            Length::Known(5),
            Persistence::Unsaid,
            b"A: b\r\n",
        );
        head(&mut out, 404, None, Length::Chunked, Persistence::Close, b"");
        head(&mut out, 299, None, Length::Unsaid, Persistence::KeepAlive, b"");
        let expected = "HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 5\r\nA: b\r\n\r\n\
            HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
            HTTP/1.1 299 \r\nConnection: keep-alive\r\n\r\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        for length in [1, 9, 10, 15, 16, 255, 256, 0x1234_abcd] {
            let mut out = Vec::new();
            chunk_start(&mut out, length);
            assert_eq!(String::from_utf8(out).unwrap(), format!("{length:x}\r\n"));
        }
    }
}
