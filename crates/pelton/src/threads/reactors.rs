//! Many reactors, each on a thread of its own, that share nothing.
//!
//! A thread builds its reactor, has it set up, and says how that went; it runs when all have been set up. What they have in
//! common is addresses to listen on, and being told to end.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pelton_os::{Address, ListenOptions, Socket};

use crate::observe::fault;
use crate::reactor::callback;
use crate::sources::connection::{Connection, Detached};
use crate::sources::listener::{ListenerId, serving};
use crate::{Builder, Error, EventLoop, Exit, Fault, Handle, Reactor};

/// Several reactors, each on a thread of its own named `pelton-0`, `pelton-1` and so on.
///
/// They share nothing: a connection is served by one of them from beginning to end, unless it is
/// [moved](crate::Io::move_to). What one has to say to another goes through its [handle](Reactors::handles).
///
/// If one of them fails, or panics and [does not catch it](crate::PanicPolicy), the others are stopped, so that those who
/// [wait](Reactors::join) for the end learn of it. Dropping this stops all of them and waits for their end.
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
    /// Each has a listener of its own on the same port (`SO_REUSEPORT`), and the kernel decides who gets a connection. Nothing
    /// passes between threads; but connections are spread by chance, other systems than Linux may not spread them at
    /// all, and a second program of the same user can listen on the port too, unnoticed. Only TCP can do this:
    /// Unix sockets are handed over in any case.
    ReusePort,
    /// The first reactor listens, and hands connections to all, itself included, in turn.
    HandOver,
}

impl Default for Sharing {
    /// [`ReusePort`](Sharing::ReusePort) on Linux, where the kernel spreads connections evenly;
    /// [`HandOver`](Sharing::HandOver) elsewhere.
    fn default() -> Sharing {
        if cfg!(any(target_os = "linux", target_os = "android")) { Sharing::ReusePort } else { Sharing::HandOver }
    }
}

/// A thread whose reactor has been set up says so, with the way into it, and is then told to run, with the ways into all. One
/// whose reactor could not be set up says nothing, and if another has failed, nobody tells it to run.
struct Launch {
    ready: Sender<Handle>,
    go: Receiver<Arc<[Handle]>>,
}

impl Reactors {
    /// Starts `count` reactors, at least one. Each is built by `build` and set up by `setup`, on its own thread; both are
    /// given its number, from 0. When all have been set up, they run.
    ///
    /// If one cannot be built or set up, the others are shut down without having run, and the error is returned; as
    /// [`Error::Panicked`] if it was a panic.
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
            // It waits for this.
            let _ = start.send(handles.clone());
        }
        Ok(Reactors { handles, threads })
    }

    /// The ways in, by number.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }

    /// Has all of them serve the connections that come in on `address`, each by what `serve` makes for it. Returns the address
    /// that they listen on, with the port that they were given if that was left open.
    ///
    /// It waits for the reactors, so it is refused on their own threads. If one of them cannot listen, none does.
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
            // One that is alone has the port to itself.
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
        // The first may be given a port, which the others then use.
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
                        // One that is gone does not listen either.
                        let _ = handle.post(move |reactor| {
                            reactor.unlisten(listener);
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

    /// Ends them gracefully when the process gets one of `signals` (numbers such as `libc::SIGTERM`): the first time they
    /// [drain](Reactors::drain), for at most `deadline`; the second time they stop at once.
    ///
    /// The first reactor listens for the signals, on behalf of all, so it does not end before the others have.
    #[track_caller]
    pub fn drain_on_signals(&self, signals: &[i32], deadline: Duration) -> Result<(), Error> {
        let first = &self.handles[0];
        for other in &self.handles[1..] {
            let hold = first.hold();
            // One that is gone already is not waited for: the hold is dropped with the closure.
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

    /// Lets each of them finish what is in progress, then stops it, after `deadline` in any case, as [`Reactor::drain`] does:
    /// no connection is accepted any more, and those there are close when everything has been sent.
    #[track_caller]
    pub fn drain(&self, deadline: Duration) {
        self.handles.iter().for_each(|handle| handle.drain(deadline));
    }

    /// Stops all of them, as [`Reactor::stop`] does.
    #[track_caller]
    pub fn stop(&self) {
        self.handles.iter().for_each(Handle::stop);
    }

    /// Waits for their end, which somebody else has to bring about, and says how each has ended, by number.
    pub fn join(mut self) -> Vec<Result<Exit, Error>> {
        join(std::mem::take(&mut self.threads))
    }
}

impl Drop for Reactors {
    fn drop(&mut self) {
        self.stop();
        let threads = std::mem::take(&mut self.threads).into_iter().zip(self.handles.iter());
        // Whoever drops it on one of their own threads cannot wait for that one.
        let others = threads.filter(|(_, handle)| !handle.is_loop_thread());
        // How they ended was logged.
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

fn panicked(thread: String, panic: Box<dyn Any + Send>) -> Error {
    Error::Panicked { thread, message: callback::message(&panic) }
}

/// What each thread does.
fn run(prepare: impl FnOnce() -> Result<EventLoop, Error>, launch: Launch) -> Result<Exit, Error> {
    let mut reactor = prepare()?;
    // Whoever starts us waits for this, and may have given up for want of another thread.
    let _ = launch.ready.send(reactor.handle());
    let Ok(handles) = launch.go.recv() else { return reactor.shutdown() };
    let thread = thread::current().name().unwrap_or_default().to_owned();
    let outcome = catch_unwind(AssertUnwindSafe(|| reactor.run()));
    let outcome = outcome.unwrap_or_else(|panic| Err(panicked(thread.clone(), panic)));
    if let Err(error) = &outcome {
        let message = format!("{thread} has failed, and the others are stopped: {error}");
        reactor.report(Fault::new("reactors", message));
        handles.iter().for_each(Handle::stop);
        // In order, as far as it can: hooks may panic too, and are not what it failed of.
        let _ = catch_unwind(AssertUnwindSafe(|| reactor.shutdown()));
    }
    outcome
}

/// Has the reactor whose turn it is serve a connection that came in; if that one is gone, the one after it.
fn hand_over<C: Connection>(
    place: &'static Location<'static>,
    handles: &[Handle],
    next: &mut usize,
    socket: Socket,
    serve: &Arc<impl Fn(&mut Reactor) -> C + Send + Sync + 'static>,
) {
    let serve = serve.clone();
    let mut take_on = move |reactor: &mut Reactor| {
        // It takes on nothing new; the socket is closed.
        if reactor.stopping() {
            return;
        }
        let handler = serve(reactor);
        let detached = Detached { socket, unread: Vec::new() };
        if let Err(error) = reactor.take_on_detached(place, detached, Box::new(handler)) {
            reactor.report(Fault::at(place, "listener", format_args!("a connection that came in is closed: {error}")));
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
    let fault = Fault::at(place, "listener", "a connection came in when all reactors had stopped; it is closed");
    fault::by_default(&fault);
}
