//! Values to Python and back.

#![cfg(feature = "embed")]

use std::ffi::CString;
use std::sync::Once;

use bytes::Bytes;
use pelton_python::value::{ConversionErrorKind, Date, DateTime, Limits, Time, TimeDelta, Zone, release_dropped};
use pelton_python::{ConversionError, Object, Value};
use proptest::prelude::*;
use pyo3::prelude::*;
use pyo3::types::PyDict;

fn attach<R>(body: impl FnOnce(Python<'_>) -> R) -> R {
    static START: Once = Once::new();
    START.call_once(Python::initialize);
    Python::attach(body)
}

/// What the last line of some Python code is, after the others have run.
fn python<'py>(py: Python<'py>, code: &str) -> Bound<'py, PyAny> {
    let names = PyDict::new(py);
    let (before, last) = code.trim().rsplit_once('\n').unwrap_or(("", code));
    py.run(&CString::new(before).unwrap(), Some(&names), None).unwrap();
    py.eval(&CString::new(last.trim()).unwrap(), Some(&names), None).unwrap()
}

fn value_of(code: &str) -> Result<Value, ConversionError> {
    attach(|py| Value::from_python(&python(py, code), &Limits::DEFAULT))
}

fn there_and_back(value: &Value) -> Value {
    attach(|py| Value::from_python(&value.to_python(py).unwrap(), &Limits::DEFAULT).unwrap())
}

/// What Python says about a value.
fn repr(value: &Value) -> String {
    attach(|py| value.to_python(py).unwrap().repr().unwrap().to_string())
}

/// Values that Python has in any order, in one that is always the same; and NaN, which is not equal to itself, as text.
fn comparable(value: &Value) -> String {
    let sorted = |items: &[Value]| {
        let mut items: Vec<String> = items.iter().map(comparable).collect();
        items.sort();
        items.join(",")
    };
    match value {
        Value::Set(items) => format!("set({})", sorted(items)),
        Value::FrozenSet(items) => format!("frozenset({})", sorted(items)),
        Value::List(items) => format!("[{}]", items.iter().map(comparable).collect::<Vec<_>>().join(",")),
        Value::Tuple(items) => format!("({})", items.iter().map(comparable).collect::<Vec<_>>().join(",")),
        Value::Dict(pairs) => {
            let pair = |(key, value): &(Value, Value)| format!("{}:{}", comparable(key), comparable(value));
            format!("{{{}}}", pairs.iter().map(pair).collect::<Vec<_>>().join(","))
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn each_type_is_what_python_calls_it() {
    let values: &[(Value, &str)] = &[
        (Value::None, "None"),
        (true.into(), "True"),
        ((-7).into(), "-7"),
        (u64::MAX.into(), "18446744073709551615"),
        (i128::MIN.into(), "-170141183460469231731687303715884105728"),
        (1.5.into(), "1.5"),
        ("ä€𝄞\0".into(), "'ä€𝄞\\x00'"),
        (Value::bytes("ab"), "b'ab'"),
        (vec![1, 2].into(), "[1, 2]"),
        ((1, "a").into(), "(1, 'a')"),
        (Value::dict([("b", 1), ("a", 2)]), "{'b': 1, 'a': 2}"),
        (Value::Set(vec![]), "set()"),
        (Value::FrozenSet(vec![1.into()]), "frozenset({1})"),
        (Date::new(2024, 2, 29).unwrap().into(), "datetime.date(2024, 2, 29)"),
        (Time::new(1, 2, 3, 4).unwrap().folded().into(), "datetime.time(1, 2, 3, 4, fold=1)"),
        (TimeDelta::new(0, -1, 0).unwrap().into(), "datetime.timedelta(days=-1, seconds=86399)"),
    ];
    for (value, expected) in values {
        assert_eq!(repr(value), *expected);
        assert_eq!(there_and_back(value), *value);
    }
}
