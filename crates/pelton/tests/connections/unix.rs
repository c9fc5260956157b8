//! Unix sockets. Their files are the kernel's, so this runs on its engines only.

use std::io::Write;

use pelton::Address;

use super::common::{On, on_every_engine};
use super::{Echo, with_peer};

on_every_engine![unix_sockets_work_and_a_stale_file_is_replaced, names_that_are_too_long_are_refused_at_once];

fn unix_sockets_work_and_a_stale_file_is_replaced(on: On) {
    let path = std::env::temp_dir().join(format!("pelton-{}-{}.sock", std::process::id(), on.0));
    let address = Address::Unix(path.clone());
    // Left behind by a listener that did not clean up.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut reactor = on.reactor();
    let listener = reactor.listen(&address, |_| Echo).unwrap();
    let error = on.reactor().listen(&address, |_| Echo).unwrap_err().to_string();
    assert!(error.starts_with(&format!("listen on {address}: ")), "somebody listens there: {error}");
    let back = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"over unix").unwrap();
        peer.finish();
        peer.read_all().unwrap()
    });
    assert_eq!(back, b"over unix");
    assert!(reactor.unlisten(listener) && !reactor.unlisten(listener));
    assert!(!path.exists());
}

fn names_that_are_too_long_are_refused_at_once(on: On) {
    let mut reactor = on.reactor();
    let too_long = Address::Unix("x".repeat(200).into());
    let error = reactor.connect(&too_long, Echo).unwrap_err().to_string();
    assert!(error.starts_with("connect to unix:xxx"), "{error}");
    assert_eq!(reactor.connection_count(), 0);
}
