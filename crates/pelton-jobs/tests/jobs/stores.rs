//! Opening stores.

use pelton::Reactor;
use pelton_jobs::{Error, Jobs};

#[test]
fn bad_urls_are_refused_without_being_shown() {
    let mut reactor = Reactor::new().unwrap();
    for url in ["", "file:", "nonsense:secret", "redis://:secret@", "redis://user:secret@host:port", "kafka://secret"] {
        let error = Jobs::open(&mut reactor, url).unwrap_err();
        assert!(matches!(error, Error::BadUrl(_) | Error::Config(_)), "{url}: {error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
