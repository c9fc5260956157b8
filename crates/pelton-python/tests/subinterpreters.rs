//! A second interpreter in the process. In its own test process, because creating one changes what CPython reports
//! about the lock.

#![cfg(feature = "embed")]

mod host_support;

use std::sync::mpsc;

use host_support::{start, wait, with};
use pelton_python::Object;
use pelton_python::value::release_dropped;
use pyo3::prelude::*;
use pyo3::types::PyList;

fn references(list: &Bound<'_, PyList>) -> isize {
    // SAFETY: `Bound` shows that the list is alive and that the lock is held.
    unsafe { pyo3::ffi::Py_REFCNT(list.as_ptr()) }
}

#[test]
fn an_object_dropped_without_the_lock_is_released_by_its_holder() {
    let host = start();
    let namespace = with(
        &host,
        "try:\n    import _interpreters as interpreters\nexcept ImportError:\n    import _xxsubinterpreters as interpreters\n\
         interpreters.destroy(interpreters.create())",
    );
    wait(namespace.eval("1").unwrap()).unwrap();
    drop(namespace);
    drop(host);
    // While this thread holds the lock, another thread drops an object without it.
    Python::attach(|py| {
        release_dropped(py);
        let list = PyList::empty(py);
        let before = references(&list);
        let object = Object::new(list.as_any());
        let (done, is_done) = mpsc::channel();
        let dropper = std::thread::spawn(move || {
            drop(object);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(host_support::LONG).unwrap();
        dropper.join().unwrap();
        assert_eq!(references(&list), before + 1, "it was released without the lock");
        assert_eq!(release_dropped(py), 1);
        assert_eq!(references(&list), before);
        // A thread with the lock releases it directly.
        drop(Object::new(list.as_any()));
        assert_eq!((references(&list), release_dropped(py)), (before, 0));
    });
}
