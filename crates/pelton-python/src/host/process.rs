//! Isolated namespaces.

use std::sync::Arc;

use super::call::{Arguments, Call, Keywords, Name, Target};
use super::error::Refused;
use super::loops::{Control, LoopShared};
use super::reply::{Outcome, Reply};
use super::stream::Stream;
use super::{Batch, PartlyRefused, submit};

/// A namespace that nobody else sees: what is defined in it stays there between calls.
///
/// `__main__` means this namespace. All of its tasks run on one loop, in the order in which they were submitted, though those
/// that wait let others go on. Modules are the whole interpreter's: what they hold is shared.
///
/// Copies of this are handles of the same namespace. When the last is dropped it is let go of; what still runs in it runs to
/// its end.
///
/// ```no_run
/// # use pelton_python::host::{Config, Host};
/// let host = Host::start(Config::new())?;
/// let process = host.process();
/// process.exec("count = 0\ndef next():\n    global count\n    count += 1\n    return count")?.wait()?;
/// assert_eq!(process.run("__main__", "next", (), ())?.as_int(), Some(1));
/// assert_eq!(process.eval("count + 1")?.wait()?.as_int(), Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Process {
    namespace: Arc<Namespace>,
}

#[derive(Debug)]
struct Namespace {
    number: u64,
    home: Arc<LoopShared>,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.home.control(Control::Forget(self.number));
    }
}

impl Process {
    pub(crate) fn new(home: Arc<LoopShared>) -> Process {
        let number = home.next_number();
        Process { namespace: Arc::new(Namespace { number, home }) }
    }

    /// Runs statements.
    pub fn exec(&self, source: impl Into<Name>) -> Result<Reply, Refused> {
        self.submit(Call::of(Target::Exec(source.into())))
    }

    /// Evaluates an expression. If that gives something to be awaited, its outcome is this one's.
    pub fn eval(&self, expression: impl Into<Name>) -> Result<Reply, Refused> {
        self.submit(Call::of(Target::Eval(expression.into())))
    }

    /// As [`Host::create_task`](super::Host::create_task), with `__main__` being this namespace.
    pub fn create_task(
        &self,
        module: impl Into<Name>,
        function: impl Into<Name>,
        args: impl Arguments,
        keywords: impl Into<Keywords>,
    ) -> Result<Reply, Refused> {
        self.submit(Call::new(module, function).args(args).keywords(keywords))
    }

    /// As [`Host::run`](super::Host::run), with `__main__` being this namespace.
    pub fn run(
        &self,
        module: impl Into<Name>,
        function: impl Into<Name>,
        args: impl Arguments,
        keywords: impl Into<Keywords>,
    ) -> Outcome {
        self.create_task(module, function, args, keywords)?.wait()
    }

    /// As [`Host::submit`](super::Host::submit), with `__main__` being this namespace.
    pub fn submit(&self, call: Call) -> Result<Reply, Refused> {
        submit::reply(&self.namespace.home, self.namespace.number, call)
    }

    /// As [`Host::spawn`](super::Host::spawn), with `__main__` being this namespace.
    pub fn spawn(&self, call: Call) -> Result<(), Refused> {
        submit::spawn(&self.namespace.home, self.namespace.number, call)
    }

    /// As [`Host::batch`](super::Host::batch), with `__main__` being this namespace.
    pub fn batch(&self, calls: Vec<Call>) -> Result<Batch, PartlyRefused> {
        submit::batch(&self.namespace.home, self.namespace.number, calls)
    }

    /// As [`Host::stream`](super::Host::stream), with `__main__` being this namespace.
    pub fn stream(&self, call: Call, credit: usize) -> Result<Stream, Refused> {
        submit::stream(&self.namespace.home, self.namespace.number, call, credit)
    }
}
