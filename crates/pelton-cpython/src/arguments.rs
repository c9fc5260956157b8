//! Parsing of vectorcall arguments: an array with the positional arguments, then those passed by keyword.

use std::ffi::CStr;
use std::slice;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::call::{pointers, raise, returned};
use crate::interned;
use crate::object::{Raised, Result};

/// An argument, borrowed from the caller.
pub type Argument<'a, 'py> = Borrowed<'a, 'py, PyAny>;

/// The arguments of a call in progress.
#[derive(Clone, Copy)]
pub struct Call<'a, 'py> {
    function: &'static CStr,
    /// The positional arguments, then one for each keyword.
    arguments: &'a [Argument<'a, 'py>],
    /// The number of positional arguments.
    count: usize,
    keywords: Option<Borrowed<'a, 'py, PyTuple>>,
}

/// The arguments of a call with the signature `(first, …, *rest, context=None)`.
pub struct Scheduled<'a, 'py, const N: usize> {
    /// The named arguments.
    pub named: [Argument<'a, 'py>; N],
    /// The other positional arguments.
    pub rest: &'a [Argument<'a, 'py>],
    /// The context, unless it is `None`.
    pub context: Option<Argument<'a, 'py>>,
}

impl<'a, 'py> Call<'a, 'py> {
    /// # Safety
    /// The arguments are those of a `METH_FASTCALL | METH_KEYWORDS` call that is in progress for `'a`, and the lock is held.
    #[inline]
    pub(crate) unsafe fn from_raw(
        function: &'static CStr,
        arguments: *const *mut PyObject,
        count: usize,
        keywords: *mut PyObject,
    ) -> Call<'a, 'py> {
        // SAFETY: the caller guarantees it. Keywords are a tuple, and `Borrowed` is a pointer. An array without items may be null.
        unsafe {
            let py = Python::assume_attached();
            let keywords = Borrowed::from_ptr_or_opt(py, keywords).map(|names| names.cast_unchecked::<PyTuple>());
            let all = count + keywords.map_or(0, |names| ffi::PyTuple_GET_SIZE(names.as_ptr()) as usize);
            let arguments = if all == 0 { &[] } else { slice::from_raw_parts(arguments.cast(), all) };
            Call { function, arguments, count, keywords }
        }
    }

    /// Returns the positional arguments.
    #[inline]
    pub fn positional(&self) -> &'a [Argument<'a, 'py>] {
        &self.arguments[..self.count]
    }

    /// Returns the keywords with their arguments.
    #[inline]
    pub fn keywords(&self) -> impl Iterator<Item = (Argument<'a, 'py>, Argument<'a, 'py>)> + use<'a, 'py> {
        let names = self.keywords;
        let values = &self.arguments[self.count..];
        // SAFETY: there are as many names as values, which the caller keeps alive.
        let name = move |index: usize| unsafe {
            let names = names?;
            Some(Borrowed::from_ptr(names.py(), ffi::PyTuple_GET_ITEM(names.as_ptr(), index as ffi::Py_ssize_t)))
        };
        values.iter().enumerate().filter_map(move |(index, value)| Some((name(index)?, *value)))
    }

    /// Returns the number of keywords.
    pub fn keyword_count(&self) -> usize {
        self.arguments.len() - self.count
    }

    /// Calls another function with the same arguments, after `first` if there is one.
    pub fn pass_on(
        &self,
        function: &Bound<'py, PyAny>,
        first: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>> {
        let arguments: Vec<_> =
            first.map(Bound::as_borrowed).into_iter().chain(self.arguments.iter().copied()).collect();
        let count = arguments.len() - self.keyword_count();
        let keywords = self.keywords.map_or(std::ptr::null_mut(), |names| names.as_ptr());
        // SAFETY: all are alive and the lock is held, as their types show. There is an argument for each keyword.
        unsafe {
            let called = ffi::PyObject_Vectorcall(function.as_ptr(), pointers(&arguments), count, keywords);
            returned(function.py(), called)
        }
    }

    /// Returns the only argument, if it is positional.
    #[inline]
    pub fn only(&self) -> Option<Argument<'a, 'py>> {
        match self.arguments {
            [argument] if self.count == 1 => Some(*argument),
            _ => None,
        }
    }

    /// Returns the positional arguments, if there are exactly `N`.
    #[inline]
    pub fn exactly<const N: usize>(&self, py: Python<'py>) -> Result<[Argument<'a, 'py>; N]> {
        self.positional().try_into().map_err(|_| self.wrong_count(py, N, self.count))
    }

    #[cold]
    fn wrong_count(&self, py: Python<'_>, wanted: usize, given: usize) -> Raised {
        let function = self.function.to_string_lossy();
        raise::<PyTypeError>(py, &format!("{function}() takes {wanted} positional arguments but {given} were given"))
    }

    /// Parses the arguments of `function(names…, *rest, context=None)`.
    #[inline]
    pub fn scheduled<const N: usize>(
        &self,
        py: Python<'py>,
        names: [&Bound<'py, PyString>; N],
    ) -> Result<Scheduled<'a, 'py, N>> {
        let positional = self.positional();
        let Some((named, rest)) = positional.split_first_chunk::<N>() else { return self.scheduled_slowly(py, names) };
        let context = match self.keywords {
            None => None,
            Some(names) if is_only_context(names) => Some(self.arguments[self.count]),
            Some(_) => return self.scheduled_slowly(py, names),
        };
        Ok(Scheduled { named: *named, rest, context: context.filter(|context| !context.is_none()) })
    }

    /// Parses the arguments of `function(names…)`.
    pub fn named<const N: usize>(
        &self,
        py: Python<'py>,
        names: [&Bound<'py, PyString>; N],
    ) -> Result<[Argument<'a, 'py>; N]> {
        let Scheduled { named, rest, context } = self.scheduled(py, names)?;
        self.refuse_context(py, context)?;
        if !rest.is_empty() {
            return Err(self.wrong_count(py, N, N + rest.len()));
        }
        Ok(named)
    }

    /// Raises if a function without a `context` argument was given one.
    pub fn refuse_context(&self, py: Python<'py>, context: Option<Argument<'_, '_>>) -> Result<()> {
        match context {
            None => Ok(()),
            Some(_) => Err(self.complain(py, "got an unexpected keyword argument", "context")),
        }
    }

    /// Parses arguments if some are missing or other keywords are used.
    #[cold]
    fn scheduled_slowly<const N: usize>(
        &self,
        py: Python<'py>,
        names: [&Bound<'py, PyString>; N],
    ) -> Result<Scheduled<'a, 'py, N>> {
        let positional = self.positional();
        let mut named = [None; N];
        for (place, argument) in named.iter_mut().zip(positional) {
            *place = Some(*argument);
        }
        let mut context = None;
        for (keyword, value) in self.keywords() {
            if is_called(&keyword, "context") {
                context = Some(value);
                if let (Some(names), 1) = (self.keywords, self.keyword_count()) {
                    interned::remember_context_alone(names);
                }
                continue;
            }
            match names.iter().position(|name| keyword.eq(name).unwrap_or(false)) {
                Some(place) if named[place].is_none() => named[place] = Some(value),
                Some(_) => return Err(self.complain(py, "got multiple values for argument", &text(&keyword))),
                None => return Err(self.complain(py, "got an unexpected keyword argument", &text(&keyword))),
            }
        }
        if let Some(missing) = named.iter().position(Option::is_none) {
            let missing = text(names[missing]);
            return Err(self.complain(py, "missing required positional argument:", &missing));
        }
        // Every place is filled.
        let named = named.map(|argument| argument.unwrap_or_else(|| positional[0]));
        let context = context.filter(|context: &Argument<'_, '_>| !context.is_none());
        Ok(Scheduled { named, rest: positional.get(N..).unwrap_or(&[]), context })
    }

    /// Raises the `TypeError` that Python itself would raise.
    #[cold]
    pub fn complain(&self, py: Python<'_>, what: &str, argument: &str) -> Raised {
        raise::<PyTypeError>(py, &format!("{}() {what} '{argument}'", self.function.to_string_lossy()))
    }
}

/// Returns whether the only keyword is `context`, as in all of asyncio's own calls.
#[inline]
fn is_only_context(names: Borrowed<'_, '_, PyTuple>) -> bool {
    // SAFETY: it is a tuple, and has an item.
    names.as_ptr() == interned::context_alone()
        || unsafe {
            ffi::PyTuple_GET_SIZE(names.as_ptr()) == 1
                && ffi::PyTuple_GET_ITEM(names.as_ptr(), 0) == interned::context()
        }
}

/// Returns whether a keyword is `name`.
pub fn is_called(keyword: &Bound<'_, PyAny>, name: &str) -> bool {
    keyword.cast::<PyString>().is_ok_and(|keyword| keyword == name)
}

/// Returns whether a keyword is `name`, which is interned, as most keywords are.
#[inline]
pub fn is_named(keyword: &Bound<'_, PyAny>, name: &Bound<'_, PyString>) -> bool {
    keyword.is(name) || keyword.eq(name).unwrap_or(false)
}

fn text(name: &Bound<'_, PyAny>) -> String {
    name.cast::<PyString>().map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned())
}
