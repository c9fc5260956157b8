//! Plain-text answers, on connections that stay open.

/// Formats an answer.
pub fn plain(status: &str, text: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}", text.len())
        .into_bytes()
}
