//! One request and its response, as bytes.

use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::client::Exchange;

/// A server that does not answer for this long is broken.
const PATIENCE: Duration = Duration::from_secs(10);

/// The beginning of a successful response.
pub const OK: &[u8] = b"HTTP/1.1 200 ";

/// Returns the request that wrk would send.
pub fn request(server: SocketAddrV4, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n").into_bytes()
}

/// Sends one request to learn the length of the response.
pub fn tried(server: SocketAddrV4, path: &str) -> Result<Exchange> {
    tried_over(connected(server)?, request(server, path))
}

/// Connects to a server that has to answer in time.
pub fn connected(server: SocketAddrV4) -> Result<TcpStream> {
    let stream = TcpStream::connect(server).context("connect to a server")?;
    stream.set_read_timeout(Some(PATIENCE)).context("limit how long an answer may take")?;
    Ok(stream)
}

/// Sends one request over this stream to learn the length of the response.
pub fn tried_over(mut stream: impl Read + Write, request: Vec<u8>) -> Result<Exchange> {
    stream.write_all(&request).context("send a request")?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(length) = whole_length(&answer)? {
            ensure!(answer.len() <= length, "received more than one response");
            if answer.len() == length {
                return Ok(Exchange::answered(request, length, OK));
            }
        }
        match stream.read(&mut buffer).context("receive an answer")? {
            0 => bail!("the server closed a connection after {} bytes", answer.len()),
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Returns the length of the whole response, once its head has arrived.
fn whole_length(answer: &[u8]) -> Result<Option<usize>> {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return Ok(None) };
    let head = String::from_utf8_lossy(&answer[..end]);
    ensure!(answer.starts_with(OK), "a server responded with {:?}", head.lines().next().unwrap_or_default());
    let fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut lengths = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = lengths.next().context("an answer without a length")?;
    let length: usize = length.trim().parse().context("understand the length of an answer")?;
    Ok(Some(end + 4 + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_response_is_known_once_its_head_has_arrived() {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(whole_length(&answer[..answer.len() - 5]).unwrap(), None);
        assert_eq!(whole_length(answer).unwrap(), Some(answer.len()));
        assert!(whole_length(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").is_err());
        assert!(whole_length(b"HTTP/1.1 200 OK\r\nDate: now\r\n\r\n").is_err());
    }
}
