//! Watched files, and the keyboard.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use magnus::Error;
use pelton::{Change, Changes, Reactor};

use crate::access::ask;
use crate::call::Told;
use crate::errors;
use crate::machine::{Machine, Source, next_signature};
use crate::streams::{Opening, Stream};

/// `watch_filename`
///
/// As in EventMachine, a file has one watch. The second one for the same file is told the same changes, and cannot be stopped by
/// itself.
pub(crate) fn watch_filename(path: String) -> Result<u64, Error> {
    let failed = |error: &dyn std::fmt::Display| {
        errors::of_module("Unsupported", format!("error registering file {path} for watching: {error}"))
    };
    std::fs::metadata(&path).map_err(|error| failed(&text_of(&error)))?;
    let path_buf = PathBuf::from(&path);
    let watched = ask("watch_filename", move |machine, reactor| watch(machine, reactor, path_buf))?;
    watched.map_err(|error| failed(&error))
}

/// Returns the text of a system error without its number, as other errors of EventMachine have it.
fn text_of(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

fn watch(machine: &Rc<Machine>, reactor: &mut Reactor, path: PathBuf) -> Result<u64, String> {
    let sig = next_signature();
    let owner = machine.clone();
    let watched = path.clone();
    let id = reactor
        .watch_path(&path, move |reactor, changes| changed(&owner, reactor, sig, &watched, &changes))
        .map_err(|error| error.to_string())?;
    let first = !machine.paths.borrow().values().any(|other| *other == path);
    machine.add(sig, Source::Path(id, first));
    machine.paths.borrow_mut().insert(sig, path);
    Ok(sig)
}

fn changed(machine: &Machine, reactor: &mut Reactor, sig: u64, path: &Path, changes: &Changes) {
    let mut ends = false;
    for change in changes.iter() {
        let word: &[u8] = match change {
            Change::Deleted { path: gone, .. } if gone == path => {
                ends = true;
                b"deleted"
            }
            Change::Moved { from, .. } if from == path => b"moved",
            Change::Failed { .. } => continue,
            _ => b"modified",
        };
        machine.tell(reactor, Told::Received(sig, word));
    }
    if ends && let Some(Source::Path(id, _)) = machine.source(sig) {
        reactor.end(id);
        machine.unbind(reactor, sig, 0);
    }
}

/// `unwatch_filename`
pub(crate) fn unwatch_filename(sig: u64) -> Result<(), Error> {
    let known = ask("unwatch_filename", move |machine, reactor| {
        if let Some(Source::Path(id, true)) = machine.source(sig) {
            reactor.end(id);
            machine.unbind_soon(reactor, sig);
            return true;
        }
        false
    })?;
    if known { Ok(()) } else { Err(errors::of_module("InvalidSignature", "invalid file watch signature")) }
}

/// `read_keyboard`: makes a connection of the standard input.
pub(crate) fn read_keyboard() -> Result<u64, Error> {
    let opened = ask("open_keyboard", move |machine, reactor| {
        let sig = next_signature();
        let handler = Stream { machine: machine.clone(), sig, opening: Opening::Attached };
        let id = reactor.open_stdin(handler).map_err(|error| error.to_string())?;
        machine.add(sig, Source::Connection(id));
        Ok::<u64, String>(sig)
    })?;
    opened.map_err(|error| errors::runtime(format!("no keyboard reader: {error}")))
}
