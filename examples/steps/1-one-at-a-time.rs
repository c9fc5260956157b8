//! Step 1: a web server that serves one client at a time.
//!
//! The only loop is the accept loop. Each call blocks until it is done: `accept` until there is a client, `read` until there is
//! a request, `write` until the answer is taken. While the server waits for one client, all others wait too.
//!
//! ```text
//! $ cargo run --release -p pelton-examples --bin step-1 127.0.0.1:8081
//! http://127.0.0.1:8081/
//! ```

#![forbid(unsafe_code)]

mod request;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// How long `/slow` takes, as if it had to query another server.
const WAIT: Duration = Duration::from_millis(100);

fn main() -> io::Result<()> {
    let listener = TcpListener::bind(request::address())?;
    println!("http://{}/", listener.local_addr()?);
    for client in listener.incoming() {
        // A failed client is no reason to stop.
        if let Err(error) = client.and_then(serve) {
            eprintln!("a client is lost: {error}");
        }
    }
    Ok(())
}

/// Answers one request, and closes: a keep-alive client would occupy the server.
fn serve(mut client: TcpStream) -> io::Result<()> {
    let mut input = Vec::new();
    let path = loop {
        if let Some(path) = request::take(&mut input) {
            break path;
        }
        let mut bytes = [0; 1024];
        match client.read(&mut bytes)? {
            0 => return Ok(()),
            count => input.extend_from_slice(&bytes[..count]),
        }
    };
    let text = match path.as_str() {
        "/" => answer("200 OK", "hello\n"),
        "/slow" => {
            thread::sleep(WAIT);
            answer("200 OK", "at last\n")
        }
        _ => answer("404 Not Found", "there is no such thing\n"),
    };
    client.write_all(&text)
}

/// An answer that announces the end of the connection.
fn answer(status: &str, text: &str) -> Vec<u8> {
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
    .into_bytes()
}
