//! The end of a machine.

use magnus::Error;

use crate::access::machine;
use crate::call::{self, Told};
use crate::errors;
use crate::machine::{self, Machine, Source};

/// `release_machine`: closes everything, tells the program of each connection's end, and drops the reactor.
///
/// This also works inside a callback of the loop, in a forked child: the loop of the parent is separated from the parent's
/// kernel objects first, and left behind empty.
pub(crate) fn release_machine() -> Result<(), Error> {
    let machine = machine("release_library")?;
    machine.stopping.set(true);
    let forked = machine.forks != pelton_os::fork::count();
    if forked && machine.is_turned() {
        machine.with(|reactor| reactor.after_fork()).transpose().map_err(|error| errors::runtime(error.to_string()))?;
    } else if machine.is_turned() {
        return Err(errors::runtime("eventmachine is running: evma_release_library"));
    }
    let told = end_all(&machine);
    machine::set_current(None);
    machine.drop_loop();
    told
}

/// Ends everything, the newest first, as EventMachine does. What a program opens in `unbind` meanwhile is closed, and it is not
/// told of that.
fn end_all(machine: &Machine) -> Result<(), Error> {
    let mut sigs: Vec<u64> = machine.entries.borrow().keys().copied().collect();
    sigs.sort_unstable_by_key(|sig| std::cmp::Reverse(*sig));
    let mut first = Ok(());
    for sig in sigs {
        let Some(source) = machine.source(sig) else { continue };
        let error = match source {
            Source::Over(error) | Source::Exiting(_, error) => error,
            _ => 0,
        };
        machine.will_close(sig);
        if let Some(entry) = machine.entries.borrow_mut().get_mut(&sig) {
            entry.source = Source::Over(error);
        }
        machine.with(|reactor| match source {
            Source::Connection(id) => reactor.end(id),
            Source::Server(id) => reactor.end(id),
            Source::Datagrams(id) => reactor.end(id),
            Source::Watch(id) => reactor.end(id),
            Source::Path(id, _) => reactor.end(id),
            Source::Process(id) | Source::Exiting(id, _) => reactor.end(id),
            Source::Over(_) => false,
        });
        if matches!(source, Source::Server(_)) {
            machine.remove(sig);
            continue;
        }
        // The layer in Ruby keeps exceptions of `unbind`. Only a throw, or the end of the thread, gets here.
        let told = call::tell(Told::Unbound(sig, error));
        machine.remove(sig);
        if let Err(jump) = told {
            let error = errors::continue_jump(jump);
            if first.is_ok() {
                first = Err(error);
            }
        }
    }
    first
}
