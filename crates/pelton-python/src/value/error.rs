//! What can be wrong with data on its way.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

use pyo3::ffi::{self, PyObject};

use super::Value;
use crate::object::{Owned, Raised};

/// Data that cannot be converted, and where in it the trouble is: `args[0]['x'][3]: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionError(Box<Trouble>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Trouble {
    kind: ConversionErrorKind,
    root: Cow<'static, str>,
    /// The innermost first.
    path: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// The item of a list or tuple.
    Item(usize),
    /// The value under a key.
    Under(String),
    /// A key of a dict.
    Key(usize),
    /// The element of a set.
    Element(usize),
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConversionErrorKind {
    /// Too many levels, or an object that contains itself.
    #[error("more than {limit} levels deep, or contains itself")]
    TooDeep {
        /// How many are allowed.
        limit: u32,
    },
    /// Too many items in all.
    #[error("more than {limit} items in all")]
    TooManyItems {
        /// How many are allowed.
        limit: usize,
    },
    /// Too many bytes in all.
    #[error("more than {limit} bytes in all")]
    TooLarge {
        /// How many are allowed.
        limit: usize,
    },
    /// A `str` with half of a surrogate pair in it, which is no Unicode text.
    #[error("no Unicode text: character {index} is a lone surrogate")]
    Surrogate {
        /// Which character it is, counting from 0.
        index: usize,
    },
    /// Python code changed the list or dict while it was being converted.
    #[error("changed while it was being converted")]
    Changed,
    /// A key of a dict or an element of a set that cannot be one.
    #[error("unhashable: {0}")]
    Unhashable(String),
    /// A number or date outside of what the other side has.
    #[error("out of range: {0}")]
    OutOfRange(String),
    /// Of another type than what was asked for.
    #[error("{expected} expected, not {found}")]
    WrongType {
        /// What was asked for.
        expected: Cow<'static, str>,
        /// What it is.
        found: String,
    },
    /// An object that has no form in Rust, where such are refused.
    #[error("objects of type {0} have no form in Rust")]
    Opaque(String),
    /// Python raised an exception on the way.
    #[error("{0}")]
    Raised(String),
    /// Something else, as serde reports it.
    #[error("{0}")]
    Other(String),
}

/// Of a path that is longer than both together, so much is shown at its start and at its end.
const SHOWN: (usize, usize) = (8, 4);
/// Of a key, so many characters are shown.
const SHOWN_OF_KEY: usize = 40;

impl ConversionError {
    pub(crate) fn new(kind: ConversionErrorKind) -> ConversionError {
        ConversionError(Box::new(Trouble { kind, root: Cow::Borrowed("value"), path: Vec::new() }))
    }

    pub(crate) fn out_of_range(what: impl fmt::Display) -> ConversionError {
        ConversionError::new(ConversionErrorKind::OutOfRange(what.to_string()))
    }

    pub(crate) fn wrong_type(expected: impl Into<Cow<'static, str>>, found: &Value) -> ConversionError {
        let found = found.type_name().to_owned();
        ConversionError::new(ConversionErrorKind::WrongType { expected: expected.into(), found })
    }

    /// What is wrong.
    pub fn kind(&self) -> &ConversionErrorKind {
        &self.0.kind
    }

    /// Where: the way there from the whole, as Python would write it.
    pub fn path(&self) -> String {
        let Trouble { root, path, .. } = &*self.0;
        let mut text = root.clone().into_owned();
        let shorten = path.len() > SHOWN.0 + SHOWN.1;
        for (index, step) in path.iter().rev().enumerate() {
            if shorten && index == SHOWN.0 {
                text.push('…');
            }
            if !shorten || index < SHOWN.0 || index >= path.len() - SHOWN.1 {
                text.push_str(&step.to_string());
            }
        }
        text
    }

    /// Says what the whole is called that the path starts from, "value" otherwise.
    pub fn within(mut self, root: impl Into<Cow<'static, str>>) -> ConversionError {
        self.0.root = root.into();
        self
    }

    /// It was in this item of a list or tuple.
    #[cold]
    pub(crate) fn in_item(self, index: usize) -> ConversionError {
        self.then(Step::Item(index))
    }

    /// It was in what a dict has under this key.
    #[cold]
    pub(crate) fn under(self, key: &Value) -> ConversionError {
        let shown = match key {
            Value::Str(text) if text.chars().count() > SHOWN_OF_KEY => {
                format!("'{}…'", text.chars().take(SHOWN_OF_KEY).collect::<String>().escape_debug())
            }
            Value::Str(text) => format!("'{}'", text.escape_debug()),
            Value::Int(number) => number.to_string(),
            Value::Bool(true) => "True".to_owned(),
            Value::Bool(false) => "False".to_owned(),
            Value::None => "None".to_owned(),
            other => format!("<{}>", other.type_name()),
        };
        self.then(Step::Under(shown))
    }

    /// It was in this key of a dict.
    #[cold]
    pub(crate) fn in_key(self, index: usize) -> ConversionError {
        self.then(Step::Key(index))
    }

    /// It was in this element of a set.
    #[cold]
    pub(crate) fn in_element(self, index: usize) -> ConversionError {
        self.then(Step::Element(index))
    }

    fn then(mut self, step: Step) -> ConversionError {
        self.0.path.push(step);
        self
    }

    /// The exception that is set, which no longer is then.
    ///
    /// # Safety
    /// The interpreter lock is held.
    #[cold]
    pub(crate) unsafe fn raised(Raised: Raised) -> ConversionError {
        // SAFETY: the lock is held.
        ConversionError::new(ConversionErrorKind::Raised(unsafe { take_exception() }))
    }
}

impl fmt::Display for ConversionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path(), self.0.kind)
    }
}

impl std::error::Error for ConversionError {}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Item(index) => write!(f, "[{index}]"),
            Step::Under(key) => write!(f, "[{key}]"),
            Step::Key(index) => write!(f, ".keys()[{index}]"),
            Step::Element(index) => write!(f, "{{{index}}}"),
        }
    }
}

/// The exception that is set as text, which no longer is then: its type, and what it says.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn take_exception() -> String {
    let (mut its_type, mut value, mut traceback) = Default::default();
    // SAFETY: the three are ours then, and each may be null.
    unsafe {
        #[allow(deprecated, reason = "what replaces it is not there in 3.11")]
        ffi::PyErr_Fetch(&mut its_type, &mut value, &mut traceback);
        let (its_type, value, _traceback) = (Owned::taken(its_type), Owned::taken(value), Owned::taken(traceback));
        let Some(its_type) = its_type else { return "an error without an exception".to_owned() };
        let name = CStr::from_ptr((*its_type.as_ptr().cast::<ffi::PyTypeObject>()).tp_name).to_string_lossy();
        let text = value.and_then(|value| lossy_text(ffi::PyObject_Str(value.as_ptr())));
        match text {
            Some(text) if !text.is_empty() => format!("{name}: {text}"),
            _ => name.into_owned(),
        }
    }
}

/// A string that a call has returned, with a question mark for each surrogate. An exception does not stay set.
///
/// # Safety
/// It is null, or a reference to a string that is the caller's to give away. The interpreter lock is held.
pub(crate) unsafe fn lossy_text(text: *mut PyObject) -> Option<String> {
    // SAFETY: as the caller says; what encodes it returns bytes.
    unsafe {
        let encoded = Owned::taken(text).and_then(|text| {
            Owned::taken(ffi::PyUnicode_AsEncodedString(text.as_ptr(), c"utf-8".as_ptr(), c"replace".as_ptr()))
        });
        let Some(encoded) = encoded else {
            ffi::PyErr_Clear();
            return None;
        };
        let (start, length) = (ffi::PyBytes_AS_STRING(encoded.as_ptr()), ffi::PyBytes_Size(encoded.as_ptr()));
        let bytes = std::slice::from_raw_parts(start.cast::<u8>(), length as usize);
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// What an object's type is called.
///
/// # Safety
/// The object is alive, and the interpreter lock is held.
pub(crate) unsafe fn type_name(object: *mut PyObject) -> String {
    // SAFETY: as the caller says; a type has a name.
    unsafe { CStr::from_ptr((*ffi::Py_TYPE(object)).tp_name).to_string_lossy().into_owned() }
}
