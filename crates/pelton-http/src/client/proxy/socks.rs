//! Tunnels through SOCKS5 proxies (RFC 1928 and 1929).

use std::net::IpAddr;

use super::Progress;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const CONNECT: u8 = 1;

/// The handshake of a tunnel.
pub(in crate::client) struct Socks {
    state: State,
    host: Box<str>,
    port: u16,
    credentials: Option<Box<str>>,
    /// Received, but not complete.
    input: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Method,
    Authentication,
    Reply,
}

impl Socks {
    pub(super) fn begin(host: &str, port: u16, credentials: Option<&str>, out: &mut Vec<u8>) -> Socks {
        match credentials {
            Some(_) => out.extend_from_slice(&[VERSION, 2, NO_AUTHENTICATION, USER_AND_PASSWORD]),
            None => out.extend_from_slice(&[VERSION, 1, NO_AUTHENTICATION]),
        }
        let credentials = credentials.map(Into::into);
        Socks { state: State::Method, host: host.into(), port, credentials, input: Vec::new() }
    }

    pub(super) fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Progress, String> {
        // The longest reply has a name of 255 bytes.
        if self.input.len() + input.len() > 300 {
            return Err("unexpected data".to_owned());
        }
        self.input.extend_from_slice(input);
        loop {
            let used = match (self.state, self.input.as_slice()) {
                (State::Method, [VERSION, NO_AUTHENTICATION, ..]) => {
                    self.request(out)?;
                    2
                }
                (State::Method, [VERSION, USER_AND_PASSWORD, ..]) if self.credentials.is_some() => {
                    self.authenticate(out)?;
                    2
                }
                (State::Method, [VERSION, 0xff, ..]) => return Err("no acceptable authentication".to_owned()),
                (State::Authentication, [1, 0, ..]) => {
                    self.request(out)?;
                    2
                }
                (State::Authentication, [1, _, ..]) => return Err("authentication failed".to_owned()),
                (State::Reply, [VERSION, reply, ..]) if *reply != 0 => return Err(meaning(*reply).to_owned()),
                (State::Reply, [VERSION, 0, 0, kind, rest @ ..]) => {
                    let length = match (kind, rest.first()) {
                        (1, _) => 4,
                        (4, _) => 16,
                        (3, Some(length)) => 1 + usize::from(*length),
                        (3, None) => return Ok(Progress::More),
                        _ => return Err("not a SOCKS5 reply".to_owned()),
                    };
                    return match rest.len().cmp(&(length + 2)) {
                        std::cmp::Ordering::Less => Ok(Progress::More),
                        std::cmp::Ordering::Equal => Ok(Progress::Open),
                        std::cmp::Ordering::Greater => Err("unexpected data after the reply".to_owned()),
                    };
                }
                (_, [] | [VERSION]) | (State::Authentication, [1]) => return Ok(Progress::More),
                (State::Reply, [VERSION, 0] | [VERSION, 0, 0]) => return Ok(Progress::More),
                _ => return Err("not a SOCKS5 proxy".to_owned()),
            };
            self.input.drain(..used);
        }
    }

    fn authenticate(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let (user, password) = self.credentials.as_deref().and_then(|both| both.split_once(':')).unwrap_or_default();
        out.push(1);
        for part in [user, password] {
            out.push(u8::try_from(part.len()).map_err(|_| "the credentials are too long".to_owned())?);
            out.extend_from_slice(part.as_bytes());
        }
        self.state = State::Authentication;
        Ok(())
    }

    fn request(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        out.extend_from_slice(&[VERSION, CONNECT, 0]);
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => {
                out.push(1);
                out.extend_from_slice(&address.octets());
            }
            Ok(IpAddr::V6(address)) => {
                out.push(4);
                out.extend_from_slice(&address.octets());
            }
            Err(_) => {
                out.push(3);
                out.push(u8::try_from(self.host.len()).map_err(|_| "the host is too long".to_owned())?);
                out.extend_from_slice(self.host.as_bytes());
            }
        }
        out.extend_from_slice(&self.port.to_be_bytes());
        self.state = State::Reply;
        Ok(())
    }
}

fn meaning(reply: u8) -> &'static str {
    match reply {
        1 => "general failure",
        2 => "not allowed by its rules",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "time to live expired",
        7 => "command not supported",
        8 => "address type not supported",
        _ => "unknown failure",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays the proxy's messages byte by byte, and returns what was sent.
    fn play(credentials: Option<&str>, host: &str, messages: &[u8]) -> Result<(Vec<u8>, Progress), String> {
        let mut out = Vec::new();
        let mut socks = Socks::begin(host, 443, credentials, &mut out);
        let mut progress = Progress::More;
        for byte in messages {
            assert_eq!(progress, Progress::More);
            progress = socks.receive(&[*byte], &mut out)?;
        }
        Ok((out, progress))
    }

    #[test]
    fn tunnels_are_opened() {
        let (sent, progress) = play(None, "a.org", b"\x05\x00\x05\x00\x00\x01abcdxy").unwrap();
        assert_eq!(
            (sent.as_slice(), progress),
            (&b"\x05\x01\x00\x05\x01\x00\x03\x05a.org\x01\xbb"[..], Progress::Open)
        );
        let (sent, progress) = play(Some("u:pw"), "127.0.0.1", b"\x05\x02\x01\x00\x05\x00\x00\x03\x01axy").unwrap();
        let expected = b"\x05\x02\x00\x02\x01\x01u\x02pw\x05\x01\x00\x01\x7f\x00\x00\x01\x01\xbb";
        assert_eq!((sent.as_slice(), progress), (&expected[..], Progress::Open));
    }

    #[test]
    fn everything_else_is_refused() {
        for messages in [
            &b"\x04"[..],
            b"HTTP/1.1 400",
            b"\x05\xff",
            b"\x05\x02",
            b"\x05\x01",
            b"\x05\x00\x05\x05",
            b"\x05\x00\x04",
            b"\x05\x00\x05\x00\x01\x01",
            b"\x05\x00\x05\x00\x00\x07a",
        ] {
            assert!(play(None, "a", messages).is_err(), "{messages:?}");
        }
        assert!(play(Some("u:p"), "a", b"\x05\x02\x01\x01").is_err());
        let mut out = Vec::new();
        let mut socks = Socks::begin("a", 1, None, &mut out);
        assert!(socks.receive(b"\x05\x00\x05\x00\x00\x01abcdxyHTTP", &mut out).is_err());
    }
}
