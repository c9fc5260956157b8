//! Conversion of values to Python and back.

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

/// Runs Python code and returns the value of its last line.
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

/// Returns Python's repr of a value.
fn repr(value: &Value) -> String {
    attach(|py| value.to_python(py).unwrap().repr().unwrap().to_string())
}

/// Formats a value for comparison: sets and dicts in a fixed order, and NaN, which is not equal to itself, as text.
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
fn each_type_converts_to_its_python_type() {
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

#[test]
fn derived_types_are_converted_like_their_bases() {
    let code = "
import collections, enum
class Text(str): pass
class Level(enum.IntEnum): HIGH = 3
Pair = collections.namedtuple('Pair', 'a b')
[Text('x'), Level.HIGH, Pair(1, 2), collections.OrderedDict(a=1), float.__new__(type('F', (float,), {}), 2.5)]";
    let expected = Value::list([Value::from("x"), 3.into(), (1, 2).into(), Value::dict([("a", 1)]), 2.5.into()]);
    assert_eq!(value_of(code).unwrap(), expected);
}

#[test]
fn times_keep_their_zones() {
    let value = value_of(
        "
import datetime, zoneinfo
datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin'))",
    );
    let value = DateTime::try_from(value.unwrap()).unwrap();
    let hour = TimeDelta::new(0, 3_600, 0).unwrap();
    assert_eq!(value.time().zone(), Some(&Zone::Named { key: "Europe/Berlin".into(), offset: Some(hour) }));
    assert!(value.time().is_folded());
    assert_eq!(there_and_back(&value.clone().into()), value.into());

    let value = value_of(
        "
import datetime
datetime.datetime(1969, 12, 31, 22, 59, 59, 5, datetime.timezone(datetime.timedelta(hours=-1)))",
    );
    let value = DateTime::try_from(value.unwrap()).unwrap();
    let time = std::time::SystemTime::try_from(&value).unwrap();
    assert_eq!(std::time::UNIX_EPOCH.duration_since(time).unwrap().as_micros(), 999_995);
    let expected = "datetime.datetime(1969, 12, 31, 22, 59, 59, 5, \
        tzinfo=datetime.timezone(datetime.timedelta(days=-1, seconds=82800)))";
    assert_eq!(repr(&value.into()), expected);
}

#[test]
fn values_unknown_to_python_are_errors() {
    let zone = Zone::Named { key: "Middle/Earth".into(), offset: None };
    let time = Time::new(0, 0, 0, 0).unwrap().in_zone(zone).unwrap();
    let error = attach(|py| Value::list([Value::from(time)]).to_python(py).unwrap_err());
    assert!(error.to_string().starts_with("value[0]: ZoneInfoNotFoundError: "), "{error}");
    assert!(matches!(error.kind(), ConversionErrorKind::Raised(_)));
}

#[test]
fn other_objects_stay_in_python() {
    attach(|py| {
        let object = python(py, "object()");
        let value = Value::from_python(&object, &Limits::DEFAULT).unwrap();
        assert!(value.to_python(py).unwrap().is(&object));
        let error =
            Value::from_python(&python(py, "{'x': [1, print]}"), &Limits::DEFAULT.refuse_objects()).unwrap_err();
        let expected = "value['x'][1]: objects of type builtin_function_or_method cannot be converted to Rust";
        assert_eq!(error.to_string(), expected);
    });
}

/// Returns the number of references to an object, not counting the argument.
fn references(object: &Bound<'_, PyAny>) -> usize {
    object.py().import("sys").unwrap().call_method1("getrefcount", (object,)).unwrap().extract::<usize>().unwrap()
}

#[test]
fn objects_can_be_dropped_without_the_lock() {
    let object = attach(|py| python(py, "object()").unbind());
    let before = attach(|py| references(object.bind(py)));
    let value = attach(|py| Value::from_python(object.bind(py), &Limits::DEFAULT).unwrap());
    let copies: Vec<Value> = (0..100).map(|_| value.clone()).collect();
    drop(value);
    attach(|py| assert_eq!(references(object.bind(py)), before + 1));
    std::thread::spawn(move || drop(copies)).join().unwrap();
    attach(|py| {
        // Other tests run in this process too, so there may be more than ours.
        release_dropped(py);
        assert_eq!(references(object.bind(py)), before);
    });
}

#[test]
fn objects_dropped_with_the_lock_are_released_at_once() {
    attach(|py| {
        let object = python(py, "object()");
        let before = references(&object);
        let value = Object::new(&object);
        assert_eq!(references(&object), before + 1);
        drop(value);
        assert_eq!(references(&object), before);
    });
}

#[test]
fn data_that_contains_itself_is_too_deep() {
    for code in ["a = []; a.append(a)\na", "a = {}; a['x'] = (a, a)\na", "a = []; a += [a] * 1000\na"] {
        let error = value_of(code).unwrap_err();
        assert_eq!(*error.kind(), ConversionErrorKind::TooDeep { limit: 128 });
        assert!(error.to_string().len() < 200, "{error}");
    }
    assert_eq!(value_of("a = []\nfor _ in range(127): a = [a]\na").map(|_| ()), Ok(()));
    assert!(value_of("a = []\nfor _ in range(128): a = [a]\na").is_err());
    // Deeper than any limit. Without the check this would overflow the stack.
    assert!(value_of("a = []\nfor _ in range(100000): a = [a]\na").is_err());
}

#[test]
fn limits_apply_to_the_total() {
    // Each level contains the one below twice: 2**60 items in 60 lists.
    let doubling = "a = [1]\nfor _ in range(60): a = [a, a]\na";
    let limits = Limits::DEFAULT.items(1_000);
    let error = attach(|py| Value::from_python(&python(py, doubling), &limits).unwrap_err());
    assert_eq!(*error.kind(), ConversionErrorKind::TooManyItems { limit: 1_000 });
    let limits = Limits::DEFAULT.bytes(1_000);
    for code in ["['x' * 501] * 2", "[b'x' * 501] * 2", "[bytearray(501)] * 2", "1 << 8001", "'ä' * 501"] {
        let error = attach(|py| Value::from_python(&python(py, code), &limits).unwrap_err());
        assert_eq!(*error.kind(), ConversionErrorKind::TooLarge { limit: 1_000 }, "{code}");
    }
}

#[test]
fn deep_rust_values_are_refused() {
    let deep = |levels| (0..levels).fold(Value::None, |inner, _| Value::List(vec![inner]));
    attach(|py| {
        assert!(deep(1_000).to_python(py).is_ok());
        let error = deep(1_001).to_python(py).unwrap_err();
        assert_eq!(*error.kind(), ConversionErrorKind::TooDeep { limit: 1_000 });
    });
}

#[test]
fn values_of_maximum_depth_fit_on_a_small_stack() {
    let code = "a = 1\nfor _ in range(1000): a = [a]\na";
    let value = attach(|py| Value::from_python(&python(py, code), &Limits::DEFAULT.depth(u32::MAX)).unwrap());
    assert_eq!(there_and_back_deep(&value), value.clone());
    assert!(format!("{value:?}").len() > 1_000);
    assert!(serde_json::to_string(&value).unwrap().contains("[1]"));
    let too_deep = ConversionErrorKind::TooDeep { limit: 128 };
    assert_eq!(*pelton_python::value::to_value(&value).unwrap_err().kind(), too_deep);
    assert_eq!(*pelton_python::value::from_value::<Value>(value).unwrap_err().kind(), too_deep);
    let deep = (0..128).fold(Value::None, |inner, _| Value::Tuple(vec![inner]));
    assert_eq!(pelton_python::value::from_value::<Value>(deep.clone()).unwrap(), deep);
    assert_eq!(pelton_python::value::to_value(&deep).unwrap(), deep);
}

fn there_and_back_deep(value: &Value) -> Value {
    let limits = Limits::DEFAULT.depth(u32::MAX);
    attach(|py| Value::from_python(&value.to_python(py).unwrap(), &limits).unwrap())
}

#[test]
fn a_lone_surrogate_is_an_error_with_its_path() {
    let error = value_of("{'names': ['a', 'b\\ud800c']}").unwrap_err();
    assert_eq!(*error.kind(), ConversionErrorKind::Surrogate { index: 1 });
    assert_eq!(
        error.within("args[0]").to_string(),
        "args[0]['names'][1]: not valid Unicode: character 1 is a lone surrogate"
    );
    let error = value_of("{'b\\udfff': 1}").unwrap_err();
    assert_eq!(error.path(), "value.keys()[0]");
}

#[test]
fn data_that_changes_during_conversion_is_an_error() {
    // Only a zone written in Python runs Python code during a conversion.
    let zone = "
import datetime
class Zone(datetime.tzinfo):
    def utcoffset(self, when):
        change()
        return datetime.timedelta(0)
time = datetime.datetime(2024, 1, 1, tzinfo=Zone())
";
    for (code, result) in [
        ("def change(): data.clear()\ndata = [time, [], []]\ndata", "value: changed while it was being converted"),
        ("def change(): data.append(1)\ndata = [time, [], []]\ndata", "value: changed while it was being converted"),
        ("def change(): data.clear()\ndata = {i: time for i in range(9)}\ndata", "value: changed"),
        ("def change(): data[len(data)] = time\ndata = {0: time}\ndata", "value: changed"),
        (
            "def change(): data.pop(next(iter(data))); data[object()] = time\ndata = {0: time, 1: 2}\ndata",
            "value: changed",
        ),
        // Hashing a time, as a set does, asks for its offset too.
        ("def change(): 'data' in globals() and data.add(object())\ndata = {time, 1, 2, 3}\ndata", "value: changed"),
        ("def change(): raise KeyError('k')\ndata = [1, time]\ndata", "value[1]: KeyError: 'k'"),
        ("def change(): raise KeyboardInterrupt\ndata = [1, time]\ndata", "value[1]: KeyboardInterrupt"),
    ] {
        let error = value_of(&format!("{zone}{code}")).unwrap_err();
        assert!(error.to_string().starts_with(result), "{code}: {error}");
        attach(|py| assert!(PyErr::take(py).is_none(), "{code}"));
    }
}

#[test]
fn unhashable_keys_are_refused() {
    attach(|py| {
        let value = Value::list([Value::Dict(vec![(1.into(), 2.into()), (Value::List(vec![]), 3.into())])]);
        let error = value.to_python(py).unwrap_err();
        assert_eq!(error.to_string(), "value[0].keys()[1]: unhashable: TypeError: unhashable type: 'list'");
        let error = Value::Set(vec![Value::Dict(vec![])]).to_python(py).unwrap_err();
        assert!(matches!(error.kind(), ConversionErrorKind::Unhashable(_)), "{error}");
        assert!(PyErr::take(py).is_none());
    });
}

#[test]
fn large_bytes_are_shared_and_not_copied() {
    attach(|py| {
        let object = python(py, "b'x' * 100_000");
        let before = references(&object);
        let address = object.extract::<&[u8]>().unwrap().as_ptr();
        let Value::Bytes(bytes) = Value::from_python(&object, &Limits::DEFAULT).unwrap() else { panic!() };
        assert_eq!(bytes.as_ptr(), address);
        assert_eq!(references(&object), before + 1);
        // A slice keeps the object alive, from another thread too.
        let part = std::thread::spawn(move || bytes.slice(99_000..)).join().unwrap();
        assert_eq!(references(&object), before + 1);
        assert_eq!(part.len(), 1_000);
        drop(part);
        assert_eq!(references(&object), before);
    });
}

#[test]
fn a_memoryview_of_immutable_memory_is_shared() {
    attach(|py| {
        let object = python(py, "memoryview(b'0123456789' * 1000)[10:9000]");
        let Value::Buffer(bytes) = Value::from_python(&object, &Limits::DEFAULT).unwrap() else { panic!() };
        let base = object.getattr("obj").unwrap();
        assert_eq!(bytes.as_ptr(), base.extract::<&[u8]>().unwrap()[10..].as_ptr());
        assert_eq!(bytes.len(), 8_990);

        let object = python(py, "memoryview(bytearray(b'0123456789' * 1000))");
        let Value::Buffer(copied) = Value::from_python(&object, &Limits::DEFAULT).unwrap() else { panic!() };
        object.set_item(0, b'x').unwrap();
        assert_eq!(copied[0], b'0');

        let strided = Value::from_python(&python(py, "memoryview(b'0123456789')[::3]"), &Limits::DEFAULT).unwrap();
        assert_eq!(strided.as_bytes().unwrap().as_ref(), b"0369");
        let released = Value::from_python(&python(py, "m = memoryview(b''); m.release()\nm"), &Limits::DEFAULT);
        assert!(released.unwrap_err().to_string().contains("released"));
        assert_eq!(value_of("memoryview(b'')").unwrap(), Value::Buffer(Bytes::new()));
    });
}

#[test]
fn rust_memory_is_shared_with_python() {
    let memory: std::sync::Arc<[u8]> = vec![7; 10_000].into();
    attach(|py| {
        let view = Value::from(memory.clone()).to_python(py).unwrap();
        assert_eq!(std::sync::Arc::strong_count(&memory), 2);
        let names = PyDict::new(py);
        names.set_item("view", &view).unwrap();
        let check = c"assert view[9999] == 7 and view.readonly and len(view) == 10000";
        py.run(check, Some(&names), None).unwrap();
        assert!(view.set_item(0, 1).unwrap_err().to_string().contains("read-only"));
        // And back, still without copying.
        let Value::Buffer(bytes) = Value::from_python(&view, &Limits::DEFAULT).unwrap() else { panic!() };
        assert_eq!(bytes.as_ptr(), memory.as_ptr());
        drop((names, view, bytes));
        assert_eq!(std::sync::Arc::strong_count(&memory), 1);
    });
}

#[test]
fn values_convert_to_rust_types_or_fail() {
    let value = || Value::from(("a", vec![1, 2], 2.5, u64::MAX));
    let (text, list, float, large): (String, Vec<u8>, f32, u64) = value().try_into().unwrap();
    assert_eq!((text.as_str(), list, float, large), ("a", vec![1, 2], 2.5, u64::MAX));
    let error = <(String, Vec<u8>, f32, i64)>::try_from(value()).unwrap_err();
    assert_eq!(error.to_string(), "value[3]: out of range: a number of 64 bits does not fit into i64");
    let error = <(String, Vec<String>, f32, i64)>::try_from(value()).unwrap_err();
    assert_eq!(error.to_string(), "value[1][0]: expected str, found int");
    let error = <(String,)>::try_from(value()).unwrap_err();
    assert_eq!(error.to_string(), "value: expected a tuple of 1, found a tuple of 4");
    let error = u8::try_from(Value::from(256)).unwrap_err();
    assert_eq!(error.to_string(), "value: out of range: 256 does not fit into u8");
    assert!(bool::try_from(Value::from(1)).is_err());
    let map = std::collections::HashMap::<String, i64>::try_from(Value::dict([("a", 1)])).unwrap();
    assert_eq!(map["a"], 1);
}

mod serde_data {
    use pelton_python::value::{from_value, to_value};
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Order {
        id: u64,
        name: Option<String>,
        lines: Vec<Line>,
        when: DateTime,
        pair: (i8, char),
        state: State,
        huge: u128,
        unit: (),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Line {
        Empty,
        Count(u32),
        Range(i32, i32),
        Named { name: String, price: f64 },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum State {
        Open,
    }

    fn order() -> Order {
        Order {
            id: u64::MAX,
            name: None,
            lines: vec![Line::Empty, Line::Count(2), Line::Range(-1, 1), Line::Named { name: "n".into(), price: 0.5 }],
            when: "2024-02-29T12:00:00.000001+01:00[Europe/Berlin]".parse().unwrap(),
            pair: (-8, 'ß'),
            state: State::Open,
            huge: u128::MAX,
            unit: (),
        }
    }

    #[test]
    fn a_struct_goes_to_python_and_back() {
        let value = to_value(&order()).unwrap();
        assert_eq!(value.get("state"), Some(&"open".into()));
        assert!(matches!(value.get("when"), Some(Value::DateTime(_))));
        assert_eq!(value.get("lines").unwrap().as_slice().unwrap()[1], Value::dict([("Count", 2)]));
        assert_eq!(from_value::<Order>(there_and_back(&value)).unwrap(), order());
    }

    #[test]
    fn errors_contain_the_path() {
        let mut value = to_value(&order()).unwrap();
        let Value::Dict(pairs) = &mut value else { panic!() };
        pairs[2].1 = Value::list([Value::from("Empty"), Value::dict([("Count", "many")])]);
        let error = from_value::<Order>(value).unwrap_err();
        let expected = "value['lines'][1]: invalid type: string \"many\", expected u32";
        assert_eq!(error.to_string(), expected);
        let error = from_value::<(u8, u8)>(Value::from((1, 2, 3))).unwrap_err();
        assert_eq!(error.to_string(), "value: 1 more items than expected");
        let error = to_value(&[Value::from(attach(|py| Object::new(&python(py, "object()"))))]).unwrap_err();
        assert_eq!(error.to_string(), "value[0]: a Python object cannot be serialized");
    }

    #[test]
    fn json_and_python_exchange_data() {
        let json = r#"{"a":[1,-2.5,null,true,"x"],"b":{"c":18446744073709551615}}"#;
        let value: Value = serde_json::from_str(json).unwrap();
        assert_eq!(repr(&value), "{'a': [1, -2.5, None, True, 'x'], 'b': {'c': 18446744073709551615}}");
        assert_eq!(serde_json::to_string(&there_and_back(&value)).unwrap(), json);
        let day = serde_json::to_string(&Value::from(Date::new(2024, 1, 2).unwrap())).unwrap();
        assert_eq!(day, "\"2024-01-02\"");
    }

    proptest! {
        #[test]
        fn values_pass_through_serde_unchanged(value in values()) {
            prop_assert_eq!(format!("{:?}", to_value(&value).unwrap()), format!("{value:?}"));
            prop_assert_eq!(format!("{:?}", from_value::<Value>(value.clone()).unwrap()), format!("{value:?}"));
        }
    }
}

fn dates() -> impl Strategy<Value = Date> {
    (1..=9999, 1_u32..=12, 1_u32..=31)
        .prop_filter_map("no such date", |(year, month, day)| Date::new(year, month, day).ok())
}

fn deltas() -> impl Strategy<Value = TimeDelta> {
    (-999_999_999_i64..999_999_999, 0_i64..86_400, 0_i64..1_000_000)
        .prop_map(|(days, seconds, microseconds)| TimeDelta::new(days, seconds, microseconds).unwrap())
}

fn times() -> impl Strategy<Value = Time> {
    let zone = prop_oneof![
        Just(None),
        (-86_399_999_999_i64..=86_399_999_999)
            .prop_map(|offset| Some(Zone::Offset(TimeDelta::new(0, 0, offset).unwrap()))),
        prop_oneof!["Europe/Berlin", "America/New_York"].prop_map(|key| Some(Zone::Named { key, offset: None })),
    ];
    (0_u32..24, 0_u32..60, 0_u32..60, 0_u32..1_000_000, any::<bool>(), zone).prop_map(|(h, m, s, us, fold, zone)| {
        let time = Time::new(h, m, s, us).unwrap();
        let time = if fold { time.folded() } else { time };
        zone.map_or(time.clone(), |zone| time.in_zone(zone).unwrap())
    })
}

/// Values that Python can hash.
fn keys() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<i64>().prop_map(Value::from),
        any::<i128>().prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..40)
            .prop_map(|bytes| Value::from(num_bigint::BigInt::from_signed_bytes_le(&bytes))),
        any::<String>().prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..100).prop_map(Value::bytes),
        dates().prop_map(Value::from),
        deltas().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 10, 3, |inner| {
        prop::collection::vec(inner, 0..3).prop_map(|items| Value::Tuple(distinct(items)))
    })
}

/// Removes items that Python considers equal, because a set keeps only one of them.
fn distinct(items: Vec<Value>) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::new();
    for item in items {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        keys(),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        times().prop_map(Value::from),
        (dates(), times()).prop_filter_map("has a named zone", |(date, time)| {
            // Its offset, which is returned, depends on the day.
            (!matches!(time.zone(), Some(Zone::Named { .. }))).then(|| DateTime::new(date, time).into())
        }),
        prop::collection::vec(any::<u8>(), 0..5_000).prop_map(|bytes| Value::Buffer(bytes.into())),
        prop::collection::vec(keys(), 0..5).prop_map(|items| Value::Set(distinct(items))),
        prop::collection::vec(keys(), 0..5).prop_map(|items| Value::FrozenSet(distinct(items))),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        let pairs = prop::collection::vec((keys(), inner.clone()), 0..6).prop_map(|pairs| {
            let mut kept: Vec<(Value, Value)> = Vec::new();
            for (key, value) in pairs {
                if !kept.iter().any(|(known, _)| *known == key) {
                    kept.push((key, value));
                }
            }
            Value::Dict(kept)
        });
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Tuple),
            pairs,
        ]
    })
}

proptest! {
    #[test]
    fn values_come_back_from_python_as_they_were(value in values()) {
        prop_assert_eq!(comparable(&there_and_back(&value)), comparable(&value));
    }

    #[test]
    fn python_agrees_about_dates_and_times(value in prop_oneof![
        dates().prop_map(|date| (date.to_string(), Value::from(date))),
        times().prop_filter("named", |time| !matches!(time.zone(), Some(Zone::Named { .. })) && !time.is_folded())
            .prop_map(|time| (time.to_string(), Value::from(time))),
    ]) {
        let (text, value) = value;
        let python = attach(|py| value.to_python(py).unwrap().call_method0("isoformat").unwrap().to_string());
        prop_assert_eq!(text, python);
    }

    #[test]
    fn dates_and_times_parse_from_their_text(date in dates(), time in times(), delta in deltas()) {
        let both = DateTime::new(date, time);
        prop_assert_eq!(both.to_string().parse::<DateTime>().unwrap(), both);
        prop_assert_eq!(delta.to_string().parse::<TimeDelta>().unwrap(), delta);
    }

    #[test]
    fn parsing_dates_never_panics(text in any::<String>(), like in "[-+P0-9:.TDSZ\\[\\]]{0,30}") {
        for text in [text, like] {
            let _ = text.parse::<DateTime>();
            let _ = text.parse::<Date>();
            let _ = text.parse::<Time>();
            let _ = text.parse::<TimeDelta>();
        }
    }

    #[test]
    fn system_times_agree_with_python(seconds in -62_000_000_000_i64..250_000_000_000, nanos in 0_u32..1_000_000_000) {
        let distance = std::time::Duration::new(seconds.unsigned_abs(), nanos);
        let clock = if seconds < 0 { std::time::UNIX_EPOCH - distance } else { std::time::UNIX_EPOCH + distance };
        let time = DateTime::try_from(clock).unwrap();
        let back = std::time::SystemTime::try_from(&time).unwrap();
        prop_assert!(clock.duration_since(back).unwrap() < std::time::Duration::from_micros(1));
        let python = attach(|py| {
            let epoch = python(py, "import datetime\ndatetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)");
            let microseconds = if seconds < 0 { -(distance.as_nanos().div_ceil(1_000) as i128) } else { distance.as_micros() as i128 };
            let delta = Value::from(TimeDelta::from_microseconds(microseconds).unwrap()).to_python(py).unwrap();
            Value::from_python(&epoch.add(delta).unwrap(), &Limits::DEFAULT).unwrap()
        });
        prop_assert_eq!(Value::from(time), python);
    }
}
