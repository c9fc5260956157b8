//! Limits of conversions.

/// Limits of one conversion. Data beyond them is refused with an error that names the limit. This also refuses
/// objects that contain themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub(super) depth: u32,
    pub(super) items: usize,
    pub(super) bytes: usize,
    pub(super) refuse_objects: bool,
}

/// Default nesting depth of lists, dicts and other containers. Each level is a stack frame.
const DEPTH: u32 = 128;
/// Maximum nesting depth that can be set. It fits into two megabytes of stack, the smallest default for Rust
/// threads, even in an unoptimised build.
const DEEPEST: u32 = 1_000;
/// Default number of items of all containers together. A container that occurs several times is counted each time.
const ITEMS: usize = 1 << 24;
/// Default number of bytes of strings, `bytes` and large integers together, counted the same way.
const BYTES: usize = 1 << 30;

impl Limits {
    /// The default limits: 128 levels, 16 million items, one gigabyte of bytes.
    pub const DEFAULT: Limits = Limits { depth: DEPTH, items: ITEMS, bytes: BYTES, refuse_objects: false };

    /// Sets the maximum nesting depth of lists, dicts and other containers; at most 1,000.
    pub fn depth(self, depth: u32) -> Limits {
        Limits { depth: depth.min(DEEPEST), ..self }
    }

    /// Sets the maximum number of items of all lists, dicts and other containers together.
    pub fn items(self, items: usize) -> Limits {
        Limits { items, ..self }
    }

    /// Sets the maximum number of bytes of strings, `bytes` and large integers together.
    pub fn bytes(self, bytes: usize) -> Limits {
        Limits { bytes, ..self }
    }

    /// Refuses objects that cannot be represented in Rust. By default each becomes a
    /// [`Value::Object`](super::Value::Object).
    pub fn refuse_objects(self) -> Limits {
        Limits { refuse_objects: true, ..self }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}
