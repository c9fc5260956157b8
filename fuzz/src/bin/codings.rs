//! Choosing the content coding that a client prefers.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_http::wire::{Coding, choose_coding};

fuzz_target!(|data: &[u8]| {
    let Some((which, value)) = data.split_first() else { return };
    let chosen = |offered: &[Coding], values: &[&[u8]]| choose_coding(values.iter().copied(), offered);
    let offered: Vec<Coding> = Coding::ALL
        .into_iter()
        .enumerate()
        .filter(|(at, _)| which & (1 << at) != 0)
        .map(|(_, coding)| coding)
        .collect();
    let best = chosen(&offered, &[value]);
    assert!(best.is_none_or(|coding| offered.contains(&coding)));
    // The preferred one of all is also the preferred one of any subset that contains it.
    if let Some(best) = chosen(&Coding::ALL, &[value]) {
        assert!(!offered.contains(&best) || chosen(&offered, &[value]) == Some(best));
    } else {
        assert_eq!(best, None);
    }
    // A list may be split over several fields.
    if let Some(comma) = value.iter().position(|byte| *byte == b',') {
        assert_eq!(chosen(&offered, &[&value[..comma], &value[comma + 1..]]), best);
    }
});
