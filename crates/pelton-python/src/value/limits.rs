//! How much is too much.

/// How much one conversion may take. What is beyond that is refused with an error that says so; so an object that contains
/// itself is refused too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub(super) depth: u32,
    pub(super) items: usize,
    pub(super) bytes: usize,
    pub(super) refuse_objects: bool,
}

/// Levels of lists, dicts and so on inside each other. Each is a stack frame.
const DEPTH: u32 = 128;
/// The most levels that can be asked for: two megabytes of stack, the least that Rust gives its threads, hold as many even
/// in a build without optimisation.
const DEEPEST: u32 = 1_000;
/// Items of lists, dicts and so on, all together. An object that is in many places counts in each.
const ITEMS: usize = 1 << 24;
/// Bytes of text, of `bytes` and of large whole numbers, all together, counted likewise.
const BYTES: usize = 1 << 30;

impl Limits {
    /// The limits that hold unless others are set: 128 levels, 16 million items, a gigabyte of bytes.
    pub const DEFAULT: Limits = Limits { depth: DEPTH, items: ITEMS, bytes: BYTES, refuse_objects: false };

    /// How many levels of lists, dicts and so on there may be inside each other; at most 1,000.
    pub fn depth(self, depth: u32) -> Limits {
        Limits { depth: depth.min(DEEPEST), ..self }
    }

    /// How many items lists, dicts and so on may have, all together.
    pub fn items(self, items: usize) -> Limits {
        Limits { items, ..self }
    }

    /// How many bytes of text, of `bytes` and of large whole numbers there may be, all together.
    pub fn bytes(self, bytes: usize) -> Limits {
        Limits { bytes, ..self }
    }

    /// Refuses objects that have no form in Rust. Otherwise each becomes a [`Value::Object`](super::Value::Object).
    pub fn refuse_objects(self) -> Limits {
        Limits { refuse_objects: true, ..self }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}
