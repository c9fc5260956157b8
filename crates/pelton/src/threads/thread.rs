//! A reactor on its own thread.

use crate::reactor::panics::Panic;
use std::fmt;
use std::ops::Deref;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use crate::observe::fault::by_default;
use crate::{Builder, Error, Exit, Fault, Handle, Reactor};

/// A reactor that runs on its own thread. It derefs to its [`Handle`].
///
/// Dropping it stops the loop and waits for the thread to end.
#[must_use = "dropping it stops the loop"]
pub struct ReactorThread {
    handle: Handle,
    name: String,
    /// `None` after it was joined.
    thread: Option<JoinHandle<Result<Exit, Error>>>,
}

impl Reactor {
    /// Runs a reactor on a new thread, where `setup` runs first. Returns when `setup` is done, with its error if it
    /// failed.
    ///
    /// ```
    /// use pelton::{Chunk, Connection, Io, Reactor};
    /// use std::io::{Read, Write};
    ///
    /// struct Echo;
    ///
    /// impl Connection for Echo {
    ///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
    ///         io.send_chunk(chunk).ok();
    ///     }
    /// }
    ///
    /// let reactor = Reactor::start_thread(|_| Ok(()))?;
    /// let port = reactor.post_with_reply(|reactor| {
    ///     let listener = reactor.listen("127.0.0.1:0", |_| Echo)?;
    ///     Ok::<_, pelton::Error>(reactor.listening_on(listener).and_then(|address| address.port()))
    /// });
    /// let port = port.wait()??.expect("TCP listeners have a port");
    ///
    /// let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    /// stream.write_all(b"hello")?;
    /// let mut answer = [0; 5];
    /// stream.read_exact(&mut answer)?;
    /// assert_eq!(&answer, b"hello");
    ///
    /// reactor.stop();
    /// reactor.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The thread is named `pelton`. [`ReactorThread::start`] takes another name and a [`Builder`]. Use
    /// [`Reactors`](crate::Reactors) for several loops that serve the same address.
    pub fn start_thread(
        setup: impl FnOnce(&mut Reactor) -> Result<(), Error> + Send + 'static,
    ) -> Result<ReactorThread, Error> {
        ReactorThread::start("pelton", Reactor::builder, setup)
    }
}

impl ReactorThread {
    /// Starts a thread with a name, and a reactor with custom settings. See [`Reactor::start_thread`].
    ///
    /// ```
    /// # use pelton::{Exit, Reactor, ReactorThread};
    /// let reactor = ReactorThread::start("clock", || Reactor::builder().stats(false), |reactor| {
    ///     assert_eq!(std::thread::current().name(), Some("clock"));
    ///     reactor.next_tick(|reactor| reactor.stop());
    ///     Ok(())
    /// })?;
    /// assert_eq!(reactor.join()?, Exit::Stopped);
    /// # Ok::<(), pelton::Error>(())
    /// ```
    pub fn start(
        name: impl Into<String>,
        build: impl FnOnce() -> Builder + Send + 'static,
        setup: impl FnOnce(&mut Reactor) -> Result<(), Error> + Send + 'static,
    ) -> Result<ReactorThread, Error> {
        let name = name.into();
        let (ready, is_ready) = channel();
        let run = move || {
            let mut reactor = build().build()?;
            setup(&mut reactor)?;
            // The starting thread waits for this.
            let _ = ready.send(reactor.handle());
            reactor.run()
        };
        let thread = thread::Builder::new().name(name.clone()).spawn(run);
        let thread = thread.map_err(|error| Error::system(format!("start thread {name}"), error))?;
        match is_ready.recv() {
            Ok(handle) => Ok(ReactorThread { handle, name, thread: Some(thread) }),
            // The thread has ended without running the loop.
            Err(_) => Err(end_of(thread, &name).err().unwrap_or(Error::Stopped)),
        }
    }

    /// Returns the handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until the loop has ended, and returns how it ended. Something else has to end it with
    /// [`stop`](Handle::stop) or [`drain`](Handle::drain).
    pub fn join(mut self) -> Result<Exit, Error> {
        match self.thread.take() {
            Some(thread) => end_of(thread, &self.name),
            None => Err(Error::Stopped),
        }
    }
}

/// Waits for a thread, and returns how its loop ended.
fn end_of(thread: JoinHandle<Result<Exit, Error>>, name: &str) -> Result<Exit, Error> {
    thread
        .join()
        .unwrap_or_else(|panic| Err(Error::Panicked { thread: name.to_owned(), message: Panic::from(panic).message() }))
}

impl Deref for ReactorThread {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for ReactorThread {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.handle.stop();
        // The loop's own thread cannot wait for itself.
        if !self.handle.is_loop_thread()
            && let Err(error) = end_of(thread, &self.name)
        {
            by_default(&Fault::new("reactor", format_args!("thread {} has failed: {error}", self.name)));
        }
    }
}

impl fmt::Debug for ReactorThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReactorThread").field("name", &self.name).finish_non_exhaustive()
    }
}
