//! Bytes up to a delimiter, including delimiters that overlap themselves.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton::codec::Delimiter;
use pelton_fuzz::{Input, LIMIT, check};

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    const DELIMITERS: [&str; 8] = ["\n", "\r\n", "\0", "aa", "aab", "abab", "<end>", "abcdefghijklmnopqrstuvwxyz"];
    let delimiter = DELIMITERS[input.choice % DELIMITERS.len()];
    let codec = Delimiter::new(delimiter).limit(LIMIT);
    check(&codec, &codec, &input, LIMIT + delimiter.len());
});
