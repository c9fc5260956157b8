//! Bytes prefixed with their length, in each of the encodings.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton::codec::{LengthPrefixed, Prefix};
use pelton_fuzz::{Input, LIMIT, check};

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    const PREFIXES: [Prefix; 8] = [
        Prefix::U8,
        Prefix::U16Be,
        Prefix::U16Le,
        Prefix::U32Be,
        Prefix::U32Le,
        Prefix::U64Be,
        Prefix::U64Le,
        Prefix::Varint,
    ];
    let codec = LengthPrefixed::new(PREFIXES[input.choice % PREFIXES.len()]).limit(LIMIT);
    // While the prefix is read, up to the longest prefix is buffered, together with the beginning of the content.
    check(&codec, &codec, &input, LIMIT + 10);
});
