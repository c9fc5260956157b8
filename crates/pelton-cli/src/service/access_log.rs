//! The access log: one line per request, written by a dedicated thread.
//!
//! A worker only appends to a buffer, and queues that when it is full or after a short delay. If the disk cannot keep up, the
//! queue is bounded: further lines are dropped and counted, and the workers are not held up.

use std::cell::{Cell, RefCell};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pelton::Reactor;

/// A buffer is queued at this many bytes: a few hundred lines.
const BATCH: usize = 32 * 1024;

/// A line is queued after this long at the latest.
const DELAY: Duration = Duration::from_millis(50);

/// How many buffers of all workers may wait for the disk: 8 MiB.
const WAITING: usize = 256;

/// Dropped lines are reported at most this often.
const REPORT: Duration = Duration::from_secs(10);

/// How long the last lines may take to be written at the end.
const LAST_LINES: Duration = Duration::from_secs(5);

/// Where the lines go.
#[derive(Clone, Debug)]
pub enum Target {
    Stdout,
    File(PathBuf),
}

impl Target {
    pub fn new(path: &Path) -> Target {
        if path == Path::new("-") { Target::Stdout } else { Target::File(path.to_owned()) }
    }

    fn open(&self) -> io::Result<File> {
        match self {
            // Unbuffered: a buffer would keep bytes that could not be written.
            Target::Stdout => io::stdout().as_fd().try_clone_to_owned().map(File::from),
            Target::File(path) => {
                let in_context = |error: io::Error| {
                    io::Error::new(error.kind(), format!("open the access log {}: {error}", path.display()))
                };
                OpenOptions::new().create(true).append(true).open(path).map_err(in_context)
            }
        }
    }
}

/// Messages to the thread.
enum Message {
    Lines(Vec<u8>),
    /// The file may have been moved away: open the path again.
    Reopen,
}

/// The sending side, for any number of workers.
#[derive(Clone)]
pub struct Sink {
    sender: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

impl Sink {
    /// Reopens the file, if it was moved away.
    pub fn reopen(&self) {
        // The thread lives as long as any sink. The loop must not wait for a slow disk here either.
        if let Err(TrySendError::Full(_)) = self.sender.try_send(Message::Reopen) {
            tracing::error!("could not reopen the access log: its disk does not keep up");
        }
    }

    /// Returns how many lines were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn send(&self, text: Vec<u8>, count: u64) {
        if self.sender.try_send(Message::Lines(text)).is_err() {
            self.dropped.fetch_add(count, Ordering::Relaxed);
        }
    }
}

/// The thread that writes.
pub struct Writer {
    thread: JoinHandle<()>,
    finished: Receiver<()>,
}

/// Opens the log and starts its thread.
pub fn start(target: Target) -> io::Result<(Sink, Writer)> {
    let file = Box::new(target.open()?);
    let (sender, messages) = sync_channel(WAITING);
    let (finish, finished) = sync_channel(1);
    let dropped = Arc::new(AtomicU64::new(0));
    let work = Work { target, file, dropped: dropped.clone(), reported: 0, failed: false, torn: false };
    let body = move || {
        work.run(&messages);
        let _ = finish.send(());
    };
    let thread = thread::Builder::new().name("access-log".to_owned()).spawn(body)?;
    Ok((Sink { sender, dropped }, Writer { thread, finished }))
}

impl Writer {
    /// Waits until the last lines are written, after all sinks are dropped. Gives up after [`LAST_LINES`], because a disk may
    /// hang.
    pub fn finish(self) {
        match self.finished.recv_timeout(LAST_LINES) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::error!("the last lines of the access log were not written in time")
            }
            _ => {
                let _ = self.thread.join();
            }
        }
    }
}

struct Work {
    target: Target,
    file: Box<dyn Write + Send>,
    dropped: Arc<AtomicU64>,
    /// How many dropped lines have been reported.
    reported: u64,
    /// Writing fails, and that was reported.
    failed: bool,
    /// The last line is incomplete because a write failed in the middle of it.
    torn: bool,
}

impl Work {
    fn run(mut self, messages: &Receiver<Message>) {
        let mut next_report = Instant::now();
        while let Ok(message) = messages.recv() {
            match message {
                Message::Lines(text) => self.write(&text),
                Message::Reopen => self.reopen(),
            }
            if Instant::now() >= next_report {
                self.report();
                next_report = Instant::now() + REPORT;
            }
        }
        self.report();
    }

    fn write(&mut self, text: &[u8]) {
        let (written, outcome) = self.write_lines(text);
        match outcome {
            Ok(()) => self.failed = false,
            Err(error) => {
                let lost = text[written..].iter().filter(|byte| **byte == b'\n').count();
                self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::error!(%error, "could not write to the access log");
                }
            }
        }
    }

    /// Writes lines. Returns how many bytes were written.
    fn write_lines(&mut self, text: &[u8]) -> (usize, io::Result<()>) {
        // The rest of a cut line must not become the beginning of the next.
        while self.torn {
            match self.file.write(b"\n") {
                Ok(0) => return (0, Err(io::ErrorKind::WriteZero.into())),
                Ok(_) => self.torn = false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (0, Err(error)),
            }
        }
        let mut written = 0;
        while written < text.len() {
            match self.file.write(&text[written..]) {
                Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    written += count;
                    self.torn = text[written - 1] != b'\n';
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (written, Err(error)),
            }
        }
        (written, Ok(()))
    }

    fn reopen(&mut self) {
        match self.target.open() {
            Ok(file) => {
                self.torn &= file.metadata().is_ok_and(|about| about.len() > 0);
                self.file = Box::new(file);
                tracing::info!("reopened the access log");
            }
            // The old file is better than none.
            Err(error) => tracing::error!(%error, "could not reopen the access log; it continues in the old file"),
        }
    }

    fn report(&mut self) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > self.reported {
            tracing::warn!(lines = dropped - self.reported, "lines of the access log were dropped");
            self.reported = dropped;
        }
    }
}

/// The lines of one worker that are not queued yet. Clones share them.
#[derive(Clone)]
pub struct Lines {
    shared: Rc<Shared>,
}

struct Shared {
    sink: Sink,
    text: RefCell<Vec<u8>>,
    count: Cell<u64>,
    /// Requests that will log a line.
    pending: Cell<usize>,
    /// A timer to queue the lines is set.
    armed: Cell<bool>,
}

impl Lines {
    pub fn new(sink: Sink) -> Lines {
        let (text, count, pending, armed) = (RefCell::default(), Cell::default(), Cell::default(), Cell::default());
        Lines { shared: Rc::new(Shared { sink, text, count, pending, armed }) }
    }

    /// Records that a request has arrived and will log a line.
    pub fn expect(&self, reactor: &mut Reactor) {
        self.shared.pending.set(self.shared.pending.get() + 1);
        self.arm(reactor);
    }

    /// Sets the timer that queues the lines. There is none while there is nothing to log.
    fn arm(&self, reactor: &mut Reactor) {
        if self.shared.armed.replace(true) {
            return;
        }
        let lines = self.clone();
        reactor.after(DELAY, move |reactor| {
            lines.hand_on();
            lines.shared.armed.set(false);
            if lines.shared.pending.get() > 0 {
                lines.arm(reactor);
            }
        });
    }

    /// Appends the line of an [expected](Lines::expect) request. The line ends with a newline.
    pub fn push(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let shared = &self.shared;
        shared.pending.set(shared.pending.get().saturating_sub(1));
        let mut text = shared.text.borrow_mut();
        write(&mut text);
        shared.count.set(shared.count.get() + 1);
        if text.len() >= BATCH {
            drop(text);
            self.hand_on();
        }
    }

    /// Queues the lines so far.
    pub fn hand_on(&self) {
        let text = self.shared.text.take();
        if !text.is_empty() {
            self.shared.sink.send(text, self.shared.count.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that hangs until it is released.
    struct Stuck(Receiver<()>, SyncSender<Vec<u8>>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.0.recv();
            let _ = self.1.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn work(file: Box<dyn Write + Send>, dropped: Arc<AtomicU64>) -> Work {
        Work { target: Target::Stdout, file, dropped, reported: 0, failed: false, torn: false }
    }

    /// A disk with this much room, shared with the test.
    struct Full(Arc<std::sync::Mutex<(usize, Vec<u8>)>>);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (room, written) = &mut *self.0.lock().unwrap();
            let count = bytes.len().min(*room - written.len());
            written.extend_from_slice(&bytes[..count]);
            if count == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(count) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn truncated_line_is_not_joined_with_the_next() {
        let disk = Arc::new(std::sync::Mutex::new((15, Vec::new())));
        let dropped = Arc::new(AtomicU64::new(0));
        let mut work = work(Box::new(Full(disk.clone())), dropped.clone());
        work.write(b"line one\nline two\nline three\n");
        work.write(b"line four\n");
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        disk.lock().unwrap().0 = 100;
        work.write(b"line five\n");
        assert_eq!(String::from_utf8_lossy(&disk.lock().unwrap().1), "line one\nline t\nline five\n");
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn hanging_disk_drops_lines_without_blocking() {
        let ((letting, let_it), (written, output)) = (sync_channel(0), sync_channel(10_000));
        let (sender, messages) = sync_channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let file = Box::new(Stuck(let_it, written));
        let work = work(file, dropped.clone());
        let writing = thread::spawn(move || work.run(&messages));
        let lines = Lines::new(Sink { sender, dropped });
        let batches = WAITING + 20;
        for _ in 0..batches {
            lines.push(|text| text.extend_from_slice(b"a line\n"));
            lines.hand_on();
        }
        // The thread may have taken one from the queue before it was full.
        let dropped = lines.shared.sink.dropped();
        assert!((19..=20).contains(&dropped), "{dropped} lines were dropped");
        drop(letting);
        drop(lines);
        writing.join().unwrap();
        assert_eq!(output.iter().count() as u64 + dropped, batches as u64);
    }
}
