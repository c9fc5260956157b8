//! Netstrings.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton::codec::Netstring;
use pelton_fuzz::{Input, LIMIT, check};

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let codec = Netstring::new().limit(LIMIT);
    // While the length is read, up to the longest length is buffered, together with the beginning of the content.
    check(&codec, &codec, &input, LIMIT + 21);
});
