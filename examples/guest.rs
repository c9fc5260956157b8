//! Another language on the reactor's thread: a tiny interpreter with a lock, as a guest of the turn.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin guest
//! script one: hello
//! script two: hello from another thread
//! the reactor's timer fires
//! script one: bye
//! ```
//!
//! Like larger interpreters, this one has a lock that a thread must hold to touch it. The loop's thread holds it, and
//! releases it only while the loop sleeps. So the other thread gets its turn then, and wakes the loop.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use pelton::{Batch, Guest, Reactor, Sleep, Time};

/// A running script: a name, and the statements that are left.
struct Script {
    name: &'static str,
    statements: VecDeque<Statement>,
}

enum Statement {
    Say(&'static str),
    Sleep(Duration),
    /// Ends the interpreter's loop, not the reactor's.
    Quit,
}

/// The lock: whether a thread has it.
#[derive(Default)]
struct Lock {
    taken: Mutex<bool>,
    released: Condvar,
}

impl Lock {
    fn acquire(&self) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *self.released.wait_while(taken, |taken| *taken).unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn release(&self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.released.notify_one();
    }
}

/// The interpreter, as all threads see it.
#[derive(Default)]
struct Interpreter {
    lock: Lock,
    /// Scripts to continue, in order. Used with the lock held.
    ready: Mutex<VecDeque<Script>>,
}

impl Interpreter {
    fn ready(&self) -> MutexGuard<'_, VecDeque<Script>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, name: &'static str, statements: impl Into<VecDeque<Statement>>) {
        self.ready().push_back(Script { name, statements: statements.into() });
    }
}

/// The interpreter's part in the turn.
struct InterpreterGuest {
    interpreter: Arc<Interpreter>,
    /// Scripts that sleep, with the time that each wakes up.
    sleeping: Vec<(Time, Script)>,
    /// Whether a script has called `quit`.
    quit: Rc<Cell<bool>>,
}

impl Guest for InterpreterGuest {
    fn has_work(&mut self) -> bool {
        !self.interpreter.ready().is_empty()
    }

    fn next_deadline(&mut self) -> Option<Time> {
        self.sleeping.iter().map(|(wakes, _)| *wakes).min()
    }

    fn run(&mut self, reactor: &mut Reactor) -> Batch {
        let now = reactor.clock();
        let due = self.sleeping.extract_if(.., |(wakes, _)| *wakes <= now);
        self.interpreter.ready().extend(due.map(|(_, script)| script));
        // The batch is the queue as it stands: one statement of each script.
        let batch = std::mem::take(&mut *self.interpreter.ready());
        let mut next = Batch::MayContinue;
        for mut script in batch {
            match script.statements.pop_front() {
                None => continue,
                Some(Statement::Say(text)) => println!("script {}: {text}", script.name),
                Some(Statement::Sleep(duration)) => {
                    self.sleeping.push((reactor.clock() + duration, script));
                    continue;
                }
                Some(Statement::Quit) => {
                    self.quit.set(true);
                    next = Batch::EndsTurn;
                }
            }
            self.interpreter.ready().push_back(script);
        }
        next
    }

    fn park(&mut self, sleep: &mut Sleep<'_>) -> io::Result<()> {
        self.interpreter.lock.release();
        let outcome = sleep.block();
        self.interpreter.lock.acquire();
        outcome
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let interpreter = Arc::new(Interpreter::default());
    let quit = Rc::new(Cell::new(false));
    interpreter.lock.acquire();
    reactor.host(InterpreterGuest { interpreter: interpreter.clone(), sleeping: Vec::new(), quit: quit.clone() })?;
    reactor.after(Duration::from_millis(100), |_| println!("the reactor's timer fires"));
    let sleep = Statement::Sleep(Duration::from_millis(200));
    interpreter.start("one", [Statement::Say("hello"), sleep, Statement::Say("bye"), Statement::Quit]);

    let (other, handle) = (interpreter.clone(), reactor.handle());
    let thread = thread::spawn(move || {
        // Gets the lock when the loop falls asleep, which then has to be woken.
        other.lock.acquire();
        other.start("two", [Statement::Say("hello from another thread")]);
        handle.wake();
        other.lock.release();
    });

    // The interpreter's own loop. It could be run again.
    while !quit.get() {
        reactor.turn(None)?;
    }
    interpreter.lock.release();
    thread.join().map_err(|_| "the other thread panicked")?;
    Ok(())
}
