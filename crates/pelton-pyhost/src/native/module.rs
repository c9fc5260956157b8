//! Python modules of Rust functions.

use std::future::Future;

use pyo3::exceptions::{PyImportError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::function::{self, Body};
use super::{Args, Raise, attached};
use crate::host::Exception;
use crate::value::Value;

/// A module for Python to import, made of Rust functions and values.
///
/// ```no_run
/// use pelton_python::native::{Module, Raise};
///
/// Module::new("shop")
///     .exception("SoldOut", "LookupError")
///     .function("price", |args| {
///         let (item,): (String,) = args.positional()?;
///         if item == "moon" { Err(Raise::new("shop.SoldOut", item)) } else { Ok(item.len() as f64 * 1.5) }
///     })
///     .async_function("deliver", |args| async move {
///         let address: String = args.one()?;
///         Ok(format!("on its way to {address}"))
///     })
///     .install()?;
/// # Ok::<(), pelton_python::host::Exception>(())
/// ```
#[must_use = "a module has no effect until it is installed"]
pub struct Module {
    name: String,
    doc: String,
    members: Vec<(String, Member)>,
}

enum Member {
    Function(String, Body),
    Value(Value),
    /// An exception class, with the name of its base.
    Exception(String),
}

impl Module {
    /// Creates a module of this name. A name with dots is inside a package, which Python must be able to import.
    pub fn new(name: impl Into<String>) -> Module {
        Module { name: name.into(), doc: String::new(), members: Vec::new() }
    }

    /// Sets the docstring of the function that was added last, or of the module if there is none yet.
    pub fn doc(mut self, text: impl Into<String>) -> Module {
        match self.members.last_mut() {
            Some((_, Member::Function(doc, _))) => *doc = text.into(),
            _ => self.doc = text.into(),
        }
        self
    }

    /// Adds a function.
    ///
    /// It is called without the interpreter lock, on the thread that runs the Python code. It may wait, take locks,
    /// and [`call`](super::call) back into Python. On a loop's thread it blocks that loop. A panic becomes a
    /// `RuntimeError`.
    pub fn function<R, F>(self, name: impl Into<String>, function: F) -> Module
    where
        F: Fn(Args) -> Result<R, Raise> + Send + Sync + 'static,
        R: Into<Value>,
    {
        self.member(name, Body::Plain(Box::new(move |args| function(args).map(Into::into))))
    }

    /// Adds a function that is called with the interpreter lock held, which saves the time of releasing it. The
    /// function must not wait, and must not take a lock that another thread may hold while it waits for the
    /// interpreter lock. Either would deadlock.
    pub fn brief_function<R, F>(self, name: impl Into<String>, function: F) -> Module
    where
        F: Fn(Args) -> Result<R, Raise> + Send + Sync + 'static,
        R: Into<Value>,
    {
        self.member(name, Body::Brief(Box::new(move |args| function(args).map(Into::into))))
    }

    /// Adds an async function. To asyncio, its result is a coroutine.
    ///
    /// The future is polled on the thread of the loop that awaits it, without the interpreter lock. It may await
    /// tasks of a [`Host`](crate::Host), even on the same loop. It is dropped if the awaiting task is cancelled.
    pub fn async_function<R, F, T>(self, name: impl Into<String>, function: F) -> Module
    where
        F: Fn(Args) -> T + Send + Sync + 'static,
        T: Future<Output = Result<R, Raise>> + Send + 'static,
        R: Into<Value>,
    {
        let body = move |args| -> function::CallFuture {
            let future = function(args);
            Box::pin(async move { future.await.map(Into::into) })
        };
        self.member(name, Body::Async(Box::new(body)))
    }

    /// Adds a value: a constant, a [`Sender`](super::Sender), a [`State`](super::State).
    pub fn value(mut self, name: impl Into<String>, value: impl Into<Value>) -> Module {
        self.members.push((name.into(), Member::Value(value.into())));
        self
    }

    /// Adds an exception class derived from a built-in one, or from one in a module.
    pub fn exception(mut self, name: impl Into<String>, base: impl Into<String>) -> Module {
        self.members.push((name.into(), Member::Exception(base.into())));
        self
    }

    fn member(mut self, name: impl Into<String>, body: Body) -> Module {
        self.members.push((name.into(), Member::Function(String::new(), body)));
        self
    }

    /// Installs the module in `sys.modules`. Waits for the interpreter lock. Replaces an installed module of the
    /// same name, for code that imports it from now on.
    ///
    /// Fails if Python is not running: start a [`Host`](crate::Host) first.
    pub fn install(self) -> Result<(), Exception> {
        let doing = format!("install the module {}", self.name);
        attached(&doing, |py| self.make(py))
    }

    fn make(self, py: Python<'_>) -> PyResult<()> {
        let Module { name, doc, members } = self;
        if name.is_empty() || name.split('.').any(str::is_empty) {
            return Err(PyValueError::new_err(format!("{name:?} is not a module name")));
        }
        let package = name.rsplit_once('.');
        let package = match package {
            Some((package, last)) => Some((py.import(package)?, last)),
            None => None,
        };
        let module = PyModule::new(py, &name)?;
        module.setattr("__doc__", &doc)?;
        module.setattr("__package__", name.rsplit_once('.').map_or("", |(package, _)| package))?;
        let spec = py.import("importlib.machinery")?.getattr("ModuleSpec")?.call1((&name, py.None()))?;
        module.setattr("__spec__", spec)?;
        for (member, what) in members {
            let object = match what {
                Member::Function(doc, body) => function::make(py, &module, &member, &doc, body)?,
                Member::Value(value) => value.to_python(py)?,
                Member::Exception(base) => make_exception(py, &name, &member, &base)?,
            };
            module.setattr(&*member, object)?;
        }
        let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
        modules.set_item(&name, &module)?;
        if let Some((package, last)) = package {
            package.setattr(last, &module)?;
        }
        Ok(())
    }
}

fn make_exception<'py>(py: Python<'py>, module: &str, name: &str, base: &str) -> PyResult<Bound<'py, PyAny>> {
    let (place, class) = base.rsplit_once('.').unwrap_or(("builtins", base));
    let base_class = py.import(place)?.getattr(class)?;
    let namespace = PyDict::new(py);
    namespace.set_item("__module__", module)?;
    let made = py.get_type::<pyo3::types::PyType>().call1((name, PyTuple::new(py, [&base_class])?, namespace))?;
    let is_exception = made.cast::<pyo3::types::PyType>()?.is_subclass_of::<pyo3::exceptions::PyBaseException>()?;
    if is_exception { Ok(made) } else { Err(PyImportError::new_err(format!("{base} is not an exception class"))) }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let members = self.members.iter().map(|(name, _)| name);
        f.debug_struct("Module").field("name", &self.name).field("members", &members.collect::<Vec<_>>()).finish()
    }
}
