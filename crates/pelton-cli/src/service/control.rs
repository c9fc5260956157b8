//! Controls the workers of a long-running command from a reactor on the main thread: signals, draining, hand-over, the end.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use pelton::{DescriptorLimit, Error, EventLoop, Exit, Handle, ListenerId, Reactor, Reactors};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};

use super::access_log::Sink;
use super::places::Place;
use super::{handover, notify};
use crate::serve::{Ended, Failure, failed, tls};

/// State of the main thread.
pub struct Control {
    pub drain_time: Duration,
    pub program: PathBuf,
    pub limit: DescriptorLimit,
    pub places: Vec<Place>,
    pub admin: Option<(Place, ListenerId)>,
    pub workers: Vec<Handle>,
    pub log: Option<Sink>,
    pub tls: Option<pelton_tls::Server>,
    pub draining: Rc<Cell<bool>>,
    pub handing_over: bool,
}

impl Control {
    /// Says with which engine the workers run, and on how many.
    pub fn engine_and_workers(&self, reactor: &Reactor) -> String {
        let engine = reactor.engine_name();
        match self.workers.len() {
            1 => engine.to_owned(),
            count => format!("{engine} on {count} workers"),
        }
    }

    /// Takes ownership of what another process handed over, now that this one serves.
    pub fn take_over(&mut self) {
        let of_admin = self.admin.iter_mut().map(|(place, _)| place);
        self.places.iter_mut().chain(of_admin).for_each(Place::take_over);
    }

    /// Drains on the first signal, and stops at once on the second.
    fn end_on_signal(&mut self) {
        if self.draining.get() {
            tracing::info!("second signal: stopping at once");
            self.workers.iter().for_each(Handle::stop);
        } else {
            tracing::info!("signal received: finishing what is in progress");
            notify::ending();
            self.drain(false);
        }
    }

    fn drain(&mut self, handed_over: bool) {
        self.draining.set(true);
        self.places.iter_mut().for_each(|place| place.close(handed_over));
        for worker in &self.workers {
            let deadline = self.drain_time;
            // A worker that has ended has nothing to drain.
            let _ = worker.post(move |reactor| reactor.drain(deadline));
        }
    }

    fn reopen_logs(&self) {
        if let Some(log) = &self.log {
            log.reopen();
        }
    }
}

pub fn listen_for_signals(reactor: &mut Reactor, control: &Rc<RefCell<Control>>) -> Result<(), Error> {
    for signal in [SIGINT, SIGTERM] {
        let control = control.clone();
        reactor.on_signal(signal, move |_, _| control.borrow_mut().end_on_signal())?;
    }
    let logs = control.clone();
    reactor.on_signal(SIGHUP, move |reactor, _| {
        let control = logs.borrow();
        control.reopen_logs();
        if let Some(server) = &control.tls {
            tls::reload(reactor, server);
        }
    })?;
    let control = control.clone();
    reactor.on_signal(SIGUSR2, move |reactor, _| hand_over(reactor, &control))?;
    Ok(())
}

/// Starts a new process to replace this one, and drains when that one serves.
fn hand_over(reactor: &mut Reactor, control: &Rc<RefCell<Control>>) {
    let mut controls = control.borrow_mut();
    if controls.draining.get() || controls.handing_over {
        tracing::warn!("handover ignored: this process is shutting down, or a new process is already starting");
        return;
    }
    let of_admin = controls.admin.iter().map(|(place, _)| place);
    let sockets: Vec<_> = controls.places.iter().chain(of_admin).flat_map(Place::to_pass_on).collect();
    let then = {
        let control = control.clone();
        move |reactor: &mut Reactor, outcome| handed_over(reactor, &control, outcome)
    };
    let secrets = controls.tls.as_ref().map(|tls| tls.export_ticket_keys()).unwrap_or_default();
    match handover::begin(reactor, &controls.program, &controls.limit, (sockets, &secrets), then) {
        Ok(()) => controls.handing_over = true,
        Err(error) => {
            let program = controls.program.display();
            tracing::error!(%error, %program, "could not start a new process; this one continues to serve");
        }
    }
}

fn handed_over(reactor: &mut Reactor, control: &Rc<RefCell<Control>>, outcome: Result<u32, String>) {
    let mut controls = control.borrow_mut();
    controls.handing_over = false;
    match outcome {
        Ok(process) => {
            tracing::info!(process, "the new process serves; this one finishes what is in progress");
            if let Some((mut place, listener)) = controls.admin.take() {
                reactor.end(listener);
                place.close(true);
            }
            controls.drain(true);
        }
        Err(why) => tracing::error!(why, "the new process did not take over; this one continues to serve"),
    }
}

/// Runs the control reactor until the last worker has ended.
pub fn run_to_end(control: &mut EventLoop, reactors: Reactors) -> Result<Vec<Result<Exit, Error>>, Failure> {
    struct Exits(Vec<Result<Exit, Error>>);
    let handle = control.handle();
    let wait = move || {
        let exits = reactors.join();
        let _ = handle.post(move |reactor| {
            reactor.put_state(Exits(exits));
            reactor.stop();
        });
    };
    let thread = std::thread::Builder::new().name("pelton-join".to_owned()).spawn(wait);
    let thread = thread.map_err(failed("start a thread"))?;
    let exits: Rc<RefCell<Option<Exits>>> = Rc::default();
    let found = exits.clone();
    control.on_shutdown(move |reactor| *found.borrow_mut() = reactor.take_state());
    control.run()?;
    let _ = thread.join();
    let exits = exits.take();
    Ok(exits.map(|Exits(exits)| exits).unwrap_or_default())
}

pub fn outcome_of_workers(exits: Vec<Result<Exit, Error>>) -> Result<Ended, Failure> {
    let mut ended = Ended::Drained;
    for exit in exits {
        match exit? {
            Exit::Drained => {}
            Exit::DrainTimedOut { connections, .. } => {
                tracing::warn!(connections, "connections were cut off at the drain deadline");
                ended = Ended::CutShort;
            }
            _ => ended = Ended::CutShort,
        }
    }
    Ok(ended)
}
