//! Messages of a fixed length.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton::codec::Fixed;
use pelton_fuzz::{Input, LIMIT, check};

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let length = input.choice % LIMIT + 1;
    let codec = Fixed::new(length);
    check(&codec, &codec, &input, length);
});
