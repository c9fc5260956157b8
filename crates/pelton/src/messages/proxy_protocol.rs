//! The PROXY protocol: a header with which a proxy tells a server who its client is.
//!
//! The header is sent once, before anything else, in one of two forms: a line of text (version 1) or a binary block
//! (version 2). A server must accept it only from proxies that it trusts, because anybody can send one.
//!
//! ```
//! use pelton::proxy_protocol::{Header, Version};
//!
//! let (client, server) = ("192.0.2.7:4711".parse()?, "198.51.100.1:443".parse()?);
//! let sent = Header::of(client, server).encode(Version::V1);
//! assert_eq!(sent, b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n");
//! let received = [&sent[..], b"GET / HTTP/1.1"].concat();
//! let (header, length) = Header::parse(&received)?.expect("it is complete");
//! assert_eq!((header.source(), length), (Some(client), sent.len()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest line of version 1, with its end.
const MOST_V1: usize = 107;

/// The longest header that [`Header::parse`] accepts. Version 2 allows 65,551 bytes, most of them extensions that
/// nobody sends.
pub const MOST: usize = 4096;

/// The first bytes of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The first bytes of version 1.
const PREFIX: &[u8] = b"PROXY ";

/// The length of the fixed part of version 2.
const FIXED: usize = 16;

const COMMAND_LOCAL: u8 = 0x20;
const COMMAND_PROXY: u8 = 0x21;
const STREAM_V4: u8 = 0x11;
const STREAM_V6: u8 = 0x21;
const UNSPECIFIED: u8 = 0x00;

/// The form of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// A line of text.
    V1,
    /// A binary block.
    V2,
}

/// What a header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The client and the address that it connected to, if the proxy knows them.
    addresses: Option<(SocketAddr, SocketAddr)>,
}

/// The reason why bytes are not a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadHeader {
    /// They begin like neither version.
    #[error("not a PROXY header")]
    NotAHeader,
    /// The header is longer than [`MOST`], or than version 1 allows.
    #[error("the PROXY header is too long")]
    TooLong,
    /// The header breaks a rule of its version.
    #[error("the PROXY header is malformed: {0}")]
    Malformed(&'static str),
}

impl Header {
    /// Makes a header that names a client and the address that it connected to.
    pub fn of(source: SocketAddr, destination: SocketAddr) -> Header {
        let (source, destination) = (plain(source), plain(destination));
        // A header has addresses of one family only.
        let same = source.is_ipv4() == destination.is_ipv4();
        Header { addresses: same.then_some((source, destination)) }
    }

    /// Makes a header that names nobody: the connection is the proxy's own, or its client has no such address.
    pub fn local() -> Header {
        Header { addresses: None }
    }

    /// Returns the client's address, if the header has one.
    pub fn source(&self) -> Option<SocketAddr> {
        Some(self.addresses?.0)
    }

    /// Returns the address that the client connected to, if the header has one.
    pub fn destination(&self) -> Option<SocketAddr> {
        Some(self.addresses?.1)
    }

    /// Parses the beginning of a stream. Returns the header and its length, or `None` if more bytes are needed.
    ///
    /// # Errors
    ///
    /// As soon as the bytes cannot become a header of either version.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Header, usize)>, BadHeader> {
        if begins(bytes, SIGNATURE) {
            return if bytes.len() < FIXED { Ok(None) } else { parse_v2(bytes) };
        }
        if begins(bytes, PREFIX) {
            return if bytes.len() < PREFIX.len() { Ok(None) } else { parse_v1(bytes) };
        }
        Err(BadHeader::NotAHeader)
    }

    /// Returns the bytes to send before everything else.
    pub fn encode(&self, version: Version) -> Vec<u8> {
        match version {
            Version::V1 => self.encode_v1(),
            Version::V2 => self.encode_v2(),
        }
    }

    fn encode_v1(&self) -> Vec<u8> {
        let Some((source, destination)) = self.addresses else { return b"PROXY UNKNOWN\r\n".to_vec() };
        let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
        let (from, to) = (source.ip(), destination.ip());
        format!("PROXY {family} {from} {to} {} {}\r\n", source.port(), destination.port()).into_bytes()
    }

    fn encode_v2(&self) -> Vec<u8> {
        let mut bytes = SIGNATURE.to_vec();
        let mut block = |command: u8, family: u8, address: &[u8]| {
            bytes.extend_from_slice(&[command, family]);
            bytes.extend_from_slice(&(address.len() as u16).to_be_bytes());
            bytes.extend_from_slice(address);
        };
        let ports = |from: u16, to: u16| [from.to_be_bytes(), to.to_be_bytes()].concat();
        match self.addresses {
            Some((SocketAddr::V4(from), SocketAddr::V4(to))) => {
                let hosts = [from.ip().octets(), to.ip().octets()].concat();
                block(COMMAND_PROXY, STREAM_V4, &[hosts, ports(from.port(), to.port())].concat());
            }
            Some((SocketAddr::V6(from), SocketAddr::V6(to))) => {
                let hosts = [from.ip().octets(), to.ip().octets()].concat();
                block(COMMAND_PROXY, STREAM_V6, &[hosts, ports(from.port(), to.port())].concat());
            }
            _ => block(COMMAND_LOCAL, UNSPECIFIED, &[]),
        }
        bytes
    }
}

/// Returns whether `bytes` begin with `start`, as far as they go.
fn begins(bytes: &[u8], start: &[u8]) -> bool {
    let common = bytes.len().min(start.len());
    bytes[..common] == start[..common]
}

/// An IPv4 address in IPv6 notation, as listeners on `[::]` see it, is an IPv4 address.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), address.port()),
            // Without scope and flow label, which mean nothing to others.
            None => SocketAddr::new(ip.into(), address.port()),
        },
        IpAddr::V4(_) => address,
    }
}

fn parse_v1(bytes: &[u8]) -> Result<Option<(Header, usize)>, BadHeader> {
    let window = &bytes[..bytes.len().min(MOST_V1)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() == MOST_V1 { Err(BadHeader::TooLong) } else { Ok(None) };
    };
    let malformed = |what| Err(BadHeader::Malformed(what));
    let Some(line) = window[..end].strip_suffix(b"\r") else { return malformed("the line does not end with CR LF") };
    let Ok(line) = std::str::from_utf8(&line[PREFIX.len()..]) else { return malformed("not ASCII") };
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return Ok(Some((Header::local(), end + 1)));
    }
    let mut words = line.split(' ');
    let family = words.next();
    let mut address = || -> Option<IpAddr> {
        let word = words.next()?;
        match family? {
            "TCP4" => word.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            "TCP6" => word.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let (Some(from), Some(to)) = (address(), address()) else { return malformed("an address") };
    let (Some(from_port), Some(to_port)) = (words.next().and_then(port), words.next().and_then(port)) else {
        return malformed("a port");
    };
    if words.next().is_some() {
        return malformed("more than two addresses and ports");
    }
    let addresses = (SocketAddr::new(from, from_port), SocketAddr::new(to, to_port));
    Ok(Some((Header { addresses: Some(addresses) }, end + 1)))
}

/// Parses a decimal number without sign or leading zeros.
fn port(word: &str) -> Option<u16> {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_digit()) && (word == "0" || !word.starts_with('0'));
    if is_plain { word.parse().ok() } else { None }
}

fn parse_v2(bytes: &[u8]) -> Result<Option<(Header, usize)>, BadHeader> {
    let malformed = |what| Err(BadHeader::Malformed(what));
    let (command, family) = (bytes[12], bytes[13]);
    if command & 0xF0 != 0x20 {
        return malformed("the version");
    }
    if !matches!(command, COMMAND_LOCAL | COMMAND_PROXY) {
        return malformed("the command");
    }
    if family & 0x0F > 2 || family >> 4 > 3 {
        return malformed("the address family");
    }
    let length = FIXED + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    if length > MOST {
        return Err(BadHeader::TooLong);
    }
    let Some(block) = bytes.get(FIXED..length) else { return Ok(None) };
    // The addresses of a proxy's own connection mean nothing. Other families have no address that is of use here.
    let addresses = match (command, family) {
        (COMMAND_PROXY, STREAM_V4) => match block.first_chunk::<12>() {
            Some([a, b, c, d, e, f, g, h, p, q, r, s]) => Some((
                SocketAddr::new(Ipv4Addr::new(*a, *b, *c, *d).into(), u16::from_be_bytes([*p, *q])),
                SocketAddr::new(Ipv4Addr::new(*e, *f, *g, *h).into(), u16::from_be_bytes([*r, *s])),
            )),
            None => return malformed("the addresses are too short"),
        },
        (COMMAND_PROXY, STREAM_V6) => {
            let host = |at: usize| Some(Ipv6Addr::from(*block.get(at..)?.first_chunk::<16>()?));
            let port = |at: usize| Some(u16::from_be_bytes(*block.get(at..)?.first_chunk::<2>()?));
            match (host(0), host(16), port(32), port(34)) {
                (Some(from), Some(to), Some(from_port), Some(to_port)) => {
                    Some((SocketAddr::new(from.into(), from_port), SocketAddr::new(to.into(), to_port)))
                }
                _ => return malformed("the addresses are too short"),
            }
        }
        _ => None,
    };
    Ok(Some((Header { addresses }, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers() -> Vec<Header> {
        let pair = |a: &str, b: &str| Header::of(a.parse().unwrap(), b.parse().unwrap());
        vec![
            pair("192.0.2.7:4711", "198.51.100.1:443"),
            pair("255.255.255.255:65535", "0.0.0.0:0"),
            pair("[2001:db8::7]:1", "[::1]:65535"),
            pair("[::ffff:192.0.2.7]:9", "198.51.100.1:443"),
            Header::local(),
            pair("192.0.2.7:4711", "[::1]:443"),
        ]
    }

    #[test]
    fn headers_survive_the_way_in_both_versions_however_they_are_split() {
        for header in headers() {
            for version in [Version::V1, Version::V2] {
                let mut bytes = header.encode(version);
                let length = bytes.len();
                bytes.extend_from_slice(b"PROXY what follows\r\n");
                for end in 0..length {
                    assert_eq!(Header::parse(&bytes[..end]), Ok(None), "{header:?} {version:?} {end}");
                }
                assert_eq!(Header::parse(&bytes), Ok(Some((header, length))));
            }
        }
        assert_eq!(headers()[3].source().unwrap().to_string(), "192.0.2.7:9");
        assert_eq!((headers()[5].source(), headers()[4].destination()), (None, None));
    }

    #[test]
    fn bytes_that_cannot_become_a_header_are_refused_at_once() {
        for bytes in
            [&b"G"[..], b"GET / HTTP/1.1", b"PROXX", b"proxy TCP4", b"\r\n\r\n\0\r\nQUIX", b"\x16\x03\x01", b"\n"]
        {
            assert_eq!(Header::parse(bytes), Err(BadHeader::NotAHeader), "{bytes:?}");
        }
    }

    #[test]
    fn version_1_is_strict() {
        for line in [
            "PROXY TCP4 192.0.2.7 198.51.100.1 4711\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443 1\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 4711 65536\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 +4711 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 04711 443\r\n",
            "PROXY TCP4 192.0.2.07 198.51.100.1 4711 443\r\n",
            "PROXY TCP4  192.0.2.7 198.51.100.1 4711 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443 \r\n",
            "PROXY TCP4 ::1 ::1 4711 443\r\n",
            "PROXY TCP6 192.0.2.7 198.51.100.1 4711 443\r\n",
            "PROXY UDP4 192.0.2.7 198.51.100.1 4711 443\r\n",
            "PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\n",
            "PROXY UNKNOWNISH\r\n",
            "PROXY \u{e9}\r\n",
            "PROXY \r\n",
        ] {
            assert!(matches!(Header::parse(line.as_bytes()), Err(BadHeader::Malformed(_))), "{line:?}");
        }
        let unknown = b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n";
        assert_eq!(Header::parse(unknown), Ok(Some((Header::local(), unknown.len()))));
        let endless = [PREFIX, &[b'x'; 200][..]].concat();
        assert_eq!(Header::parse(&endless[..MOST_V1 - 1]), Ok(None));
        assert_eq!(Header::parse(&endless[..MOST_V1]), Err(BadHeader::TooLong));
    }

    #[test]
    fn version_2_is_strict() {
        let block = |command, family, length: u16, rest: &[u8]| {
            [&SIGNATURE[..], &[command, family], &length.to_be_bytes(), rest].concat()
        };
        let malformed =
            |bytes: &[u8]| assert!(matches!(Header::parse(bytes), Err(BadHeader::Malformed(_))), "{bytes:?}");
        malformed(&block(0x11, STREAM_V4, 12, &[0; 12]));
        malformed(&block(0x22, STREAM_V4, 12, &[0; 12]));
        malformed(&block(COMMAND_PROXY, 0x13, 12, &[0; 12]));
        malformed(&block(COMMAND_PROXY, 0x41, 12, &[0; 12]));
        malformed(&block(COMMAND_PROXY, STREAM_V4, 11, &[0; 11]));
        malformed(&block(COMMAND_PROXY, STREAM_V6, 35, &[0; 35]));
        let long = (MOST - FIXED + 1) as u16;
        assert_eq!(Header::parse(&block(COMMAND_PROXY, STREAM_V4, long, &[])), Err(BadHeader::TooLong));
        // Extensions are skipped, and so are the addresses of other families.
        let extended = block(COMMAND_PROXY, STREAM_V4, 20, &[1; 20]);
        assert_eq!(Header::parse(&extended).unwrap().unwrap().1, 36);
        for (command, family) in [(COMMAND_LOCAL, STREAM_V4), (COMMAND_PROXY, 0x31), (COMMAND_PROXY, UNSPECIFIED)] {
            assert_eq!(Header::parse(&block(command, family, 3, b"abc")), Ok(Some((Header::local(), 19))));
        }
    }
}
