//! Fast calls into Python. An exception stays set in the thread's state, and is reported as [`Raised`], which costs nothing.
//!
//! PyO3's own calls move the exception out, into a [`PyErr`]. Code that is not hot uses those, and
//! [`or_raise`](OrRaise::or_raise).

use std::ffi::c_int;
use std::io;
use std::ptr::null_mut;

use pyo3::exceptions::{PyBaseException, PyKeyboardInterrupt, PyOSError, PySystemExit, PyTypeError};
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::object::{Raised, Result};

/// Fast calls. Arguments are live objects, as their types show, and no Rust value is borrowed from Python's memory during a call.
pub trait Call<'py> {
    /// `object()`
    fn call_none(&self) -> Result<Bound<'py, PyAny>>;
    /// `object(argument)`
    fn call_one(&self, argument: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>>;
    /// `object(*arguments)`
    fn call_with(&self, arguments: &[Borrowed<'_, 'py, PyAny>]) -> Result<Bound<'py, PyAny>>;
    /// `object.name()`
    fn method(&self, name: &Bound<'py, PyString>) -> Result<Bound<'py, PyAny>>;
    /// `object.name(argument)`
    fn method_one(&self, name: &Bound<'py, PyString>, argument: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>>;
    /// `object.name(first, second)`
    fn method_two(
        &self,
        name: &Bound<'py, PyString>,
        first: &Bound<'py, PyAny>,
        second: &Bound<'py, PyAny>,
    ) -> Result<Bound<'py, PyAny>>;
    /// `object.name`
    fn attribute(&self, name: &Bound<'py, PyString>) -> Result<Bound<'py, PyAny>>;
    /// `bool(object)`
    fn truth(&self) -> Result<bool>;
    /// The value of an integer.
    fn whole(&self) -> Result<i64>;
    /// The value of a number.
    fn number(&self) -> Result<f64>;
    /// `len(object)`
    fn length(&self) -> Result<usize>;
    /// `isinstance(object, class)`
    fn is_of(&self, class: &Bound<'py, PyAny>) -> Result<bool>;
    /// A weak reference without a callback. An object has at most one such.
    fn weak(&self) -> Result<Bound<'py, PyAny>>;
}

/// Takes over the reference that a function of the C API has returned.
///
/// # Safety
/// It is null, with an exception set, or an owned reference.
#[inline]
pub(crate) unsafe fn returned(py: Python<'_>, object: *mut PyObject) -> Result<Bound<'_, PyAny>> {
    // SAFETY: the caller guarantees it.
    unsafe { Bound::from_owned_ptr_or_opt(py, object).ok_or(Raised) }
}

/// A slice of references as the array of pointers that it is.
#[inline]
pub(crate) fn pointers(arguments: &[Borrowed<'_, '_, PyAny>]) -> *const *mut PyObject {
    // `Borrowed` is transparent: a pointer, and markers without a size.
    arguments.as_ptr().cast()
}

impl<'py> Call<'py> for Bound<'py, PyAny> {
    #[inline]
    fn call_none(&self) -> Result<Bound<'py, PyAny>> {
        // SAFETY: the object is alive and the lock is held, as its type shows.
        unsafe { returned(self.py(), ffi::PyObject_CallNoArgs(self.as_ptr())) }
    }

    #[inline]
    fn call_one(&self, argument: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
        self.call_with(&[argument.as_borrowed()])
    }

    #[inline]
    fn call_with(&self, arguments: &[Borrowed<'_, 'py, PyAny>]) -> Result<Bound<'py, PyAny>> {
        // SAFETY: all objects are alive and the lock is held, as their types show.
        let called =
            unsafe { ffi::PyObject_Vectorcall(self.as_ptr(), pointers(arguments), arguments.len(), null_mut()) };
        // SAFETY: it returns an owned reference or null.
        unsafe { returned(self.py(), called) }
    }

    #[inline]
    fn method(&self, name: &Bound<'py, PyString>) -> Result<Bound<'py, PyAny>> {
        method(name, [self.as_borrowed()])
    }

    #[inline]
    fn method_one(&self, name: &Bound<'py, PyString>, argument: &Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>> {
        method(name, [self.as_borrowed(), argument.as_borrowed()])
    }

    #[inline]
    fn method_two(
        &self,
        name: &Bound<'py, PyString>,
        first: &Bound<'py, PyAny>,
        second: &Bound<'py, PyAny>,
    ) -> Result<Bound<'py, PyAny>> {
        method(name, [self.as_borrowed(), first.as_borrowed(), second.as_borrowed()])
    }

    #[inline]
    fn attribute(&self, name: &Bound<'py, PyString>) -> Result<Bound<'py, PyAny>> {
        // SAFETY: both are alive and the lock is held, as their types show.
        unsafe { returned(self.py(), ffi::PyObject_GetAttr(self.as_ptr(), name.as_ptr())) }
    }

    #[inline]
    fn truth(&self) -> Result<bool> {
        // SAFETY: the object is alive and the lock is held, as its type shows.
        status(unsafe { ffi::PyObject_IsTrue(self.as_ptr()) }).map(|truth| truth != 0)
    }

    #[inline]
    fn whole(&self) -> Result<i64> {
        // SAFETY: the object is alive and the lock is held, as its type shows.
        let number = unsafe { ffi::PyLong_AsLongLong(self.as_ptr()) };
        if number == -1 && has_raised(self.py()) { Err(Raised) } else { Ok(number) }
    }

    #[inline]
    fn number(&self) -> Result<f64> {
        // SAFETY: the object is alive and the lock is held, as its type shows.
        let number = unsafe { ffi::PyFloat_AsDouble(self.as_ptr()) };
        if number == -1.0 && has_raised(self.py()) { Err(Raised) } else { Ok(number) }
    }

    #[inline]
    fn length(&self) -> Result<usize> {
        // SAFETY: the object is alive and the lock is held, as its type shows.
        usize::try_from(unsafe { ffi::PyObject_Size(self.as_ptr()) }).map_err(|_| Raised)
    }

    #[inline]
    fn is_of(&self, class: &Bound<'py, PyAny>) -> Result<bool> {
        // SAFETY: both are alive and the lock is held, as their types show.
        status(unsafe { ffi::PyObject_IsInstance(self.as_ptr(), class.as_ptr()) }).map(|is| is != 0)
    }

    #[inline]
    fn weak(&self) -> Result<Bound<'py, PyAny>> {
        // SAFETY: the object is alive and the lock is held, as its type shows.
        unsafe { returned(self.py(), ffi::PyWeakref_NewRef(self.as_ptr(), null_mut())) }
    }
}

#[inline]
fn method<'py, const N: usize>(
    name: &Bound<'py, PyString>,
    arguments: [Borrowed<'_, 'py, PyAny>; N],
) -> Result<Bound<'py, PyAny>> {
    // SAFETY: all objects are alive and the lock is held, as their types show. There is at least the object itself.
    let called = unsafe { ffi::PyObject_VectorcallMethod(name.as_ptr(), pointers(&arguments), N, null_mut()) };
    // SAFETY: it returns an owned reference or null.
    unsafe { returned(name.py(), called) }
}

/// Converts the status of a function that returns -1 when it raises.
#[inline]
pub(crate) fn status(status: c_int) -> Result<c_int> {
    if status < 0 { Err(Raised) } else { Ok(status) }
}

/// Returns whether an exception is set.
#[inline]
pub fn has_raised(_: Python<'_>) -> bool {
    // SAFETY: the lock is held.
    unsafe { !ffi::PyErr_Occurred().is_null() }
}

/// Returns whether the exception that is set is of a class, or of one in a tuple of classes.
pub fn raised_is(class: &Bound<'_, PyAny>) -> bool {
    // SAFETY: the class is alive and the lock is held, as its type shows.
    has_raised(class.py()) && unsafe { ffi::PyErr_ExceptionMatches(class.as_ptr()) != 0 }
}

/// Returns whether the exception that is set is of a built-in class.
pub fn raised_a<E: PyTypeInfo>(py: Python<'_>) -> bool {
    raised_is(&E::type_object(py))
}

/// Clears the exception that is set, if any.
pub fn clear_raised(_: Python<'_>) {
    // SAFETY: the lock is held.
    unsafe { ffi::PyErr_Clear() };
}

/// Takes the exception that is set.
///
/// PyO3 does not count calls from Python into our methods as attached, and then releases a reference that is dropped only when
/// something attaches next. A dropped `PyErr` would keep the exception alive until then, so this attaches.
#[cold]
pub fn take_raised(py: Python<'_>) -> Option<Bound<'_, PyBaseException>> {
    Python::attach(|py| PyErr::take(py).map(|error| error.into_value(py))).map(|error| error.into_bound(py))
}

/// Takes the exception that is set, or sets it again if it must end the run: `SystemExit` and `KeyboardInterrupt`.
#[cold]
pub fn take_ordinary(py: Python<'_>) -> Result<Option<Bound<'_, PyBaseException>>> {
    let Some(error) = take_raised(py) else { return Ok(None) };
    if error.is_instance_of::<PySystemExit>() || error.is_instance_of::<PyKeyboardInterrupt>() {
        PyErr::from_value(error.into_any()).restore(py);
        return Err(Raised);
    }
    Ok(Some(error))
}

/// Reports the exception that is set to `sys.unraisablehook`.
#[cold]
pub fn report_unraisable(py: Python<'_>) {
    if let Some(error) = PyErr::take(py) {
        error.write_unraisable(py, None);
    }
}

/// Calls `body` while an exception may be set, and sets it again afterwards.
#[cold]
pub fn keeping_exception(py: Python<'_>, body: impl FnOnce()) {
    let raised = PyErr::take(py);
    body();
    if let Some(raised) = raised {
        raised.restore(py);
    }
}

/// Raises a built-in exception.
#[cold]
pub fn raise<E: PyTypeInfo>(py: Python<'_>, message: &str) -> Raised {
    PyErr::from_type(E::type_object(py), (message.to_owned(),)).restore(py);
    Raised
}

/// Raises the `OSError` for `error`, as the subclass for its number if there is one. An error may wrap one of the system, whose number
/// is kept.
#[cold]
pub fn raise_io(py: Python<'_>, error: &io::Error) -> Raised {
    let wrapped = || error.get_ref()?.source()?.downcast_ref::<io::Error>()?.raw_os_error();
    let raised = match (error.raw_os_error(), wrapped()) {
        (Some(number), _) => PyOSError::new_err((number, system_message(number))),
        (None, Some(number)) => PyOSError::new_err((number, error.to_string())),
        (None, None) => PyOSError::new_err(error.to_string()),
    };
    raised.restore(py);
    Raised
}

/// Returns what Python calls an error of the system.
fn system_message(number: i32) -> String {
    // SAFETY: `strerror` returns a string for any number, which stays as it is for those that the system reports.
    unsafe { std::ffi::CStr::from_ptr(libc::strerror(number)) }.to_string_lossy().into_owned()
}

/// Sets the exception of a PyO3 call that has failed.
pub trait OrRaise<T> {
    /// Sets the exception.
    fn or_raise(self, py: Python<'_>) -> Result<T>;
}

impl<T, E: Into<PyErr>> OrRaise<T> for std::result::Result<T, E> {
    #[inline]
    fn or_raise(self, py: Python<'_>) -> Result<T> {
        self.map_err(|error| {
            error.into().restore(py);
            Raised
        })
    }
}

/// `function(*arguments, **keywords)`
#[inline]
pub fn call_with_tuple<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
    keywords: &Bound<'py, PyAny>,
) -> Result<Bound<'py, PyAny>> {
    let Ok(keywords) = keywords.cast::<PyDict>() else { return Err(raise::<PyTypeError>(function.py(), "not a dict")) };
    // SAFETY: all are alive and the lock is held, as their types show.
    unsafe {
        let called = ffi::PyObject_Call(function.as_ptr(), arguments.as_ptr(), keywords.as_ptr());
        returned(function.py(), called)
    }
}

/// `function(*arguments)`, the last of which are passed by the keywords in `names`.
#[inline]
pub fn call_with_keywords<'py>(
    function: &Bound<'py, PyAny>,
    arguments: &[Borrowed<'_, 'py, PyAny>],
    names: &Bound<'py, PyTuple>,
) -> Result<Bound<'py, PyAny>> {
    let Some(count) = arguments.len().checked_sub(names.len()) else {
        return Err(raise::<PyTypeError>(function.py(), "there are more keywords than arguments"));
    };
    // SAFETY: all are alive and the lock is held, as their types show. There is an argument for each keyword.
    unsafe {
        let called = ffi::PyObject_Vectorcall(function.as_ptr(), pointers(arguments), count, names.as_ptr());
        returned(function.py(), called)
    }
}
