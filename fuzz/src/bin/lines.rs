//! Lines of text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton::codec::Lines;
use pelton_fuzz::{Input, LIMIT, check};

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    // Lines that end in CR are preserved only before CRLF.
    let codec = Lines::new().limit(LIMIT).crlf();
    check(&codec, &codec, &input, LIMIT + 2);
});
