//! Unix sockets. Their files belong to the kernel's file system, so this runs only on the kernel's engines.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use pelton::{Address, ListenOptions};
use pelton_testing::{On, on_every_engine};

use super::{Echo, with_peer};

on_every_engine![
    unix_sockets_work_and_a_stale_file_is_replaced,
    file_that_replaced_a_listeners_own_is_kept,
    permissions_do_not_depend_on_the_umask,
    overlong_names_are_refused_at_once,
];

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
    assert!(reactor.end(listener) && !reactor.end(listener));
    assert!(!path.exists());
}

fn file_that_replaced_a_listeners_own_is_kept(on: On) {
    let path = std::env::temp_dir().join(format!("pelton-{}-{}-other.sock", std::process::id(), on.0));
    let mut reactor = on.reactor();
    let listener = reactor.listen(Address::Unix(path.clone()), |_| Echo).unwrap();
    std::fs::remove_file(&path).unwrap();
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert!(reactor.end(listener));
    assert!(std::os::unix::net::UnixStream::connect(&path).is_ok());
    drop(other);
    std::fs::remove_file(&path).unwrap();
    // A file of another type is not replaced either.
    std::fs::write(&path, "a file").unwrap();
    assert!(reactor.listen(Address::Unix(path.clone()), |_| Echo).is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    std::fs::remove_file(&path).unwrap();
}

fn permissions_do_not_depend_on_the_umask(on: On) {
    let path = std::env::temp_dir().join(format!("pelton-{}-{}-mode.sock", std::process::id(), on.0));
    let mut reactor = on.reactor();
    // The usual umask would remove some of these bits and leave others.
    for mode in [0o666, 0o777, 0o660, 0o600, 0o000] {
        let options = ListenOptions::default().permissions(mode);
        let listener = reactor.listen_with(&Address::Unix(path.clone()), &options, |_| Echo).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
        assert!(reactor.end(listener));
    }
}

fn overlong_names_are_refused_at_once(on: On) {
    let mut reactor = on.reactor();
    let too_long = Address::Unix("x".repeat(200).into());
    let error = reactor.connect(&too_long, Echo).unwrap_err().to_string();
    assert!(error.starts_with("connect to unix:xxx"), "{error}");
    assert_eq!(reactor.connection_count(), 0);
}
