//! Tunnels through HTTP proxies (RFC 9110, section 9.3.6).

use super::Progress;
use crate::wire::{Piece, ResponseReader, To};

/// The handshake of a tunnel.
pub(in crate::client) struct Connect {
    reader: ResponseReader,
}

impl Connect {
    pub(super) fn begin(to: &str, authorization: Option<&str>, out: &mut Vec<u8>) -> Connect {
        for part in ["CONNECT ", to, " HTTP/1.1\r\nHost: ", to, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        for part in authorization.into_iter().flat_map(|value| ["Proxy-Authorization: ", value, "\r\n"]) {
            out.extend_from_slice(part.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
        Connect { reader: ResponseReader::default() }
    }

    pub(super) fn receive(&mut self, mut input: &[u8]) -> Result<Progress, String> {
        loop {
            let (used, piece) = self.reader.next(To::Connect, input).map_err(|malformed| malformed.to_string())?;
            input = &input[used..];
            match piece {
                Piece::More => return Ok(Progress::More),
                Piece::Interim(_) => {}
                Piece::Switched(_) if input.is_empty() => return Ok(Progress::Open),
                // The server speaks only when it was spoken to.
                Piece::Switched(_) => return Err("unexpected data after the response".to_owned()),
                Piece::Head(head) => return Err(format!("CONNECT was answered with status {}", head.status())),
                Piece::Data(_) | Piece::End => return Err("unexpected response".to_owned()),
            }
        }
    }
}
