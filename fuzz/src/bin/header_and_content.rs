//! Header lines, an empty line, and content.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton::codec::HeaderAndContent;
use pelton_fuzz::{Input, LIMIT, check};

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let codec = HeaderAndContent::new().header_limit(LIMIT).content_limit(LIMIT);
    // Encoded with a space, CRLF and the length of the content, a header may be longer than the original.
    let writer = HeaderAndContent::new().content_limit(LIMIT);
    check(&codec, &writer, &input, LIMIT);
});
