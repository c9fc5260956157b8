//! Conversion of Python objects to terms.
//!
//! | Python | Erlang |
//! |---|---|
//! | `None`, `bool` | `none`, `true` or `false` |
//! | `int`, `float` | integer, float; `nan`, `infinity` and `neg_infinity` |
//! | `str`, `bytes`, `bytearray`, `memoryview` | binary |
//! | `list`, `tuple`, `dict`, sets | list, tuple, map, list |
//! | `erlang.Pid`, `erlang.Ref`, `erlang.Atom` | pid, reference, atom |
//! | NumPy's arrays and numbers | what their `tolist()` returns |
//! | anything else | its `str()`, as a binary |

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMemoryView, PySet, PyString, PyTuple,
};
use rustler::sys;
use rustler::{Encoder, Env, NewBinary};

use crate::environment::RawTerm;
use crate::{atoms, opaque};

/// How deep objects may be nested. A cycle reaches it too.
const DEEPEST: u32 = 1_000;

/// Converts an object.
pub(crate) fn term(env: Env<'_>, object: &Bound<'_, PyAny>) -> PyResult<RawTerm> {
    nested(env, object, DEEPEST)
}

fn nested(env: Env<'_>, object: &Bound<'_, PyAny>, levels: u32) -> PyResult<RawTerm> {
    if let Ok(number) = object.cast_exact::<PyFloat>() {
        return Ok(float(env, number.value()));
    }
    if let Ok(number) = object.cast::<PyInt>() {
        return if object.is_instance_of::<PyBool>() {
            Ok(object.is_truthy()?.encode(env).as_c_arg())
        } else {
            integer(env, number)
        };
    }
    if let Ok(string) = object.cast::<PyString>() {
        return match string.to_str() {
            Ok(string) => text(env, string),
            // A lone surrogate, which UTF-8 cannot express.
            Err(_) => text(env, &string.to_string_lossy()),
        };
    }
    if object.is_none() {
        return Ok(atoms::none().to_term(env).as_c_arg());
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return binary(env, bytes.as_bytes());
    }
    let Some(levels) = levels.checked_sub(1) else {
        return Err(PyValueError::new_err(format!("the result is cyclic or nested more than {DEEPEST} levels deep")));
    };
    if let Ok(list) = object.cast::<PyList>() {
        return sequence(env, list.iter(), list.len(), levels);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        let items = tuple.iter().map(|item| nested(env, &item, levels)).collect::<PyResult<Vec<_>>>()?;
        // SAFETY: the items are terms of this environment.
        return Ok(unsafe { sys::enif_make_tuple_from_array(env.as_c_arg(), items.as_ptr(), items.len() as _) });
    }
    if let Ok(dict) = object.cast::<PyDict>() {
        return map(env, dict, levels);
    }
    rarer(env, object, levels)
}

fn rarer(env: Env<'_>, object: &Bound<'_, PyAny>, levels: u32) -> PyResult<RawTerm> {
    if let Some(term) = opaque::term(env, object) {
        return term;
    }
    if let Ok(number) = object.cast::<PyFloat>() {
        return Ok(float(env, number.value()));
    }
    if let Ok(bytes) = object.cast::<PyByteArray>() {
        return binary(env, &bytes.to_vec());
    }
    if object.is_instance_of::<PyMemoryView>() {
        return binary(env, &PyBuffer::<u8>::get(object)?.to_vec(object.py())?);
    }
    if object.is_instance_of::<PySet>() || object.is_instance_of::<PyFrozenSet>() {
        let items = object.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        let count = items.len();
        return sequence(env, items.into_iter(), count, levels);
    }
    // NumPy's arrays and numbers.
    if object.hasattr("tolist")? && object.hasattr("dtype")? {
        return nested(env, &object.call_method0("tolist")?, levels);
    }
    text(env, &object.str()?.to_string_lossy())
}

fn float(env: Env<'_>, number: f64) -> RawTerm {
    if number.is_finite() {
        return number.encode(env).as_c_arg();
    }
    let atom = match number {
        _ if number.is_nan() => atoms::nan(),
        f64::INFINITY => atoms::infinity(),
        _ => atoms::neg_infinity(),
    };
    atom.to_term(env).as_c_arg()
}

fn sequence<'py>(
    env: Env<'_>,
    items: impl Iterator<Item = Bound<'py, PyAny>>,
    count: usize,
    levels: u32,
) -> PyResult<RawTerm> {
    let mut terms = Vec::with_capacity(count.min(1 << 16));
    for item in items {
        terms.push(nested(env, &item, levels)?);
    }
    // SAFETY: the items are terms of this environment.
    Ok(unsafe { sys::enif_make_list_from_array(env.as_c_arg(), terms.as_ptr(), terms.len() as _) })
}

fn map(env: Env<'_>, dict: &Bound<'_, PyDict>, levels: u32) -> PyResult<RawTerm> {
    let count = dict.len();
    let (mut keys, mut values) = (Vec::with_capacity(count), Vec::with_capacity(count));
    // A copy: converting may run Python code, which may change the dictionary.
    for item in dict.items() {
        let (key, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
        keys.push(nested(env, &key, levels)?);
        values.push(nested(env, &value, levels)?);
    }
    let mut made = 0;
    // SAFETY: keys and values are terms of this environment, as many of one as of the other; `made` may be written to.
    let all_different = unsafe {
        sys::enif_make_map_from_arrays(env.as_c_arg(), keys.as_ptr(), values.as_ptr(), keys.len() as _, &mut made)
    };
    if all_different != 0 {
        return Ok(made);
    }
    // Two keys, such as 'a' and b'a', are the same in Erlang. The later one counts.
    // SAFETY: as above.
    unsafe {
        made = sys::enif_make_new_map(env.as_c_arg());
        for (key, value) in keys.into_iter().zip(values) {
            sys::enif_make_map_put(env.as_c_arg(), made, key, value, &mut made);
        }
    }
    Ok(made)
}

pub(crate) fn text(env: Env<'_>, text: &str) -> PyResult<RawTerm> {
    binary(env, text.as_bytes())
}

fn binary(env: Env<'_>, bytes: &[u8]) -> PyResult<RawTerm> {
    let mut binary = NewBinary::new(env, bytes.len());
    binary.as_mut_slice().copy_from_slice(bytes);
    let term: rustler::Term<'_> = binary.into();
    Ok(term.as_c_arg())
}

/// The first byte of terms in the external format, and the kind of large integers there.
const VERSION: u8 = 131;
const LARGE_BIG: u8 = 111;

fn integer(env: Env<'_>, number: &Bound<'_, PyInt>) -> PyResult<RawTerm> {
    if let Ok(number) = number.extract::<i64>() {
        return Ok(number.encode(env).as_c_arg());
    }
    let negative = number.lt(0)?;
    let magnitude = number.call_method0("__abs__")?;
    let length = magnitude.call_method0("bit_length")?.extract::<usize>()?.div_ceil(8);
    let bytes = magnitude.call_method1("to_bytes", (length, "little"))?;
    let bytes = bytes.cast::<PyBytes>()?.as_bytes();
    let size = u32::try_from(length).map_err(|_| PyValueError::new_err("an integer is too large for Erlang"))?;
    let mut encoded = vec![VERSION, LARGE_BIG];
    encoded.extend_from_slice(&size.to_be_bytes());
    encoded.push(u8::from(negative));
    encoded.extend_from_slice(bytes);
    // The virtual machine refuses integers beyond its own limit.
    let term = env.binary_to_term(&encoded);
    term.map(|(term, _)| term.as_c_arg()).ok_or_else(|| PyRuntimeError::new_err("an integer is too large for Erlang"))
}
