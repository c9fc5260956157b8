//! Several reactors, each on its own thread, that share nothing.
//!
//! Each thread builds its reactor, sets it up, and reports the outcome. It runs when all have been set up. Only the
//! listening addresses and the shutdown are shared.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pelton_os::{Address, ListenOptions, Socket};

use crate::observe::fault;
use crate::reactor::panics::{Panic, catch};
use crate::sources::connection::{Connection, Detached};
use crate::sources::listener::{ListenerId, serving};
use crate::{Builder, Error, EventLoop, Exit, Fault, Handle, Reactor};

/// Several reactors, each on its own thread, named `pelton-0`, `pelton-1` and so on.
///
/// They share nothing. One reactor serves a connection from beginning to end, unless it is [moved](crate::Io::move_to).
/// Reactors communicate through their [handles](Reactors::handles).
///
/// If one of them fails, or panics and [does not catch it](crate::PanicPolicy), the others are stopped, so that
/// [`join`](Reactors::join) returns. Dropping this stops all of them and waits for them to end.
///
/// ```
/// use pelton::{Chunk, Connection, Exit, Io, ListenOptions, Reactor, Reactors, Sharing};
/// use std::io::{Read, Write};
/// use std::time::Duration;
///
/// struct Echo;
///
/// impl Connection for Echo {
///     fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
///         io.send_chunk(chunk).ok();
///     }
/// }
///
/// let reactors = Reactors::start(2, |_| Reactor::builder(), |_, _| Ok(()))?;
/// let options = ListenOptions::default();
/// let address = reactors.listen(&"127.0.0.1:0".parse()?, Sharing::default(), &options, |_| Echo)?;
///
/// let mut stream = std::net::TcpStream::connect(address.to_string())?;
/// stream.write_all(b"hello")?;
/// let mut answer = [0; 5];
/// stream.read_exact(&mut answer)?;
/// assert_eq!(&answer, b"hello");
///
/// reactors.drain(Duration::from_secs(10));
/// for exit in reactors.join() {
///     assert_eq!(exit?, Exit::Drained);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Reactors {
    handles: Arc<[Handle]>,
    threads: Vec<Thread>,
}

type Thread = JoinHandle<Result<Exit, Error>>;

/// How several reactors listen on one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Each reactor has its own listener on the same port (`SO_REUSEPORT`), and the kernel chooses one for each
    /// connection. Nothing passes between threads. However, connections are distributed at random, systems other than
    /// Linux may not distribute them at all, and a second program of the same user can silently listen on the same
    /// port. Only TCP supports this; Unix sockets always use [`HandOver`](Sharing::HandOver).
    ReusePort,
    /// The first reactor listens, and hands connections to all reactors in turn, including itself.
    HandOver,
}

impl Default for Sharing {
    /// Returns [`ReusePort`](Sharing::ReusePort) on Linux, where the kernel balances connections, and
    /// [`HandOver`](Sharing::HandOver) elsewhere.
    fn default() -> Sharing {
        if cfg!(any(target_os = "linux", target_os = "android")) { Sharing::ReusePort } else { Sharing::HandOver }
    }
}

/// Coordinates the start. A thread sends its handle when its reactor is set up, and then waits for the handles of all.
/// A thread whose setup fails drops its sender. If any thread fails, no thread is told to run.
struct Launch {
    ready: Sender<Handle>,
    go: Receiver<Arc<[Handle]>>,
}

impl Reactors {
    /// Starts `count` reactors, at least one. On its own thread, `build` builds each reactor and `setup` sets it up.
    /// Both receive its index, from 0. When all are set up, they run.
    ///
    /// If one cannot be built or set up, the others are shut down without running, and the error is returned. A panic
    /// is returned as [`Error::Panicked`].
    pub fn start(
        count: usize,
        build: impl Fn(usize) -> Builder + Send + Sync + 'static,
        setup: impl Fn(usize, &mut Reactor) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Result<Reactors, Error> {
        let prepare = Arc::new(move |index| {
            let mut reactor = build(index).build()?;
            setup(index, &mut reactor)?;
            Ok(reactor)
        });
        let (mut threads, mut launches) = (Vec::new(), Vec::new());
        for index in 0..count.max(1) {
            let ((ready, answer), (start, go)) = (channel(), channel());
            let prepare = prepare.clone();
            let body = move || run(|| prepare(index), Launch { ready, go });
            match thread::Builder::new().name(name(index)).spawn(body) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    drop(launches);
                    join(threads);
                    return Err(Error::system(format!("start thread {}", name(index)), error));
                }
            }
            launches.push((answer, start));
        }
        let handles: Arc<[Handle]> = launches.iter().filter_map(|(answer, _)| answer.recv().ok()).collect();
        if handles.len() < threads.len() {
            drop(launches);
            let error = join(threads).into_iter().find_map(Result::err);
            return Err(error.unwrap_or(Error::Stopped));
        }
        for (_, start) in launches {
            // The thread waits for this.
            let _ = start.send(handles.clone());
        }
        Ok(Reactors { handles, threads })
    }

    /// Returns the handles, by index.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Makes all reactors serve the connections accepted on `address`. `serve` creates a handler for each connection.
    /// Returns the address that they listen on, with the actual port if that was left open.
    ///
    /// This waits for the reactors, so it fails on their own threads. If one of them cannot listen, none does.
    #[track_caller]
    pub fn listen<C: Connection>(
        &self,
        address: &Address,
        sharing: Sharing,
        options: &ListenOptions,
        serve: impl Fn(&mut Reactor) -> C + Send + Sync + 'static,
    ) -> Result<Address, Error> {
        if self.handles.iter().any(Handle::is_loop_thread) {
            let error = std::io::Error::new(std::io::ErrorKind::Deadlock, "this thread would wait for itself");
            return Err(Error::system(format!("listen on {address}"), error));
        }
        let (place, serve) = (Location::caller(), Arc::new(serve));
        let may_share = sharing == Sharing::ReusePort && matches!(address, Address::Tcp(_));
        match self.handles.len() {
            // A single reactor needs no shared port.
            1 => self.listen_everywhere(place, address, options, serve),
            _ if may_share => self.listen_everywhere(place, address, &options.clone().reuse_port(true), serve),
            _ => self.listen_and_hand_over(place, address, options, serve),
        }
    }

    fn listen_everywhere<C: Connection>(
        &self,
        place: &'static Location<'static>,
        address: &Address,
        options: &ListenOptions,
        serve: Arc<impl Fn(&mut Reactor) -> C + Send + Sync + 'static>,
    ) -> Result<Address, Error> {
        let mut listening: Vec<(&Handle, ListenerId)> = Vec::new();
        // The first listener may be assigned a port, which the others then use.
        let mut bound = address.clone();
        for handle in self.handles.iter() {
            let (address, options, serve) = (bound.clone(), options.clone(), serve.clone());
            let reply = handle.post_with_reply(move |reactor| {
                let accept = serving(place, move |reactor: &mut Reactor| serve(reactor));
                let listener = reactor.listen_from(place, &address, &options, accept)?;
                Ok((listener, reactor.listening_on(listener).cloned().unwrap_or(address)))
            });
            match reply.wait().unwrap_or(Err(Error::Stopped)) {
                Ok((listener, address)) => {
                    listening.push((handle, listener));
                    bound = address;
                }
                Err(error) => {
                    for (handle, listener) in listening {
                        // A reactor that has ended does not listen either.
                        let _ = handle.post(move |reactor| {
                            reactor.end(listener);
                        });
                    }
                    return Err(error);
                }
            }
        }
        Ok(bound)
    }

    fn listen_and_hand_over<C: Connection>(
        &self,
        place: &'static Location<'static>,
        address: &Address,
        options: &ListenOptions,
        serve: Arc<impl Fn(&mut Reactor) -> C + Send + Sync + 'static>,
    ) -> Result<Address, Error> {
        let (address, options) = (address.clone(), options.clone());
        let handles = self.handles.clone();
        let reply = self.handles[0].post_with_reply(move |reactor| {
            let mut next = 0;
            let accept = move |_: &mut Reactor, socket| {
                hand_over(place, &handles, &mut next, socket, &serve);
            };
            let listener = reactor.listen_from(place, &address, &options, Box::new(accept))?;
            Ok(reactor.listening_on(listener).cloned().unwrap_or(address))
        });
        reply.wait().unwrap_or(Err(Error::Stopped))
    }

    /// Shuts down gracefully when the process receives one of `signals` (numbers such as `libc::SIGTERM`). On the first
    /// signal, all reactors [drain](Reactors::drain), for at most `deadline`. On the second, they stop at once.
    ///
    /// The first reactor handles the signals for all, so it ends after the others.
    #[track_caller]
    pub fn drain_on_signals(&self, signals: &[i32], deadline: Duration) -> Result<(), Error> {
        let first = &self.handles[0];
        for other in &self.handles[1..] {
            let hold = first.hold();
            // If it has already ended, the hold is dropped with the closure.
            let _ = other.post(move |reactor| reactor.on_shutdown(move |_| drop(hold)));
        }
        let (signals, handles) = (signals.to_owned(), self.handles.clone());
        let reply = first.post_with_reply(move |reactor| {
            for signal in signals {
                let handles = handles.clone();
                reactor.on_signal(signal, move |reactor, _| {
                    let again = reactor.stopping();
                    for handle in handles.iter() {
                        if again { handle.stop() } else { handle.drain(deadline) }
                    }
                })?;
            }
            Ok(())
        });
        reply.wait().unwrap_or(Err(Error::Stopped))
    }

    /// Lets each reactor finish its work in progress, then stops it, at the latest after `deadline`. No more
    /// connections are accepted, and open ones close when everything has been sent. See [`Reactor::drain`].
    #[track_caller]
    pub fn drain(&self, deadline: Duration) {
        self.handles.iter().for_each(|handle| handle.drain(deadline));
    }

    /// Stops all reactors. See [`Reactor::stop`].
    #[track_caller]
    pub fn stop(&self) {
        self.handles.iter().for_each(Handle::stop);
    }

    /// Waits until all reactors have ended. Something else has to stop or drain them. Returns how each ended, by index.
    pub fn join(mut self) -> Vec<Result<Exit, Error>> {
        join(std::mem::take(&mut self.threads))
    }
}

impl Drop for Reactors {
    fn drop(&mut self) {
        self.stop();
        let threads = std::mem::take(&mut self.threads).into_iter().zip(self.handles.iter());
        // A reactor's own thread cannot wait for itself.
        let others = threads.filter(|(_, handle)| !handle.is_loop_thread());
        // Their errors have already been reported.
        join(others.map(|(thread, _)| thread).collect());
    }
}

impl fmt::Debug for Reactors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.handles.iter()).finish()
    }
}

fn name(index: usize) -> String {
    format!("pelton-{index}")
}

fn join(threads: Vec<Thread>) -> Vec<Result<Exit, Error>> {
    let name = |thread: &Thread| thread.thread().name().unwrap_or_default().to_owned();
    let ended = threads.into_iter().map(|thread| {
        let name = name(&thread);
        thread.join().unwrap_or_else(|panic| Err(panicked(name, panic)))
    });
    ended.collect()
}

fn panicked(thread: String, panic: impl Into<Panic>) -> Error {
    Error::Panicked { thread, message: panic.into().message() }
}

/// The body of each thread.
fn run(prepare: impl FnOnce() -> Result<EventLoop, Error>, launch: Launch) -> Result<Exit, Error> {
    let mut reactor = prepare()?;
    // The starting thread waits for this, unless it has given up because another thread could not start.
    let _ = launch.ready.send(reactor.handle());
    let Ok(handles) = launch.go.recv() else { return reactor.shutdown() };
    let thread = thread::current().name().unwrap_or_default().to_owned();
    let outcome = catch(|| reactor.run());
    let outcome = outcome.unwrap_or_else(|panic| Err(panicked(thread.clone(), panic)));
    if let Err(error) = &outcome {
        let message = format!("{thread} has failed, so the other reactors are stopped: {error}");
        reactor.report(Fault::new("reactors", message));
        handles.iter().for_each(Handle::stop);
        // Shut down as orderly as possible. A panic in a hook must not hide the original failure.
        let _ = catch(|| reactor.shutdown());
    }
    outcome
}

/// Hands a connection to the reactor whose turn it is, or to the next one if that has ended.
fn hand_over<C: Connection>(
    place: &'static Location<'static>,
    handles: &[Handle],
    next: &mut usize,
    socket: Socket,
    serve: &Arc<impl Fn(&mut Reactor) -> C + Send + Sync + 'static>,
) {
    let serve = serve.clone();
    let mut take_on = move |reactor: &mut Reactor| {
        // A stopping reactor accepts nothing new, so the socket is closed.
        if reactor.stopping() {
            return;
        }
        let handler = serve(reactor);
        let detached = Detached { socket, unread: Vec::new() };
        if let Err(error) = reactor.take_on_detached(place, detached, Box::new(handler)) {
            reactor.report(Fault::at(place, "listener", format_args!("an accepted connection is closed: {error}")));
        }
    };
    for _ in handles {
        let handle = &handles[*next];
        *next = (*next + 1) % handles.len();
        match handle.post(take_on) {
            Ok(()) => return,
            Err(refused) => take_on = refused.into_inner(),
        }
    }
    let fault = Fault::at(place, "listener", "an accepted connection is closed, because all reactors have stopped");
    fault::by_default(&fault);
}
