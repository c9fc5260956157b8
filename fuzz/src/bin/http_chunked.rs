//! Chunked bodies.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_fuzz::{Input, LIMIT};
use pelton_http::wire::{ChunkLimits, Chunked, Decoded, HeadLimits, Refusal, encode};

const LIMITS: ChunkLimits =
    ChunkLimits { extensions: LIMIT, trailers: HeadLimits { request_line: 0, header_bytes: 2 * LIMIT, headers: 6 } };

/// The body, its trailers, and the number of bytes consumed; `None` if it is incomplete.
type Outcome = Result<Option<(Vec<u8>, Vec<(String, Vec<u8>)>, usize)>, Refusal>;

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let (mut decoder, mut body, mut used) = (Chunked::default(), Vec::new(), 0);
    for piece in pieces {
        let mut rest = piece;
        loop {
            let (count, decoded) = decoder.decode(rest, &LIMITS)?;
            used += count;
            rest = &rest[count..];
            match decoded {
                Decoded::Data(data) => {
                    assert!(!data.is_empty());
                    body.extend_from_slice(data);
                }
                Decoded::More => break assert!(rest.is_empty(), "all input was examined"),
                Decoded::End => {
                    let trailers = decoder.trailers().iter();
                    let trailers = trailers.map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
                    return Ok(Some((body, trailers, used)));
                }
            }
        }
    }
    Ok(None)
}

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let whole = decode([input.bytes].into_iter());
    assert_eq!(decode(input.pieces()), whole, "in pieces or whole");
    assert_eq!(decode(input.bytes.chunks(1)), whole, "byte by byte or whole");
    let Ok(Some((body, _, _))) = whole else { return };
    let mut out = Vec::new();
    for chunk in body.chunks(7) {
        encode::chunk_start(&mut out, chunk.len());
        out.extend_from_slice(chunk);
        out.extend_from_slice(encode::CHUNK_END);
    }
    encode::last_chunk(&mut out, b"");
    let length = out.len();
    assert_eq!(decode([&*out].into_iter()), Ok(Some((body, Vec::new(), length))), "decoding the encoded body");
});
