//! Atoms: those that this crate uses, those of names, and those that Python creates.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustler::{Env, Term};

use crate::environment::RawTerm;

rustler::atoms! {
    ok,
    error,
    none,
    nil,
    undefined,
    nan,
    infinity,
    neg_infinity,
    bytes,
    async_result,
    timeout,
    cancelled,
    interrupted,
    stopped,
    queue_full,
    not_running,
    already_running,
    large,
    process,
    context,
    erlang_callback,
    py_started,
    py_stopped,
    py_interrupted,
    py_log,
}

/// How many atoms Python code may create. Atoms are never freed, and a virtual machine ends when its table is full.
const MOST: usize = 10_000;

static MADE: AtomicUsize = AtomicUsize::new(0);

/// Returns an existing atom, or creates one unless Python has created too many.
pub(crate) fn mint(env: Env<'_>, name: &str) -> Option<RawTerm> {
    let encoded = encoded(name)?;
    if let Some((atom, _)) = env.binary_to_term(&encoded) {
        return Some(atom.as_c_arg());
    }
    let most = most();
    MADE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |made| (made < most).then_some(made + 1)).ok()?;
    // SAFETY: the bytes are those of an atom.
    unsafe { env.binary_to_term_trusted(&encoded) }.map(|(atom, _)| atom.as_c_arg())
}

/// Returns an atom that exists already.
pub(crate) fn existing(env: Env<'_>, name: &str) -> Option<RawTerm> {
    env.binary_to_term(&encoded(name)?).map(|(atom, _)| atom.as_c_arg())
}

/// The first byte of terms in the external format, and the kinds of atoms there.
const VERSION: u8 = 131;
const ATOM_UTF8: u8 = 118;
const SMALL_ATOM_UTF8: u8 = 119;

/// Encodes an atom in the external format. Atoms have at most 255 characters.
fn encoded(name: &str) -> Option<Vec<u8>> {
    if name.chars().count() > 255 {
        return None;
    }
    let [high, low] = (name.len() as u16).to_be_bytes();
    Some([&[VERSION, ATOM_UTF8, high, low], name.as_bytes()].concat())
}

/// Decodes an atom.
fn decoded(encoded: &[u8]) -> Option<&str> {
    let text = match encoded {
        [VERSION, ATOM_UTF8, _, _, text @ ..] => text,
        [VERSION, SMALL_ATOM_UTF8, _, text @ ..] => text,
        _ => return None,
    };
    std::str::from_utf8(text).ok()
}

fn most() -> usize {
    static SET: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *SET.get_or_init(|| {
        std::env::var("ERLANG_PYTHON_MAX_ATOMS").ok().and_then(|text| text.parse().ok()).unwrap_or(MOST)
    })
}

/// Returns how many atoms Python has created.
pub(crate) fn made() -> usize {
    MADE.load(Ordering::Relaxed)
}

/// Returns the text of an atom. Texts are kept for ever, as atoms are.
pub(crate) fn text(atom: Term<'_>) -> Option<&'static str> {
    thread_local! {
        static TEXTS: RefCell<HashMap<RawTerm, &'static str>> = RefCell::new(HashMap::new());
    }
    if !atom.is_atom() {
        return None;
    }
    TEXTS.with(|texts| {
        if let Some(text) = texts.borrow().get(&atom.as_c_arg()) {
            return Some(*text);
        }
        let text = match atom.atom_to_string() {
            Ok(text) => text,
            // A character outside of Latin-1.
            Err(_) => decoded(&atom.to_binary())?.to_owned(),
        };
        let text: &'static str = text.leak();
        texts.borrow_mut().insert(atom.as_c_arg(), text);
        Some(text)
    })
}
