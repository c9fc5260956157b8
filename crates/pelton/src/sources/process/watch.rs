//! Watches processes for their exit.

use std::io;
use std::os::fd::AsFd;
use std::panic::Location;
use std::process::ExitStatus;

use pelton_os::process::{Process, Progress};
use pelton_os::{Event, Interest, Mode, Token};

use crate::reactor::callback::{CallbackKind, Site};
use crate::reactor::source::{Counted, Kind, Source};
use crate::{Error, Promise, Reactor};

/// Identifies the watch of a process, to end it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcessWatchId(Token);

/// A process that has exited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exited {
    /// Its number, which another process may have by now.
    pub pid: u32,
    /// The status with which it exited. The system tells it for children of this process that were not waited for yet, and
    /// only then.
    pub status: Option<ExitStatus>,
}

type Callback = Box<dyn FnOnce(&mut Reactor, Exited)>;

pub(crate) struct ProcessWatch {
    location: &'static Location<'static>,
    process: Process,
    callback: Callback,
}

impl Kind for Box<ProcessWatch> {
    fn event(reactor: &mut Reactor, token: Token, event: Event) {
        match event {
            Event::Ready(..) => reactor.process_exited(token),
            other => reactor.unexpected_event(&other),
        }
    }
}

impl Reactor {
    /// Calls `callback` once, when the process with this number has exited: any process that this one may see.
    ///
    /// The watch follows the process and not its number: if another process gets the number later, that one is not
    /// confused with it. It does not wait for a child: its owner still can, and has to. To start children, use
    /// [`process::Command`](crate::process::Command), which does all of this.
    ///
    /// Fails with an error of the kind `NotFound` if there is no such process.
    ///
    /// ```
    /// # use pelton::Reactor;
    /// let mut child = std::process::Command::new("sh").args(["-c", "exit 3"]).spawn()?;
    /// let mut reactor = Reactor::new()?;
    /// reactor.watch_process(child.id(), |reactor, exited| {
    ///     assert_eq!(exited.status.and_then(|status| status.code()), Some(3));
    ///     reactor.stop();
    /// })?;
    /// reactor.run()?;
    /// child.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn watch_process(
        &mut self,
        pid: u32,
        callback: impl FnOnce(&mut Reactor, Exited) + 'static,
    ) -> Result<ProcessWatchId, Error> {
        self.check_takes_on()?;
        let location = Location::caller();
        let failed = |error: io::Error| Error::system(format!("watch process {pid}"), error);
        let process = Process::open(pid).map_err(failed)?;
        let watch = ProcessWatch { location, process, callback: Box::new(callback) };
        let token = self.sources.insert(Source::Process(Box::new(watch)));
        let Some(Source::Process(watch)) = self.sources.get(token) else { return Err(Error::NotWatched) };
        if let Err(error) = self.engine.watch(token, watch.process.as_fd(), Interest::READABLE, Mode::Level) {
            self.sources.remove(token);
            return Err(failed(error));
        }
        Ok(ProcessWatchId(token))
    }

    /// Returns a promise for the exit of a process. See [`watch_process`](Reactor::watch_process).
    #[track_caller]
    pub fn process_exit(&mut self, pid: u32) -> Result<Promise<Exited, Error>, Error> {
        let (deferred, promise) = self.promise();
        self.watch_process(pid, move |_, exited| {
            // Called once, and nothing else settles it.
            let _ = deferred.resolve(exited);
        })?;
        Ok(promise)
    }

    /// Ends the watch of a process. Returns `false` if it has ended already.
    pub(crate) fn unwatch_process(&mut self, watch: ProcessWatchId) -> bool {
        if !matches!(self.sources.get(watch.0), Some(Source::Process(_))) {
            return false;
        }
        self.callbacks.ended(watch);
        self.end_source(watch.0);
        true
    }

    /// Returns the number of watched processes.
    pub fn process_watch_count(&self) -> usize {
        self.sources.count(Counted::Process)
    }

    fn process_exited(&mut self, token: Token) {
        let Some(Source::Process(watch)) = self.sources.get_mut(token) else { return };
        let status = match watch.process.progress() {
            Progress::Exited(status) => Some(status),
            Progress::Unknown => None,
        };
        let exited = Exited { pid: watch.process.pid(), status };
        let callback = std::mem::replace(&mut watch.callback, Box::new(|_, _| {}));
        let source = Some(ProcessWatchId(token).into());
        let site = Site { kind: CallbackKind::Watch, place: watch.location, source };
        self.end_source(token);
        self.call_last(site, |reactor| callback(reactor, exited));
    }
}
