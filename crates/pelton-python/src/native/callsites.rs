//! What `tracing` has to know of a source of events: one for each of Python's loggers and levels, for as long as the process
//! runs.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_core::callsite::{self, Callsite, Identifier};
use tracing_core::field::FieldSet;
use tracing_core::metadata::Kind;
use tracing_core::subscriber::Interest;
use tracing_core::{Level, Metadata};

/// The fields of a log record, in the order in which their values are given.
pub(crate) const FIELDS: &[&str] = &["message", "file", "line", "exception"];

/// Programs that make up names of loggers as they run would fill the memory, so the rest has to share one.
const MOST: usize = 4_096;
/// What they share.
const REST: &str = "python";

struct Source {
    metadata: OnceLock<Metadata<'static>>,
}

impl Callsite for Source {
    // Each event asks whether it is wanted, so there is nothing to be remembered.
    fn set_interest(&self, _: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        self.metadata.get().expect("set before anybody is told of it")
    }
}

type Sources = HashMap<String, [Option<&'static Metadata<'static>>; 5]>;

/// The metadata of events of this logger and level.
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
