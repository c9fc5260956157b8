//! A record of what happened.

use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;

use pelton::{EventLoop, Interest, WatchId};

/// What happened, in order. Clones share one record.
#[derive(Clone, Default, Debug)]
pub struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    /// Appends an entry.
    pub fn add(&self, entry: impl Into<String>) {
        self.0.borrow_mut().push(entry.into());
    }

    /// Appends received bytes. Consecutive chunks become one entry: a stream has no boundaries.
    pub fn received(&self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let mut entries = self.0.borrow_mut();
        match entries.last_mut().filter(|entry| entry.starts_with("received ")) {
            Some(entry) => entry.push_str(&text),
            None => entries.push(format!("received {text}")),
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Whether nothing was logged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of all entries.
    pub fn entries(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    /// Removes and returns all entries.
    pub fn take(&self) -> Vec<String> {
        self.0.take()
    }
}

/// Watches a stream, and logs each report as `r` (readable), `w` (writable) and `c` (closed). It does not read.
pub fn watch_and_log(reactor: &mut EventLoop, stream: &UnixStream, interest: Interest, log: &Log) -> WatchId {
    let entry = log.clone();
    reactor
        .watch(stream, interest, move |_, ready| {
            let reported = [("r", ready.readable()), ("w", ready.writable()), ("c", ready.closed())];
            entry.add(reported.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect::<String>());
        })
        .unwrap()
}
