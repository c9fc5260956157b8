//! Arguments of functions that are called the fast way: in an array, positional ones first, then those with names.

use std::ffi::CStr;
use std::slice;

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use crate::known::known;
use crate::object::{Raised, Result, raise_text};

/// A call by `METH_FASTCALL | METH_KEYWORDS`: `count` positional arguments in an array, then one for each of the keywords.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) function: &'static CStr,
    pub(crate) arguments: *const *mut PyObject,
    pub(crate) count: usize,
    /// A tuple of strings, or null.
    pub(crate) keywords: *mut PyObject,
}

/// The arguments of a call by `METH_FASTCALL`, if they are as many as there have to be.
///
/// # Safety
/// `arguments` and `count` are those of such a call.
#[inline]
pub(crate) unsafe fn exactly<const N: usize>(
    function: &CStr,
    arguments: *mut *mut PyObject,
    count: Py_ssize_t,
) -> Result<[*mut PyObject; N]> {
    if count != N as Py_ssize_t {
        let function = function.to_string_lossy();
        let message = format!("{function}() takes {N} positional arguments but {count} were given");
        // SAFETY: the exception classes are there as long as the interpreter is.
        return Err(raise_text(unsafe { ffi::PyExc_TypeError }, &message));
    }
    // SAFETY: there are that many.
    Ok(unsafe { *arguments.cast() })
}

/// The arguments of a call of `(first, …, *rest, context=None)`, borrowed from the caller.
pub(crate) struct Scheduled<'a, const N: usize> {
    pub(crate) named: [*mut PyObject; N],
    pub(crate) rest: &'a [*mut PyObject],
    /// Null if it was not given or is `None`.
    pub(crate) context: *mut PyObject,
}

/// Makes out the arguments of `function(names…, *rest, context=None)`.
///
/// # Safety
/// It is a call that is going on.
#[inline]
pub(crate) unsafe fn scheduled<'a, const N: usize>(call: Call, names: [*mut PyObject; N]) -> Result<Scheduled<'a, N>> {
    let Call { function, arguments, count, keywords } = call;
    // SAFETY: the caller has passed `count` positional arguments, then one for each of the keywords.
    unsafe {
        let positional: &'a [*mut PyObject] =
            if arguments.is_null() { &[] } else { slice::from_raw_parts(arguments, count) };
        if count < N || (!keywords.is_null() && !is_only_context(keywords)) {
            return rarely(function, names, positional, keywords);
        }
        let mut named = [std::ptr::null_mut(); N];
        named.copy_from_slice(&positional[..N]);
        let context = if keywords.is_null() { std::ptr::null_mut() } else { *arguments.add(count) };
        let context = if context == ffi::Py_None() { std::ptr::null_mut() } else { context };
        Ok(Scheduled { named, rest: &positional[N..], context })
    }
}

/// Makes out the arguments of `function(names…)`.
///
/// # Safety
/// It is a call that is going on.
pub(crate) unsafe fn named<const N: usize>(call: Call, names: [*mut PyObject; N]) -> Result<[*mut PyObject; N]> {
    // SAFETY: as the caller says.
    let Scheduled { named, rest, context } = unsafe { scheduled(call, names)? };
    refuse_context(call, context)?;
    if !rest.is_empty() {
        let (function, given) = (call.function.to_string_lossy(), N + rest.len());
        let message = format!("{function}() takes {N} positional arguments but {given} were given");
        // SAFETY: the exception classes are there as long as the interpreter is.
        return Err(raise_text(unsafe { ffi::PyExc_TypeError }, &message));
    }
    Ok(named)
}

/// For functions that have no such argument.
pub(crate) fn refuse_context(call: Call, context: *mut PyObject) -> Result<()> {
    if context.is_null() {
        return Ok(());
    }
    Err(complain(call.function, "got an unexpected keyword argument", known().names.context))
}

/// Whether the only keyword is `context`, as in every call that asyncio itself makes.
unsafe fn is_only_context(keywords: *mut PyObject) -> bool {
    // SAFETY: keywords are a tuple of strings.
    unsafe { ffi::PyTuple_GET_SIZE(keywords) == 1 && ffi::PyTuple_GET_ITEM(keywords, 0) == known().names.context }
}

/// Makes out arguments that are too few, or of which more have names.
#[cold]
unsafe fn rarely<'a, const N: usize>(
    function: &CStr,
    names: [*mut PyObject; N],
    positional: &'a [*mut PyObject],
    keywords: *mut PyObject,
) -> Result<Scheduled<'a, N>> {
    let mut named = [std::ptr::null_mut(); N];
    let given = positional.len().min(N);
    named[..given].copy_from_slice(&positional[..given]);
    let mut context = std::ptr::null_mut();
    // SAFETY: keywords are a tuple of strings, and as many arguments follow the positional ones.
    unsafe {
        let keyword_count = if keywords.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(keywords) };
        for index in 0..keyword_count {
            let keyword = ffi::PyTuple_GET_ITEM(keywords, index);
            let value = *positional.as_ptr().add(positional.len() + index as usize);
            if is_called(keyword, known().names.context)? {
                context = value;
                continue;
            }
            let mut place = None;
            for (index, name) in names.iter().enumerate() {
                if is_called(keyword, *name)? {
                    place = Some(index);
                }
            }
            match place {
                Some(place) if named[place].is_null() => named[place] = value,
                Some(_) => return Err(complain(function, "got multiple values for argument", keyword)),
                None => return Err(complain(function, "got an unexpected keyword argument", keyword)),
            }
        }
        if let Some(missing) = named.iter().position(|value| value.is_null()) {
            return Err(complain(function, "missing required positional argument:", names[missing]));
        }
        let context = if context == ffi::Py_None() { std::ptr::null_mut() } else { context };
        Ok(Scheduled { named, rest: positional.get(N..).unwrap_or(&[]), context })
    }
}

/// Whether a keyword is `name`.
///
/// # Safety
/// Both are strings.
pub(crate) unsafe fn is_called(keyword: *mut PyObject, name: *mut PyObject) -> Result<bool> {
    if keyword == name {
        return Ok(true);
    }
    // SAFETY: both are strings, as the caller says.
    match unsafe { ffi::PyUnicode_Compare(keyword, name) } {
        // Also the answer to something that is no string; but both are.
        0 => Ok(true),
        _ => Ok(false),
    }
}

/// Raises the `TypeError` that Python itself would.
pub(crate) fn complain(function: &CStr, what: &str, argument: *mut PyObject) -> Raised {
    let mut length = 0;
    // SAFETY: the argument is a string; its UTF-8 lives as long as it does.
    let name = unsafe {
        let text = ffi::PyUnicode_AsUTF8AndSize(argument, &mut length);
        if text.is_null() {
            return Raised;
        }
        String::from_utf8_lossy(slice::from_raw_parts(text.cast::<u8>(), length as usize)).into_owned()
    };
    // SAFETY: the exception classes are there as long as the interpreter is.
    let exception = unsafe { ffi::PyExc_TypeError };
    raise_text(exception, &format!("{}() {what} '{name}'", function.to_string_lossy()))
}
