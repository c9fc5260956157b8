//! Conversion of terms to Python objects.
//!
//! | Erlang | Python |
//! |---|---|
//! | `true`, `false` | `bool` |
//! | `none`, `nil`, `undefined` | `None` |
//! | another atom | `str` |
//! | integer, float | `int`, `float` |
//! | binary | `str` if it is UTF-8, otherwise `bytes` |
//! | `{bytes, Binary}` | `bytes` |
//! | list, tuple, map | `list`, `tuple`, `dict` |
//! | pid, reference | `erlang.Pid`, `erlang.Ref` |

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use rustler::types::tuple::get_tuple;
use rustler::{Binary, ListIterator, MapIterator, Term, TermType};

use crate::opaque::{Pid, Ref};
use crate::{atoms, callbacks};

/// How deep terms may be nested. Each level takes stack.
const DEEPEST: u32 = 1_000;

/// Converts a term.
pub(crate) fn object<'py>(py: Python<'py>, term: Term<'_>) -> PyResult<Bound<'py, PyAny>> {
    nested(py, term, DEEPEST)
}

fn nested<'py>(py: Python<'py>, term: Term<'_>, levels: u32) -> PyResult<Bound<'py, PyAny>> {
    let Some(levels) = levels.checked_sub(1) else {
        return Err(PyValueError::new_err(format!("a term is nested more than {DEEPEST} levels deep")));
    };
    Ok(match term.get_type() {
        TermType::Integer => integer(py, term)?,
        TermType::Float => term.decode::<f64>().map_err(unreadable)?.into_pyobject(py)?.into_any(),
        TermType::Binary => binary(py, term)?,
        TermType::Atom => atom(py, term)?,
        TermType::List => {
            let list = PyList::empty(py);
            let mut rest = term;
            while let Ok((head, tail)) = rest.list_get_cell() {
                list.append(nested(py, head, levels)?)?;
                rest = tail;
            }
            if !rest.is_empty_list() {
                return Err(PyTypeError::new_err("an improper list has no form in Python"));
            }
            list.into_any()
        }
        TermType::Tuple => {
            let items = get_tuple(term).map_err(unreadable)?;
            if let [tag, content] = items[..]
                && atoms::bytes() == tag
                && content.is_binary()
            {
                return Ok(PyBytes::new(py, &content.decode::<Binary<'_>>().map_err(unreadable)?).into_any());
            }
            let items = items.into_iter().map(|item| nested(py, item, levels)).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, items)?.into_any()
        }
        TermType::Map => {
            let dict = PyDict::new(py);
            for (key, value) in MapIterator::new(term).ok_or_else(|| unreadable(rustler::Error::BadArg))? {
                dict.set_item(nested(py, key, levels)?, nested(py, value, levels)?)?;
            }
            dict.into_any()
        }
        TermType::Pid => Bound::new(py, Pid::new(term))?.into_any(),
        TermType::Ref => match callbacks::kept_object(py, term) {
            Some(object) => object,
            None => Bound::new(py, Ref::new(term))?.into_any(),
        },
        other => return Err(PyTypeError::new_err(format!("a {other:?} has no form in Python"))),
    })
}

fn unreadable(_: rustler::Error) -> PyErr {
    PyValueError::new_err("a term cannot be read")
}

/// Converts the items of a list.
pub(crate) fn items<'a>(term: Term<'a>) -> PyResult<ListIterator<'a>> {
    term.decode().map_err(|_| PyTypeError::new_err("the arguments must be a list"))
}

fn atom<'py>(py: Python<'py>, term: Term<'_>) -> PyResult<Bound<'py, PyAny>> {
    let is = |atom: rustler::Atom| atom == term;
    if is(rustler::types::atom::true_()) || is(rustler::types::atom::false_()) {
        let truth = is(rustler::types::atom::true_());
        return Ok(truth.into_pyobject(py)?.to_owned().into_any());
    }
    if is(atoms::none()) || is(atoms::nil()) || is(atoms::undefined()) {
        return Ok(py.None().into_bound(py));
    }
    let text = atoms::text(term).ok_or_else(|| PyValueError::new_err("an atom is not valid Unicode"))?;
    Ok(PyString::new(py, text).into_any())
}

fn binary<'py>(py: Python<'py>, term: Term<'_>) -> PyResult<Bound<'py, PyAny>> {
    let Ok(bytes) = term.decode::<Binary<'_>>() else {
        return Err(PyTypeError::new_err("a bit string has no form in Python unless it is a binary"));
    };
    Ok(match std::str::from_utf8(&bytes) {
        Ok(text) => PyString::new(py, text).into_any(),
        Err(_) => PyBytes::new(py, &bytes).into_any(),
    })
}

/// The first byte of terms in the external format, and the kinds of large integers there.
const VERSION: u8 = 131;
const SMALL_BIG: u8 = 110;
const LARGE_BIG: u8 = 111;

fn integer<'py>(py: Python<'py>, term: Term<'_>) -> PyResult<Bound<'py, PyAny>> {
    if let Ok(number) = term.decode::<i64>() {
        return Ok(number.into_pyobject(py)?.into_any());
    }
    // Sign and magnitude, the least significant byte first.
    let encoded = term.to_binary();
    let (sign, magnitude) = match encoded.as_slice() {
        [VERSION, SMALL_BIG, _, sign, magnitude @ ..] => (sign, magnitude),
        [VERSION, LARGE_BIG, _, _, _, _, sign, magnitude @ ..] => (sign, magnitude),
        _ => return Err(PyValueError::new_err("an integer cannot be read")),
    };
    let number = py.get_type::<pyo3::types::PyInt>().call_method1("from_bytes", (magnitude, "little"))?;
    if *sign == 0 { Ok(number) } else { number.neg() }
}
