//! Raw input: the messages depend on how it is split, their bytes do not.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton::codec::Raw;
use pelton_fuzz::{Input, decode};

fuzz_target!(|data: &[u8]| {
    let Some(input) = Input::new(data) else { return };
    let (messages, end) = decode(&Raw, input.pieces(), 0);
    assert_eq!((messages.concat(), end), (input.bytes.to_vec(), Ok(())));
});
