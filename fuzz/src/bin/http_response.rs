//! Responses, as clients parse them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_fuzz::Input;
use pelton_http::wire::responses::{Finished, Responses, To};

/// Parses a stream that arrives in these pieces and then ends. Returns the responses, where the last of them ends, and whether
/// the stream was malformed.
fn read<'a>(to: To, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Finished>, usize, bool) {
    let mut responses = Responses::default();
    let (mut all, mut consumed, mut end) = (Vec::new(), 0, 0);
    for mut piece in pieces {
        while !piece.is_empty() {
            match responses.advance(to, piece) {
                Ok((used, finished)) => {
                    assert!(used > 0 || finished.is_some(), "no progress");
                    piece = &piece[used..];
                    consumed += used;
                    if let Some(finished) = finished {
                        all.push(finished);
                        end = consumed;
                    }
                }
                Err(_) => return (all, end, true),
            }
        }
    }
    if let Some(finished) = responses.end() {
        all.push(finished);
        end = consumed;
    }
    (all, end, false)
}

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let to = if input.choice % 2 == 0 { To::Other } else { To::Head };
    let whole = read(to, [input.bytes].into_iter());
    assert_eq!(read(to, input.pieces()), whole, "in pieces or whole");
    assert_eq!(read(to, input.bytes.chunks(1)), whole, "byte by byte or whole");
    let (responses, end, malformed) = whole;
    let bodies: u64 = responses.iter().map(|response| response.body).sum();
    assert!(bodies <= input.bytes.len() as u64);
    for response in &responses {
        assert!((200..600).contains(&response.status));
        let may_have_body = to == To::Other && !matches!(response.status, 204 | 304);
        assert!(may_have_body || response.body == 0);
    }
    // Up to the end of the last response, input without bodies consists of heads, which can be interpreted in one way only. After
    // that there may be a body that is not complete.
    if !malformed && bodies == 0 && !responses.is_empty() {
        let ends = |pair: &[u8]| pair[1] != b'\n' || pair[0] == b'\r';
        assert!(input.bytes[..end].windows(2).all(ends), "CR precedes every LF");
    }
});
