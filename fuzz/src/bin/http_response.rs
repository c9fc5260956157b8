//! Responses, as clients parse them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_fuzz::Input;
use pelton_http::wire::responses::{Finished, Responses, To};

/// Parses a stream that arrives in these pieces and then ends. Returns the result, and whether it was malformed.
fn read<'a>(to: To, pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Finished>, bool) {
    let mut responses = Responses::default();
    let mut all = Vec::new();
    for mut piece in pieces {
        while !piece.is_empty() {
            match responses.advance(to, piece) {
                Ok((used, finished)) => {
                    assert!(used > 0 || finished.is_some(), "it makes progress");
                    piece = &piece[used..];
                    all.extend(finished);
                }
                Err(_) => return (all, true),
            }
        }
    }
    all.extend(responses.end());
    (all, false)
}

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let to = if input.choice % 2 == 0 { To::Other } else { To::Head };
    let whole = read(to, [input.bytes].into_iter());
    assert_eq!(read(to, input.pieces()), whole, "in pieces or whole");
    assert_eq!(read(to, input.bytes.chunks(1)), whole, "byte by byte or whole");
    let (responses, malformed) = whole;
    let bodies: u64 = responses.iter().map(|response| response.body).sum();
    assert!(bodies <= input.bytes.len() as u64);
    for response in &responses {
        assert!((200..600).contains(&response.status));
        let may_have_body = to == To::Other && !matches!(response.status, 204 | 304);
        assert!(may_have_body || response.body == 0);
    }
    // Input that was accepted to its end and has no bodies consists of heads, which can be interpreted in one way only.
    if !malformed && bodies == 0 && !responses.is_empty() {
        let ends = |pair: &[u8]| pair[1] != b'\n' || pair[0] == b'\r';
        assert!(input.bytes.windows(2).all(ends), "CR precedes every LF");
    }
});
