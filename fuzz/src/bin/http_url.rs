//! URLs and references, such as those of redirects.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_http::client::Url;

fn check(url: &Url) {
    let text = url.as_str();
    assert!(text.bytes().all(|byte| (0x21..0x7f).contains(&byte)), "{text:?} can be part of a request line");
    assert!(url.target().starts_with('/') && !url.host().is_empty());
    assert!(!text.contains('#') && !url.host().contains(['/', '?', '@']));
    let again = Url::parse(text).expect("what was parsed is valid");
    assert_eq!((again.as_str(), again.origin(), again.port()), (text, url.origin(), url.port()));
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (first, second) = text.split_once('\n').unwrap_or((text, ""));
    if let Ok(url) = Url::parse(first) {
        check(&url);
        if let Ok(joined) = url.join(second) {
            check(&joined);
        }
    }
});
