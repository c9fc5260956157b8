//! Callsites for `tracing`: one for each of Python's loggers and levels. They live as long as the process.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_core::callsite::{self, Callsite, Identifier};
use tracing_core::field::FieldSet;
use tracing_core::metadata::Kind;
use tracing_core::subscriber::Interest;
use tracing_core::{Level, Metadata};

/// The fields of a log record, in the order of their values.
pub(crate) const FIELDS: &[&str] = &["message", "file", "line", "exception"];

/// Maximum number of loggers with their own callsites. Programs that generate logger names would leak memory
/// without it.
const MOST: usize = 4_096;
/// The target that all other loggers share.
const REST: &str = "python";

struct Source {
    metadata: OnceLock<Metadata<'static>>,
}

impl Callsite for Source {
    // Each event checks whether it is enabled, so no interest is stored.
    fn set_interest(&self, _: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        self.metadata.get().expect("set before the callsite is registered")
    }
}

type Sources = HashMap<String, [Option<&'static Metadata<'static>>; 5]>;

/// Returns the metadata for events of this logger and level.
pub(crate) fn metadata(logger: &str, level: Level) -> &'static Metadata<'static> {
    static SOURCES: Mutex<Option<Sources>> = Mutex::new(None);
    let mut sources = SOURCES.lock().unwrap_or_else(PoisonError::into_inner);
    let sources = sources.get_or_insert_default();
    let is_one_too_many = sources.len() >= MOST && !sources.contains_key(logger);
    let logger = if is_one_too_many { REST } else { logger };
    let place = match level {
        Level::ERROR => 0,
        Level::WARN => 1,
        Level::INFO => 2,
        Level::DEBUG => 3,
        _ => 4,
    };
    if let Some(Some(metadata)) = sources.get(logger).map(|levels| levels[place]) {
        return metadata;
    }
    let source: &'static Source = Box::leak(Box::new(Source { metadata: OnceLock::new() }));
    let target: &'static str = logger.to_owned().leak();
    let fields = FieldSet::new(FIELDS, Identifier(source));
    let metadata = source
        .metadata
        .get_or_init(|| Metadata::new("log record", target, level, None, None, None, fields, Kind::EVENT));
    callsite::register(source);
    sources.entry(logger.to_owned()).or_default()[place] = Some(metadata);
    metadata
}
