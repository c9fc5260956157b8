//! What happened on a connection, for the log and the metrics.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use pelton_http::log::Escaping;

use super::targets::Targets;
use crate::service::access_log::Lines;

/// Counts of all workers.
#[derive(Default)]
pub struct Counts {
    /// Clients now.
    pub clients: AtomicUsize,
    /// Clients that were accepted.
    pub accepted: AtomicU64,
    /// Clients that were closed because there were too many, altogether or from one address.
    pub refused: AtomicU64,
    /// Clients without a valid PROXY header or TLS hello.
    pub bad_headers: AtomicU64,
    /// Clients for which there was no target.
    pub no_target: AtomicU64,
    /// Bytes from clients to targets, of connections that have ended.
    pub to_targets: AtomicU64,
    /// Bytes from targets to clients, of connections that have ended.
    pub to_clients: AtomicU64,
}

/// A client's connection, from the first byte to the end of both sides. Writes its line when it is dropped.
pub struct Record {
    pub counts: Arc<Counts>,
    pub targets: Arc<Targets>,
    pub lines: Option<Lines>,
    begun: Instant,
    pub client: Cell<Option<SocketAddr>>,
    pub target: Cell<Option<usize>>,
    pub name: RefCell<Option<String>>,
    pub to_target: Cell<u64>,
    pub to_client: Cell<u64>,
    /// The first reason for which one of the sides ended.
    pub end: RefCell<Option<String>>,
}

impl Record {
    pub fn new(counts: &Arc<Counts>, targets: &Arc<Targets>, lines: Option<Lines>) -> Rc<Record> {
        counts.clients.fetch_add(1, Relaxed);
        counts.accepted.fetch_add(1, Relaxed);
        Rc::new(Record {
            counts: counts.clone(),
            targets: targets.clone(),
            lines,
            begun: Instant::now(),
            client: Cell::default(),
            target: Cell::default(),
            name: RefCell::default(),
            to_target: Cell::default(),
            to_client: Cell::default(),
            end: RefCell::default(),
        })
    }

    /// Notes why a side has ended, if it is the first.
    pub fn ended(&self, why: impl FnOnce() -> String) {
        if self.lines.is_some() {
            self.end.borrow_mut().get_or_insert_with(why);
        }
    }

    fn write(&self, text: &mut Vec<u8>) -> std::io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        write!(text, "{}.{:03} ", now.as_secs(), now.subsec_millis())?;
        match self.client.get() {
            Some(client) => write!(text, "{client} ")?,
            None => write!(text, "- ")?,
        }
        match self.target.get() {
            Some(target) => write!(text, "{} ", self.targets.all()[target].endpoint())?,
            None => write!(text, "- ")?,
        }
        // Both come from outside.
        let (mut name, mut end) = (String::new(), String::new());
        let written =
            self.name.borrow().as_ref().map(|given| std::fmt::Write::write_str(&mut Escaping(&mut name), given));
        let why = self.end.borrow();
        let _ = (written, std::fmt::Write::write_str(&mut Escaping(&mut end), why.as_deref().unwrap_or("-")));
        let name = if name.is_empty() { "-" } else { &name };
        let seconds = self.begun.elapsed().as_secs_f64();
        writeln!(text, "{name} {} {} {seconds:.3} {end}", self.to_target.get(), self.to_client.get())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.counts.clients.fetch_sub(1, Relaxed);
        self.counts.to_targets.fetch_add(self.to_target.get(), Relaxed);
        self.counts.to_clients.fetch_add(self.to_client.get(), Relaxed);
        if let Some(lines) = &self.lines {
            lines.push(|text| {
                // Writing to memory cannot fail.
                let _ = self.write(text);
            });
        }
    }
}
