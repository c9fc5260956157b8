//! The part of HTTP that the steps need: requests without bodies. `pelton-http` implements the rest.

/// Removes the first complete request from the input, if there is one, and returns its path.
pub fn take(input: &mut Vec<u8>) -> Option<String> {
    let end = input.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
    let request: Vec<u8> = input.drain(..end).collect();
    let text = String::from_utf8_lossy(&request);
    // The first line is: GET /path HTTP/1.1
    Some(text.split(' ').nth(1).unwrap_or("/").to_owned())
}

/// Where to listen: the first argument, or else a free port.
pub fn address() -> String {
    std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned())
}
