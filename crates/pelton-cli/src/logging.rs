//! The log on standard error.

use std::fmt::{self, Debug, Write as _};
use std::io::{self, IsTerminal, Write as _};

use pelton_http::log::Escaping;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Starts logging at this level. No logged value can break out of its line. A log that cannot be written, for example because the
/// disk is full, is lost without affecting anything else.
pub fn start(level: LevelFilter) {
    tracing_subscriber::fmt()
        .with_max_level(level)
        .fmt_fields(debug_fn(write_field).delimited(" "))
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        // Otherwise it would report on standard error that it cannot write to standard error, and panic if that fails.
        .log_internal_errors(false)
        .init();
}

/// Escapes every value, including those that the logging code has not escaped.
fn write_field(to: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(to, "{}=", field.name())?;
    }
    write!(Escaping(to), "{value:?}")
}

/// Prints why the command fails. If even that fails, the exit code still tells.
pub fn fail(why: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "error: {why}");
}
