//! Headers of the PROXY protocol: what is accepted can be encoded again, and a prefix never decides otherwise.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton::proxy_protocol::{Header, MOST, Version};

fuzz_target!(|bytes: &[u8]| {
    match Header::parse(bytes) {
        Ok(Some((header, length))) => {
            assert!(length <= bytes.len() && length <= MOST);
            assert_eq!(Header::parse(&bytes[..length]), Ok(Some((header, length))));
            assert_eq!(Header::parse(&bytes[..length - 1]), Ok(None));
            for version in [Version::V1, Version::V2] {
                let again = header.encode(version);
                assert_eq!(Header::parse(&again), Ok(Some((header, again.len()))));
            }
        }
        Ok(None) => assert!(bytes.len() < MOST),
        Err(_) => {}
    }
});
