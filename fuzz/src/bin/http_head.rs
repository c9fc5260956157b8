//! Heads of requests.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_fuzz::{Input, LIMIT};
use pelton_http::wire::{Framing, Head, HeadLimits, Notes, Parsed, Refusal, Scan, Version};

const LIMITS: HeadLimits = HeadLimits { request_line: LIMIT, header_bytes: 3 * LIMIT, headers: 6 };

type Found = Result<Option<std::ops::Range<usize>>, Refusal>;

/// Finds heads in a stream that arrives in these pieces.
fn scan<'a>(bytes: &[u8], pieces: impl Iterator<Item = &'a [u8]>) -> Found {
    let (mut scan, mut end) = (Scan::default(), 0);
    for piece in pieces {
        end += piece.len();
        match scan.advance(&bytes[..end], &LIMITS) {
            Ok(None) => {}
            found => return found,
        }
    }
    Ok(None)
}

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let whole = scan(input.bytes, [input.bytes].into_iter());
    assert_eq!(scan(input.bytes, input.pieces()), whole, "in pieces or whole");
    assert_eq!(scan(input.bytes, input.bytes.chunks(1)), whole, "byte by byte or whole");
    let mut notes = Notes::default();
    let short = Head::parse_whole(input.bytes, &mut notes, &LIMITS).ok().flatten().map(|parsed| parsed.length);
    let Ok(Some(range)) = whole else { return assert_eq!(short, None, "without a scan or with one") };
    let start = range.start;
    let bytes = &input.bytes[range];
    let fresh = Head::parse(bytes, &mut Notes::default(), &LIMITS);
    let parsed = Head::parse(bytes, &mut notes, &LIMITS);
    assert_eq!(parsed.as_ref().err(), fresh.as_ref().err(), "state of an earlier parse makes no difference");
    let Ok(Parsed { head, target, .. }) = parsed else { return assert_eq!(short, None) };
    assert_eq!(short, (start == 0).then_some(bytes.len()), "without a scan or with one");
    // An accepted head can be interpreted in one way only.
    assert!(!bytes.contains(&0));
    for (at, byte) in bytes.iter().enumerate() {
        let follows_cr = at > 0 && bytes[at - 1] == b'\r';
        assert_eq!(*byte == b'\n', follows_cr, "CR and LF occur only together");
    }
    assert_eq!(bytes.split(|byte| *byte == b' ').nth(1), Some(target.as_bytes()));
    let fields = notes.fields(bytes);
    assert!(fields.len() <= LIMITS.headers);
    let lines = bytes.split(|byte| *byte == b'\n').count() - 3;
    assert_eq!(fields.len(), lines, "a field per line");
    let (lengths, codings) = (fields.all("content-length").count(), fields.all("transfer-encoding").count());
    assert!(lengths + codings <= 1, "the length of the body is unambiguous");
    match head.framing {
        Framing::Chunked => assert!(codings == 1 && head.version == Version::Http11),
        Framing::Length(length) => {
            let text = fields.text("content-length").expect("digits are text");
            assert_eq!(text.parse(), Ok(length));
            assert!(text.bytes().all(|byte| byte.is_ascii_digit()));
        }
        Framing::None => assert!(codings == 0),
    }
    let hosts = fields.all("host").count();
    assert!(hosts == 1 || (hosts == 0 && head.version == Version::Http10));
});
