//! Isolated namespaces.

use std::sync::Arc;

use super::call::{Arguments, Call, Keywords, Name, Target};
use super::error::Refused;
use super::foreign::{Callback, Foreign, RefusedTask, Submitted};
use super::loops::{Control, HostedLoop};
use super::reply::{Outcome, Reply};
use super::stream::Stream;
use super::thread::{self, PythonThread};
use super::{Batch, PartlyRefused, submit};
use crate::value::Value;

/// An isolated namespace: names defined in it persist between calls, and other code does not see them.
///
/// `__main__` means this namespace. All its tasks run on one loop and start in the order in which they were
/// submitted; while one waits, others run. Modules belong to the whole interpreter, so their state is shared.
///
/// Clones are handles of the same namespace. It is dropped with the last handle. Code that still runs in it runs to
/// its end.
///
/// ```no_run
/// # use pelton_python::host::{Config, Host};
/// let host = Host::start(Config::new())?;
/// let namespace = host.namespace();
/// namespace.exec("count = 0\ndef next():\n    global count\n    count += 1\n    return count")?.wait()?;
/// assert_eq!(namespace.run("__main__", "next", (), ())?.as_int(), Some(1));
/// assert_eq!(namespace.eval("count + 1")?.wait()?.as_int(), Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Namespace {
    pub(crate) registration: Arc<Registration>,
}

#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) number: u64,
    pub(crate) home: Arc<HostedLoop>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.home.control(Control::Forget(self.number));
    }
}

impl Namespace {
    pub(crate) fn new(home: Arc<HostedLoop>) -> Namespace {
        let number = home.next_number();
        Namespace { registration: Arc::new(Registration { number, home }) }
    }

    /// Runs statements.
    pub fn exec(&self, source: impl Into<Name>) -> Result<Reply, Refused> {
        self.submit(Call::of(Target::Exec(source.into())))
    }

    /// Evaluates an expression. If the result is an awaitable, its outcome is the outcome.
    pub fn eval(&self, expression: impl Into<Name>) -> Result<Reply, Refused> {
        self.submit(Call::of(Target::Eval(expression.into())))
    }

    /// Like [`Host::create_task`](super::Host::create_task), with this namespace as `__main__`.
    pub fn create_task(
        &self,
        module: impl Into<Name>,
        function: impl Into<Name>,
        args: impl Arguments,
        keywords: impl Into<Keywords>,
    ) -> Result<Reply, Refused> {
        self.submit(Call::new(module, function).args(args).keywords(keywords))
    }

    /// Like [`Host::run`](super::Host::run), with this namespace as `__main__`.
    pub fn run(
        &self,
        module: impl Into<Name>,
        function: impl Into<Name>,
        args: impl Arguments,
        keywords: impl Into<Keywords>,
    ) -> Outcome {
        self.create_task(module, function, args, keywords)?.wait()
    }

    /// Like [`Host::submit`](super::Host::submit), with this namespace as `__main__`.
    pub fn submit(&self, call: Call) -> Result<Reply, Refused> {
        submit::reply(&self.registration.home, self.registration.number, call)
    }

    /// Like [`PythonThread::submit_with`](super::PythonThread::submit_with), with this namespace as `__main__`.
    pub fn submit_with(&self, call: Call, then: impl FnOnce(Outcome) + Send + 'static) -> Result<Submitted, Refused> {
        let task = Callback { result: Value::None, call: then };
        let Registration { home, number } = &*self.registration;
        thread::foreign(home, *number, call, Box::new(task)).map_err(|RefusedTask { refused, .. }| refused)
    }

    /// Like [`PythonThread::submit_foreign`](super::PythonThread::submit_foreign), with this namespace as `__main__`.
    pub fn submit_foreign(&self, call: Call, task: Box<dyn Foreign>) -> Result<Submitted, RefusedTask> {
        thread::foreign(&self.registration.home, self.registration.number, call, task)
    }

    /// Like [`submit_foreign`](Namespace::submit_foreign), but another thread of the host makes the call. The task must
    /// own a handle of the namespace: one that was dropped before the call is made is created anew.
    pub fn submit_foreign_on(
        &self,
        thread: &PythonThread,
        call: Call,
        task: Box<dyn Foreign>,
    ) -> Result<Submitted, RefusedTask> {
        thread::foreign_with(&thread.home, (&self.registration.home, self.registration.number), call, task)
    }

    /// Returns the thread that the namespace belongs to.
    pub fn thread(&self) -> PythonThread {
        PythonThread { home: self.registration.home.clone() }
    }

    /// Like [`Host::spawn`](super::Host::spawn), with this namespace as `__main__`.
    pub fn spawn(&self, call: Call) -> Result<(), Refused> {
        submit::spawn(&self.registration.home, self.registration.number, call)
    }

    /// Like [`Host::batch`](super::Host::batch), with this namespace as `__main__`.
    pub fn batch(&self, calls: Vec<Call>) -> Result<Batch, PartlyRefused> {
        submit::batch(&self.registration.home, self.registration.number, calls)
    }

    /// Like [`Host::stream`](super::Host::stream), with this namespace as `__main__`.
    pub fn stream(&self, call: Call, credit: usize) -> Result<Stream, Refused> {
        submit::stream(&self.registration.home, self.registration.number, call, credit)
    }
}
