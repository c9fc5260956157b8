//! Python's logging is forwarded to `tracing`.

#![cfg(feature = "embed")]

mod host_support;

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use host_support::{start, until, wait, with};
use pelton_python::native::{call, forward_logging};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Whether the subscriber calls Python, and logs there, for each event.
static CALLS_PYTHON: AtomicBool = AtomicBool::new(false);

/// Records all events.
struct Notes;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("test") && !metadata.target().ends_with("unwanted")
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut line);
        if CALLS_PYTHON.load(Ordering::Relaxed) {
            call("logging", "error", ("round in circles",), ()).unwrap();
        }
        LINES.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn records_become_events() {
    tracing::subscriber::set_global_default(Notes).unwrap();
    let host = start();
    forward_logging(Level::DEBUG).unwrap();
    // A second call changes the level and adds no second handler.
    forward_logging(Level::INFO).unwrap();
    let namespace = with(
        &host,
        "
import logging, threading
log = logging.getLogger('test.app')

def speak():
    log.debug('too fine')
    log.info('%d things', 3)
    log.warning('careful')
    log.critical('half a pair: \\ud800')
    logging.getLogger('test.unwanted').error('no')
    try:
        1 / 0
    except ZeroDivisionError:
        log.exception('failed')
    log.error('bad %d', 'format')

def flood(name):
    def log_many():
        for number in range(500):
            logging.getLogger(f'test.{name}').warning('n%d', number)
    threads = [threading.Thread(target=log_many) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
",
    );
    wait(namespace.eval("speak()").unwrap()).unwrap();
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert_eq!(lines[0], "INFO test.app message=3 things file=\"<string>\" line=7");
    assert_eq!(lines[1], "WARN test.app message=careful file=\"<string>\" line=8");
    assert!(lines[2].starts_with("ERROR test.app message=half a pair: "), "{}", lines[2]);
    assert!(
        lines[3].starts_with("ERROR test.app message=failed file=") && lines[3].contains("ZeroDivisionError: division")
    );

    // From many threads, with a subscriber that calls Python code that logs.
    CALLS_PYTHON.store(true, Ordering::Relaxed);
    let reply = namespace.submit(pelton_python::host::Call::new("__main__", "flood").arg("storm").on_worker()).unwrap();
    let other = namespace.submit(pelton_python::host::Call::new("__main__", "flood").arg("weather")).unwrap();
    wait(reply).unwrap();
    wait(other).unwrap();
    until("all events are recorded", || LINES.lock().unwrap().len() == 4_000);
    assert!(LINES.lock().unwrap().iter().all(|line| line.starts_with("WARN test.")));
}
