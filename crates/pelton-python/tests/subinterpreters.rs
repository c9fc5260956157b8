//! A second interpreter in the process. In a process of its own: one that there has been changes what CPython says about the lock.

#![cfg(feature = "embed")]

mod host_support;

use std::sync::mpsc;

use host_support::{start, wait, with};
use pelton_python::Object;
use pelton_python::value::release_dropped;
use pyo3::prelude::*;
use pyo3::types::PyList;

fn references(list: &Bound<'_, PyList>) -> isize {
    // SAFETY: it is alive, and the lock is held, as its lifetime shows.
    unsafe { pyo3::ffi::Py_REFCNT(list.as_ptr()) }
}

#[test]
fn an_object_dropped_without_the_lock_is_released_by_whoever_has_it() {
    let host = start();
    let process = with(
        &host,
        "try:\n    import _interpreters as interpreters\nexcept ImportError:\n    import _xxsubinterpreters as interpreters\n\
         interpreters.destroy(interpreters.create())",
    );
    wait(process.eval("1").unwrap()).unwrap();
    drop(process);
    drop(host);
    // With the lock held in here, another thread drops an object without it.
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
        // Who has the lock needs no help.
        drop(Object::new(list.as_any()));
        assert_eq!((references(&list), release_dropped(py)), (before, 0));
    });
}
