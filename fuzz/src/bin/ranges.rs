//! The ranges of a body that a client requests.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_http::wire::{MOST_RANGES, Selection, select_ranges};

fuzz_target!(|data: &[u8]| {
    let Some((length, value)) = data.split_first_chunk::<8>() else { return };
    // Short bodies, and the longest possible ones.
    let length = u64::from_le_bytes(*length);
    for length in [length % 64, length] {
        match select_ranges(value, length) {
            Selection::Whole | Selection::Unsatisfiable => {}
            Selection::One(part) => assert!(part.start < part.end && part.end <= length),
            Selection::Several(parts) => {
                assert!((2..=MOST_RANGES).contains(&parts.len()));
                assert!(parts.iter().all(|part| part.start < part.end && part.end <= length));
                let sum = parts.iter().map(|part| u128::from(part.end - part.start)).sum::<u128>();
                assert!(sum < u128::from(length), "the whole body would cost less");
            }
        }
    }
});
