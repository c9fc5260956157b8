//! Parsing of vectorcall arguments: an array with the positional arguments, then those passed by keyword.

use std::ffi::CStr;
use std::slice;

use pyo3::ffi::{self, Py_ssize_t, PyObject};

use crate::interned;
use crate::object::{Raised, Result, raise_text};

/// A `METH_FASTCALL | METH_KEYWORDS` call: an array of `count` positional arguments, then one for each keyword.
#[derive(Clone, Copy)]
pub struct Call {
    /// The name, for error messages.
    pub function: &'static CStr,
    /// The array.
    pub arguments: *const *mut PyObject,
    /// The number of positional arguments.
    pub count: usize,
    /// A tuple of strings, or null.
    pub keywords: *mut PyObject,
}

/// Returns the arguments of a `METH_FASTCALL` call if there are exactly `N`.
///
/// # Safety
/// `arguments` and `count` are those of a call in progress.
#[inline]
pub unsafe fn exactly<const N: usize>(
    function: &CStr,
    arguments: *mut *mut PyObject,
    count: Py_ssize_t,
) -> Result<[*mut PyObject; N]> {
    if count != N as Py_ssize_t {
        let function = function.to_string_lossy();
        let message = format!("{function}() takes {N} positional arguments but {count} were given");
        // SAFETY: exception classes live as long as the interpreter.
        return Err(raise_text(unsafe { ffi::PyExc_TypeError }, &message));
    }
    // SAFETY: the caller guarantees that the array has `count` items, which is `N`.
    Ok(unsafe { *arguments.cast() })
}

/// The arguments of a call with the signature `(first, …, *rest, context=None)`, borrowed from the caller.
pub struct Scheduled<'a, const N: usize> {
    /// The named arguments.
    pub named: [*mut PyObject; N],
    /// The other positional arguments.
    pub rest: &'a [*mut PyObject],
    /// Null if not given, or if it is `None`.
    pub context: *mut PyObject,
}

/// Parses the arguments of `function(names…, *rest, context=None)`.
///
/// # Safety
/// `call` is a call in progress.
#[inline]
pub unsafe fn scheduled<'a, const N: usize>(call: Call, names: [*mut PyObject; N]) -> Result<Scheduled<'a, N>> {
    let Call { arguments, count, keywords, .. } = call;
    // SAFETY: the caller guarantees that there are `count` positional arguments, then one for each keyword.
    unsafe {
        let positional: &'a [*mut PyObject] =
            if arguments.is_null() { &[] } else { slice::from_raw_parts(arguments, count) };
        if count < N || (!keywords.is_null() && !is_only_context(keywords)) {
            return scheduled_slowly(call, names, positional);
        }
        let mut named = [std::ptr::null_mut(); N];
        named.copy_from_slice(&positional[..N]);
        let context = if keywords.is_null() { std::ptr::null_mut() } else { *arguments.add(count) };
        let context = if context == ffi::Py_None() { std::ptr::null_mut() } else { context };
        Ok(Scheduled { named, rest: &positional[N..], context })
    }
}

/// Parses the arguments of `function(names…)`.
///
/// # Safety
/// `call` is a call in progress.
#[inline]
pub unsafe fn named<const N: usize>(call: Call, names: [*mut PyObject; N]) -> Result<[*mut PyObject; N]> {
    // SAFETY: the caller guarantees that the call is in progress.
    let Scheduled { named, rest, context } = unsafe { scheduled(call, names)? };
    refuse_context(call, context)?;
    if !rest.is_empty() {
        let (function, given) = (call.function.to_string_lossy(), N + rest.len());
        let message = format!("{function}() takes {N} positional arguments but {given} were given");
        // SAFETY: exception classes live as long as the interpreter.
        return Err(raise_text(unsafe { ffi::PyExc_TypeError }, &message));
    }
    Ok(named)
}

/// Raises if a function without a `context` argument was given one.
#[inline]
pub fn refuse_context(call: Call, context: *mut PyObject) -> Result<()> {
    if context.is_null() {
        return Ok(());
    }
    Err(complain(call.function, "got an unexpected keyword argument", interned::context()))
}

/// Returns whether the only keyword is `context`, as in all of asyncio's own calls.
#[inline]
unsafe fn is_only_context(keywords: *mut PyObject) -> bool {
    // SAFETY: the caller passes the keywords of a call, a tuple of strings.
    unsafe { ffi::PyTuple_GET_SIZE(keywords) == 1 && ffi::PyTuple_GET_ITEM(keywords, 0) == interned::context() }
}

/// Parses arguments if some are missing or other keywords are used.
#[cold]
unsafe fn scheduled_slowly<'a, const N: usize>(
    call: Call,
    names: [*mut PyObject; N],
    positional: &'a [*mut PyObject],
) -> Result<Scheduled<'a, N>> {
    let Call { function, arguments, count, keywords } = call;
    let mut named = [std::ptr::null_mut(); N];
    let given = positional.len().min(N);
    named[..given].copy_from_slice(&positional[..given]);
    let mut context = std::ptr::null_mut();
    // SAFETY: keywords are a tuple of strings. For each of them, an argument follows the positional ones in the array. The
    // slice does not cover these, so they are read through the pointer that the caller passed.
    unsafe {
        let keyword_count = if keywords.is_null() { 0 } else { ffi::PyTuple_GET_SIZE(keywords) };
        for index in 0..keyword_count {
            let keyword = ffi::PyTuple_GET_ITEM(keywords, index);
            let value = *arguments.add(count + index as usize);
            if is_called(keyword, interned::context())? {
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

/// Returns whether a keyword is `name`.
///
/// # Safety
/// Both are strings.
#[inline]
pub unsafe fn is_called(keyword: *mut PyObject, name: *mut PyObject) -> Result<bool> {
    if keyword == name {
        return Ok(true);
    }
    // SAFETY: the caller guarantees that both are strings, so the comparison cannot fail.
    match unsafe { ffi::PyUnicode_Compare(keyword, name) } {
        0 => Ok(true),
        _ => Ok(false),
    }
}

/// Raises the `TypeError` that Python itself would raise.
pub fn complain(function: &CStr, what: &str, argument: *mut PyObject) -> Raised {
    let mut length = 0;
    // SAFETY: all callers pass a string. Its UTF-8 form lives as long as the string.
    let name = unsafe {
        let text = ffi::PyUnicode_AsUTF8AndSize(argument, &mut length);
        if text.is_null() {
            return Raised;
        }
        String::from_utf8_lossy(slice::from_raw_parts(text.cast::<u8>(), length as usize)).into_owned()
    };
    // SAFETY: exception classes live as long as the interpreter.
    let exception = unsafe { ffi::PyExc_TypeError };
    raise_text(exception, &format!("{}() {what} '{name}'", function.to_string_lossy()))
}
