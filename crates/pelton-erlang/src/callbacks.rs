//! Calls from Python to Erlang, and Python objects that Erlang keeps.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pelton_python::Object;
use pelton_python::native::nesting::{self, Visitor};
use pyo3::exceptions::{PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rustler::{Encoder, Env, LocalPid, Resource, ResourceArc, Term};

use crate::environment::{self, OwnEnv, RawTerm};
use crate::opaque::Pid;
use crate::{atoms, errands, to_python, to_term};

/// An answer of Erlang, as a term.
pub(crate) struct Answer {
    env: OwnEnv,
    term: RawTerm,
    ok: bool,
}

impl Answer {
    pub(crate) fn new(term: Term<'_>, ok: bool) -> Answer {
        let mut env = OwnEnv::new();
        let term = env.keep(term);
        Answer { env, term, ok }
    }

    /// Converts the answer, or raises it.
    fn take<'py>(mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (raw, ok) = (self.term, self.ok);
        self.env.with(|env| {
            // SAFETY: the term belongs to the environment.
            let object = to_python::object(py, unsafe { environment::term(env, raw) })?;
            if ok { Ok(object) } else { Err(PyRuntimeError::new_err(object.str()?.to_string_lossy().into_owned())) }
        })
    }
}

/// A question to Erlang, as Erlang refers to it. If nothing refers to it any more and there is no answer, there will be
/// none, and Python is told.
pub(crate) struct Question(Mutex<Option<Asker>>);

enum Asker {
    /// A thread that waits, and serves calls meanwhile.
    Thread(Visitor<Option<Answer>>),
    /// A future of asyncio, and its loop.
    Future { future: Object, its_loop: Object },
}

#[rustler::resource_impl]
impl Resource for Question {}

impl Question {
    /// Answers the question. The first answer counts.
    pub(crate) fn answer(&self, answer: Answer) -> bool {
        let asker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match asker {
            None => false,
            Some(Asker::Thread(visitor)) => visitor.answer(Some(answer)),
            Some(Asker::Future { future, its_loop }) => {
                errands::run(move || settle(&future, &its_loop, Some(answer)));
                true
            }
        }
    }

    /// Returns the waiting thread, which serves calls.
    pub(crate) fn visitor(&self) -> Option<Visitor<Option<Answer>>> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Asker::Thread(visitor)) => Some(visitor.clone()),
            _ => None,
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        match self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            None => {}
            Some(Asker::Thread(visitor)) => drop(visitor.answer(None)),
            Some(Asker::Future { future, its_loop }) => errands::run(move || settle(&future, &its_loop, None)),
        }
    }
}

fn unanswered() -> PyErr {
    PyRuntimeError::new_err("the Erlang process that should have answered has ended")
}

/// Sets the result of a future on its loop.
fn settle(future: &Object, its_loop: &Object, answer: Option<Answer>) {
    let settled = Python::attach(|py| {
        let result = answer.ok_or_else(unanswered).and_then(|answer| answer.take(py));
        let (value, error) = match result {
            Ok(value) => (value, py.None().into_bound(py)),
            Err(error) => (py.None().into_bound(py), error.into_value(py).into_bound(py).into_any()),
        };
        let set = py.import("erlang")?.getattr("_settle")?;
        its_loop.bind(py).call_method1("call_soon_threadsafe", (set, future.bind(py), value, error)).map(drop)
    });
    if let Err(error) = settled {
        // The loop was closed, so nothing waits.
        tracing::debug!(%error, "answer a coroutine");
    }
}

/// The process that handles calls from Python.
static SERVER: Mutex<Option<LocalPid>> = Mutex::new(None);

/// The names that Erlang has registered.
static NAMES: Mutex<Option<HashSet<String>>> = Mutex::new(None);

pub(crate) fn set_server(server: LocalPid) {
    *SERVER.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
}

pub(crate) fn register(name: String, on: bool) {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if on {
        names.insert(name)
    } else {
        names.remove(&name)
    };
}

/// Returns whether Erlang has registered a function of this name.
#[pyfunction]
pub(crate) fn is_registered(name: &str) -> bool {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|names| names.contains(name))
}

/// Sends a question to the process that handles them.
fn ask(asker: Asker, name: &str, args: &Bound<'_, PyTuple>) -> PyResult<()> {
    let server = *SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(server) = server else { return Err(PyRuntimeError::new_err("Erlang accepts no calls")) };
    let question = ResourceArc::new(Question(Mutex::new(Some(asker))));
    let mut env = OwnEnv::new();
    let message = env.with(|env| {
        let args = args.iter().map(|argument| to_term::term(env, &argument)).collect::<PyResult<Vec<_>>>()?;
        // SAFETY: the terms were just made in this environment.
        let args: Vec<Term<'_>> = args.into_iter().map(|term| unsafe { environment::term(env, term) }).collect();
        PyResult::Ok((atoms::erlang_callback(), &question, name, args).encode(env).as_c_arg())
    })?;
    if env.send(&server, |_| message) {
        return Ok(());
    }
    question.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    Err(PyRuntimeError::new_err("the Erlang process that handles calls from Python has ended"))
}

/// Calls a registered Erlang function and waits for its answer, without the interpreter lock. Meanwhile this thread makes
/// the calls that come from that function.
#[pyfunction]
#[pyo3(signature = (name, args, timeout = None))]
pub(crate) fn call<'py>(
    py: Python<'py>,
    name: &str,
    args: &Bound<'py, PyTuple>,
    timeout: Option<f64>,
) -> PyResult<Bound<'py, PyAny>> {
    let timeout = match timeout {
        None => None,
        Some(seconds) => Some(
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| PyValueError::new_err("a timeout is a number of seconds, zero or more"))?,
        ),
    };
    let (wait, visitor) = nesting::wait_and_serve::<Option<Answer>>()?;
    ask(Asker::Thread(visitor), name, args)?;
    match wait.wait(py, timeout)? {
        None => Err(PyTimeoutError::new_err(format!("{name} did not answer in time"))),
        Some(None) => Err(unanswered()),
        Some(Some(answer)) => answer.take(py),
    }
}

/// Calls a registered Erlang function, whose answer becomes the result of a future.
#[pyfunction]
pub(crate) fn call_later(
    its_loop: &Bound<'_, PyAny>,
    future: &Bound<'_, PyAny>,
    name: &str,
    args: &Bound<'_, PyTuple>,
) -> PyResult<()> {
    ask(Asker::Future { future: Object::new(future), its_loop: Object::new(its_loop) }, name, args)
}

/// Sends a message to a process. Messages to processes that have ended are dropped, as in Erlang.
#[pyfunction]
pub(crate) fn send(to: &Bound<'_, PyAny>, message: &Bound<'_, PyAny>) -> PyResult<bool> {
    let mut env = OwnEnv::new();
    let (process, message) = env.with(|env| {
        let process = match to.cast::<Pid>() {
            Ok(pid) => pid.get().local(env),
            Err(_) => {
                let name = to.str()?;
                Some(find(env, &name.to_string_lossy()).ok_or_else(|| {
                    PyValueError::new_err(format!("no process is registered as {}", name.to_string_lossy()))
                })?)
            }
        };
        let process = process.ok_or_else(|| PyTypeError::new_err("only processes of this node can be sent to"))?;
        PyResult::Ok((process, to_term::term(env, message)?))
    })?;
    Ok(env.send(&process, |_| message))
}

fn find(env: Env<'_>, name: &str) -> Option<LocalPid> {
    let name = atoms::existing(env, name)?;
    let mut process = std::mem::MaybeUninit::uninit();
    // SAFETY: the thread is no scheduler, for which the first argument is null. The name is an atom.
    unsafe {
        let found = rustler::sys::enif_whereis_pid(std::ptr::null_mut(), name, process.as_mut_ptr());
        (found != 0).then(|| LocalPid::from_c_arg(process.assume_init()))
    }
}

/// The number that Python's logging has for errors.
const ERROR: i64 = 40;

/// Sends an error to the process that logs what Python logs.
pub(crate) fn log(mut env: OwnEnv, text: &str) {
    if let Some(logger) = env.with(|env| find(env, "py_logger")) {
        env.send(&logger, |env| (atoms::py_log(), ERROR, "erlang_python", text).encode(env).as_c_arg());
    }
}

/// Returns the process that is registered under a name, or None.
#[pyfunction]
pub(crate) fn whereis(name: &Bound<'_, PyAny>) -> PyResult<Option<Pid>> {
    let name = name.str()?.to_string_lossy().into_owned();
    Ok(OwnEnv::new().with(|env| find(env, &name).map(|process| Pid::new(process.encode(env)))))
}

/// A Python object that Erlang refers to.
pub(crate) struct KeptObject(Object);

#[rustler::resource_impl]
impl Resource for KeptObject {}

/// Makes a reference to an object.
pub(crate) fn keep_object(env: Env<'_>, object: &Bound<'_, PyAny>) -> RawTerm {
    ResourceArc::new(KeptObject(Object::new(object))).encode(env).as_c_arg()
}

/// Returns the object of a reference, if it is one.
pub(crate) fn kept_object<'py>(py: Python<'py>, term: Term<'_>) -> Option<Bound<'py, PyAny>> {
    term.decode::<ResourceArc<KeptObject>>().ok().map(|kept| kept.0.bind(py))
}

pub(crate) fn is_kept_object(term: Term<'_>) -> bool {
    term.decode::<ResourceArc<KeptObject>>().is_ok()
}
