//! Calls from Erlang: their terms, and sending the answer.

use pelton_python::host::{ArgumentList, Foreign, Namespace, RefusalKind, TaskError};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use rustler::types::atom;
use rustler::{Encoder, Env, LocalPid, MapIterator, Term};

use crate::environment::{self, OwnEnv, RawTerm};
use crate::{atoms, callbacks, errands, to_python, to_term};

/// A call. Its environment holds the terms of the call, and then the message with the result.
pub(crate) struct Task {
    env: OwnEnv,
    caller: LocalPid,
    reference: RawTerm,
    args: RawTerm,
    keywords: RawTerm,
    result: Option<RawTerm>,
    /// The arguments are small enough to be sent along with the result instead of being freed before.
    small: bool,
    /// The result stays in Python, and Erlang gets a reference.
    keeps_object: bool,
    /// Keeps the namespace while the call waits for another thread.
    _namespace: Option<Namespace>,
}

impl Task {
    /// Copies the terms of a call. `args` is a list of arguments; for source code, a map of local variables.
    pub(crate) fn new(
        caller: LocalPid,
        reference: Term<'_>,
        args: Term<'_>,
        keywords: Term<'_>,
        small: bool,
        keeps_object: bool,
        namespace: Option<Namespace>,
    ) -> Box<Task> {
        let mut env = OwnEnv::new();
        let (reference, args, keywords) = (env.keep(reference), env.keep(args), env.keep(keywords));
        Box::new(Task {
            env,
            caller,
            reference,
            args,
            keywords,
            result: None,
            small,
            keeps_object,
            _namespace: namespace,
        })
    }
}

/// Returns the reason of an error, as Erlang code sees it.
pub(crate) fn reason(env: Env<'_>, error: &TaskError) -> RawTerm {
    let atom = match error {
        TaskError::Raised(exception) => {
            let name = exception.type_name();
            if name == "pelton._host.Interrupted" {
                return atoms::interrupted().to_term(env).as_c_arg();
            }
            let name = name.rsplit('.').next().unwrap_or(name);
            return named(env, name, exception.message());
        }
        TaskError::Conversion(error) => return named(env, "TypeError", &error.to_string()),
        TaskError::Cancelled => atoms::cancelled(),
        TaskError::TimedOut => atoms::timeout(),
        TaskError::Refused(RefusalKind::Full) => atoms::queue_full(),
        _ => atoms::stopped(),
    };
    atom.to_term(env).as_c_arg()
}

/// Returns `{'Name', "message"}`. The name is a binary if Python has created too many atoms.
fn named(env: Env<'_>, name: &str, message: &str) -> RawTerm {
    let name = atoms::mint(env, name).unwrap_or_else(|| name.encode(env).as_c_arg());
    // SAFETY: the term was just made in this environment.
    let name = unsafe { environment::term(env, name) };
    let message: Vec<u32> = message.chars().map(u32::from).collect();
    (name, message).encode(env).as_c_arg()
}

impl Foreign for Task {
    fn arguments(&mut self, list: &mut ArgumentList<'_>) -> PyResult<()> {
        let Task { env, args, keywords, .. } = self;
        env.with(|env| {
            let py = list.py();
            // SAFETY: both terms belong to the environment.
            let (args, keywords) = unsafe { (environment::term(env, *args), environment::term(env, *keywords)) };
            for argument in to_python::items(args)? {
                list.push(to_python::object(py, argument)?);
            }
            if keywords.map_size().is_ok_and(|size| size == 0) {
                return Ok(());
            }
            let pairs =
                MapIterator::new(keywords).ok_or_else(|| PyTypeError::new_err("keyword arguments are a map"))?;
            for (name, value) in pairs {
                let name = to_python::object(py, name)?;
                let name = name.cast_into::<PyString>();
                let name = name.map_err(|_| PyTypeError::new_err("the name of a keyword argument is a string"))?;
                list.keyword(name, to_python::object(py, value)?);
            }
            Ok(())
        })
    }

    fn locals<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let locals = self.args;
        self.env.with(|env| {
            // SAFETY: the term belongs to the environment.
            let locals = unsafe { environment::term(env, locals) };
            if locals.map_size().is_ok_and(|size| size == 0) {
                return Ok(None);
            }
            let locals = to_python::object(py, locals)?.cast_into::<PyDict>();
            locals.map(Some).map_err(|_| PyValueError::new_err("local variables are a map"))
        })
    }

    fn returned(&mut self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        if !self.small {
            // The arguments are freed now, and do not travel with the result.
            let mut fresh = OwnEnv::new();
            // SAFETY: the reference belongs to the environment.
            self.reference = self.env.with(|env| fresh.keep(unsafe { environment::term(env, self.reference) }));
            self.env = fresh;
        }
        let keeps = self.keeps_object;
        let term = self
            .env
            .with(|env| if keeps { Ok(callbacks::keep_object(env, object)) } else { to_term::term(env, object) })?;
        self.result = Some(term);
        Ok(())
    }

    fn done(self: Box<Self>, outcome: Result<(), TaskError>) {
        if environment::is_scheduler() {
            // Only if the host ends just as a call is submitted.
            return errands::run(move || (*self).send(outcome));
        }
        (*self).send(outcome);
    }

    fn is_brief(&self) -> bool {
        true
    }
}

impl Task {
    fn send(self, outcome: Result<(), TaskError>) {
        let Task { mut env, caller, reference, result, .. } = self;
        // SAFETY: the reference belongs to the environment.
        if env.with(|env| unsafe { environment::term(env, reference) }.is_atom()) {
            // Nobody waits for it, so an error is logged.
            if let Err(error) = outcome {
                callbacks::log(env, &format!("a Python call failed: {error}"));
            }
            return;
        }
        // A process that has ended needs no answer.
        env.send(&caller, |env| {
            // SAFETY: both terms belong to the environment.
            let reference = unsafe { environment::term(env, reference) };
            let answer = match (&outcome, result) {
                (Ok(()), Some(result)) => {
                    // SAFETY: as above.
                    (atom::ok(), unsafe { environment::term(env, result) })
                }
                (Ok(()), None) => (atom::error(), atoms::stopped().to_term(env)),
                // SAFETY: the reason was just made in this environment.
                (Err(error), _) => (atom::error(), unsafe { environment::term(env, reason(env, error)) }),
            };
            (atoms::async_result(), reference, answer).encode(env).as_c_arg()
        });
    }
}
