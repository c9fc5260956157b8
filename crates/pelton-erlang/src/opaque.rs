//! Erlang's values that Python has no type for, as Python classes: `erlang.Pid`, `erlang.Ref`, `erlang.Atom`.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use rustler::{Env, LocalPid, Term};

use crate::environment::{OwnEnv, RawTerm};
use crate::{atoms, to_term};

/// A process. Python code gets it from Erlang, and can send to it.
#[pyclass(frozen, eq, hash, module = "erlang", name = "Pid")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pid(Process);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Process {
    /// Of this node: the term itself, which is no pointer.
    Local(RawTerm),
    /// Of another node: in the external format.
    Remote(Box<[u8]>),
}

/// A reference.
#[pyclass(frozen, eq, hash, module = "erlang", name = "Ref")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ref(Box<[u8]>);

/// An atom. Strings become binaries in Erlang; this becomes an atom.
#[pyclass(frozen, module = "erlang", name = "Atom")]
#[derive(Clone)]
pub(crate) struct Atom(pub(crate) Box<str>);

fn external(term: Term<'_>) -> Box<[u8]> {
    term.to_binary().as_slice().into()
}

impl Pid {
    pub(crate) fn new(term: Term<'_>) -> Pid {
        Pid(match term.decode::<LocalPid>() {
            Ok(_) => Process::Local(term.as_c_arg()),
            Err(_) => Process::Remote(external(term)),
        })
    }

    pub(crate) fn term(&self, env: Env<'_>) -> Option<RawTerm> {
        match &self.0 {
            Process::Local(term) => Some(*term),
            Process::Remote(bytes) => env.binary_to_term(bytes).map(|(term, _)| term.as_c_arg()),
        }
    }

    /// Returns the process, if it is one of this node.
    pub(crate) fn local(&self, env: Env<'_>) -> Option<LocalPid> {
        let Process::Local(term) = self.0 else { return None };
        // SAFETY: the term of a local process is no pointer, so it is valid in every environment.
        unsafe { Term::new(env, term) }.decode().ok()
    }
}

#[pymethods]
impl Pid {
    fn __repr__(&self) -> String {
        let text = OwnEnv::new().with(|env| {
            // SAFETY: the term was just made in this environment, or is no pointer.
            self.term(env).map(|term| format!("{:?}", unsafe { Term::new(env, term) }))
        });
        format!("<erlang.Pid {}>", text.unwrap_or_default())
    }
}

impl Ref {
    pub(crate) fn new(term: Term<'_>) -> Ref {
        Ref(external(term))
    }

    pub(crate) fn term(&self, env: Env<'_>) -> Option<RawTerm> {
        env.binary_to_term(&self.0).map(|(term, _)| term.as_c_arg())
    }
}

#[pymethods]
impl Ref {
    fn __repr__(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        format!("<erlang.Ref {:x}>", hasher.finish())
    }
}

#[pymethods]
impl Atom {
    #[new]
    pub(crate) fn new(name: String) -> PyResult<Atom> {
        if name.chars().count() > 255 {
            return Err(PyTypeError::new_err("an atom has at most 255 characters"));
        }
        Ok(Atom(name.into()))
    }

    fn __str__(&self) -> &str {
        &self.0
    }

    fn __repr__(&self) -> String {
        format!("Atom('{}')", self.0)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.hash(&mut hasher);
        hasher.finish()
    }

    /// Atoms equal strings of the same text, since atoms from Erlang arrive as strings.
    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        if let Ok(other) = other.cast::<Atom>() {
            return *self.0 == *other.get().0;
        }
        other.extract::<String>().is_ok_and(|other| *self.0 == *other)
    }
}

/// Converts an object of one of these classes.
pub(crate) fn term(env: Env<'_>, object: &Bound<'_, PyAny>) -> Option<PyResult<RawTerm>> {
    let gone = || PyTypeError::new_err("the virtual machine does not accept it any more");
    if let Ok(pid) = object.cast::<Pid>() {
        return Some(pid.get().term(env).ok_or_else(gone));
    }
    if let Ok(reference) = object.cast::<Ref>() {
        return Some(reference.get().term(env).ok_or_else(gone));
    }
    let atom = object.cast::<Atom>().ok()?;
    Some(atoms::mint(env, &atom.get().0).map_or_else(|| to_term::text(env, &atom.get().0), Ok))
}
