//! Conversion errors.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

use pyo3::ffi::{self, PyObject};

use super::Value;
use pelton_cpython::object::{Owned, Raised};

/// Data cannot be converted. The error has the path to the faulty part: `args[0]['x'][3]: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversionError(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ConversionErrorKind,
    root: Cow<'static, str>,
    /// The steps to the faulty value, innermost first.
    path: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// An item of a list or tuple.
    Item(usize),
    /// The value under a key.
    Under(String),
    /// A key of a dict.
    Key(usize),
    /// An element of a set.
    Element(usize),
}

/// The kinds of conversion errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConversionErrorKind {
    /// Too many levels, or an object that contains itself.
    #[error("more than {limit} levels deep, or contains itself")]
    TooDeep {
        /// The limit.
        limit: u32,
    },
    /// Too many items in total.
    #[error("more than {limit} items in total")]
    TooManyItems {
        /// The limit.
        limit: usize,
    },
    /// Too many bytes in total.
    #[error("more than {limit} bytes in total")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// A `str` with a lone surrogate, which is not valid Unicode text.
    #[error("not valid Unicode: character {index} is a lone surrogate")]
    Surrogate {
        /// Index of the character, from 0.
        index: usize,
    },
    /// Python code changed the list or dict while it was being converted.
    #[error("changed while it was being converted")]
    Changed,
    /// A dict key or set element that is not hashable.
    #[error("unhashable: {0}")]
    Unhashable(String),
    /// A number or date out of the other side's range.
    #[error("out of range: {0}")]
    OutOfRange(String),
    /// Not of the requested type.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// The requested type.
        expected: Cow<'static, str>,
        /// The actual type.
        found: String,
    },
    /// An object that cannot be represented in Rust, if the limits refuse such objects.
    #[error("objects of type {0} cannot be converted to Rust")]
    Opaque(String),
    /// Python raised an exception during the conversion.
    #[error("{0}")]
    Raised(String),
    /// Any other error that serde reports.
    #[error("{0}")]
    Other(String),
}

/// A longer path is shown with this many steps from its start and its end.
const SHOWN: (usize, usize) = (8, 4);
/// Maximum number of characters shown of a key.
const SHOWN_OF_KEY: usize = 40;

impl ConversionError {
    pub(crate) fn new(kind: ConversionErrorKind) -> ConversionError {
        ConversionError(Box::new(Inner { kind, root: Cow::Borrowed("value"), path: Vec::new() }))
    }

    pub(crate) fn out_of_range(what: impl fmt::Display) -> ConversionError {
        ConversionError::new(ConversionErrorKind::OutOfRange(what.to_string()))
    }

    pub(crate) fn wrong_type(expected: impl Into<Cow<'static, str>>, found: &Value) -> ConversionError {
        let found = found.type_name().to_owned();
        ConversionError::new(ConversionErrorKind::WrongType { expected: expected.into(), found })
    }

    /// Returns the kind of error.
    pub fn kind(&self) -> &ConversionErrorKind {
        &self.0.kind
    }

    /// Returns the path to the faulty part, in Python's syntax.
    pub fn path(&self) -> String {
        let Inner { root, path, .. } = &*self.0;
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

    /// Sets the name that the path starts with, instead of "value".
    pub fn within(mut self, root: impl Into<Cow<'static, str>>) -> ConversionError {
        self.0.root = root.into();
        self
    }

    /// Adds an item of a list or tuple to the path.
    #[cold]
    pub(crate) fn in_item(self, index: usize) -> ConversionError {
        self.then(Step::Item(index))
    }

    /// Adds the value under a dict key to the path.
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

    /// Adds a dict key to the path.
    #[cold]
    pub(crate) fn in_key(self, index: usize) -> ConversionError {
        self.then(Step::Key(index))
    }

    /// Adds an element of a set to the path.
    #[cold]
    pub(crate) fn in_element(self, index: usize) -> ConversionError {
        self.then(Step::Element(index))
    }

    fn then(mut self, step: Step) -> ConversionError {
        self.0.path.push(step);
        self
    }

    /// Takes the exception that is set.
    ///
    /// # Safety
    /// The interpreter lock is held.
    #[cold]
    pub(crate) unsafe fn raised(Raised: Raised) -> ConversionError {
        // SAFETY: the caller holds the lock.
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

/// Takes the exception that is set and returns its type and message as text.
///
/// # Safety
/// The interpreter lock is held.
pub(crate) unsafe fn take_exception() -> String {
    let (mut its_type, mut value, mut traceback) = Default::default();
    // SAFETY: the caller holds the lock. `PyErr_Fetch` gives us three references, each of which may be null.
    unsafe {
        #[allow(deprecated, reason = "its replacement does not exist in 3.11")]
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

/// Converts a returned string to text, with a question mark for each surrogate. Clears any exception.
///
/// # Safety
/// `text` is null, or an owned reference to a string that the caller gives away. The interpreter lock is held.
pub(crate) unsafe fn lossy_text(text: *mut PyObject) -> Option<String> {
    // SAFETY: the caller gives away the reference and holds the lock. The encoder returns `bytes` or null.
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

/// Returns the name of an object's type.
///
/// # Safety
/// The object is alive, and the interpreter lock is held.
pub(crate) unsafe fn type_name(object: *mut PyObject) -> String {
    // SAFETY: the caller guarantees that the object is alive. A type's name is a C string.
    unsafe { CStr::from_ptr((*ffi::Py_TYPE(object)).tp_name).to_string_lossy().into_owned() }
}
