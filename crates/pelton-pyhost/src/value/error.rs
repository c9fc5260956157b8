//! Conversion errors.

use std::borrow::Cow;
use std::fmt;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::Value;

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

    /// Returns the error for an exception.
    #[cold]
    pub(crate) fn raised_by(py: Python<'_>, error: &PyErr) -> ConversionError {
        ConversionError::new(ConversionErrorKind::Raised(describe(py, error)))
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

/// Returns the type of an exception and its message as text.
pub(crate) fn describe(py: Python<'_>, error: &PyErr) -> String {
    let name = type_name(error.value(py));
    match error.value(py).str().map(|text| lossy_text(&text)) {
        Ok(text) if !text.is_empty() => format!("{name}: {text}"),
        _ => name,
    }
}

/// Converts a string to text, with a question mark for each surrogate.
pub(crate) fn lossy_text(text: &Bound<'_, PyString>) -> String {
    if let Ok(text) = text.to_str() {
        return text.to_owned();
    }
    let encoded = text.call_method1("encode", ("utf-8", "replace"));
    let bytes = encoded.and_then(|encoded| encoded.extract::<Vec<u8>>()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the name of an object's type, with its module if it is written in C.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    pelton_cpython::types::internal_name(&object.get_type())
}
