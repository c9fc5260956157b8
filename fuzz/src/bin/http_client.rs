//! Responses, as the client reads them: heads, bodies and trailers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_fuzz::Input;
use pelton_http::wire::{Piece, ResponseReader, To};

type Fields = Vec<(String, Vec<u8>)>;

/// What a client sees of one response, and where it ends.
#[derive(PartialEq, Eq, Debug, Default)]
struct Seen {
    interim: Vec<u16>,
    head: Option<(u16, Fields, Option<u64>)>,
    body: Vec<u8>,
    trailers: Fields,
    end: Option<End>,
}

#[derive(PartialEq, Eq, Debug)]
enum End {
    /// After this many bytes.
    Complete(usize, bool),
    Switched(usize),
    Malformed,
    /// It ended with the input, or was incomplete.
    Closed(bool),
}

fn fields(fields: pelton_http::wire::Fields<'_>) -> Fields {
    fields.iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
}

fn read<'a>(to: To, pieces: impl Iterator<Item = &'a [u8]>) -> Seen {
    let (mut reader, mut seen, mut consumed) = (ResponseReader::default(), Seen::default(), 0);
    for mut input in pieces {
        loop {
            let (used, piece) = match reader.next(to, input) {
                Ok(found) => found,
                Err(_) => {
                    seen.end = Some(End::Malformed);
                    // How much of a body precedes the malformed part depends on the pieces.
                    return seen;
                }
            };
            assert!(used <= input.len());
            consumed += used;
            input = &input[used..];
            match piece {
                Piece::More => {
                    assert!(input.is_empty(), "input is left over");
                    break;
                }
                Piece::Interim(head) => seen.interim.push(head.status()),
                Piece::Head(head) => seen.head = Some((head.status(), fields(head.fields()), head.content_length())),
                Piece::Data(data) => {
                    assert!(!data.is_empty());
                    seen.body.extend_from_slice(data);
                }
                Piece::End => {
                    seen.trailers = fields(reader.trailers());
                    seen.end = Some(End::Complete(consumed, reader.is_reusable()));
                    return seen;
                }
                Piece::Switched(head) => {
                    seen.head = Some((head.status(), fields(head.fields()), head.content_length()));
                    seen.end = Some(End::Switched(consumed));
                    return seen;
                }
            }
        }
    }
    seen.end = Some(End::Closed(reader.end()));
    seen
}

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let to = [To::Other, To::Head, To::Upgrade, To::Connect][input.choice % 4];
    let whole = read(to, [input.bytes].into_iter());
    assert_eq!(read(to, input.pieces()), whole, "in pieces or whole");
    assert_eq!(read(to, input.bytes.chunks(1)), whole, "byte by byte or whole");
    assert!(whole.body.len() <= input.bytes.len());
    assert!(whole.interim.len() <= 16);
    if let Some((status, _, length)) = &whole.head {
        match whole.end {
            Some(End::Switched(_)) => assert!(matches!((to, status), (To::Upgrade, 101) | (To::Connect, 200..300))),
            Some(End::Complete(..)) => {
                assert!((200..600).contains(status));
                if to == To::Head || matches!(status, 204 | 304) {
                    assert!(whole.body.is_empty());
                } else if let Some(length) = length {
                    assert_eq!(whole.body.len() as u64, *length);
                }
            }
            _ => {}
        }
        // A field is one line: nothing can hide in it.
        for (name, value) in whole.head.iter().flat_map(|(_, fields, _)| fields).chain(&whole.trailers) {
            assert!(!name.is_empty() && !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)));
        }
    }
});
