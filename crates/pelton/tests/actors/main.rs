//! Actors on a pool of workers, and servers whose protocols run there, on every engine.

mod ending;
mod mailboxes;
mod scheduling;
mod services;

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};

use pelton::{ActorRef, Pool};

fn pool(workers: usize) -> Pool {
    Pool::builder().workers(workers).build().unwrap()
}

/// Panics without invoking the panic hook.
fn panic_quietly() -> ! {
    resume_unwind(Box::new("on purpose"))
}

/// An actor that blocks its worker until it is released.
fn blocker(pool: &Pool) -> (ActorRef<()>, Receiver<()>, Sender<()>) {
    let (entered, inside) = channel();
    let (release, released) = channel::<()>();
    let actor = pool.spawn_fn(move |(), _| {
        entered.send(()).unwrap();
        released.recv().ok();
    });
    (actor, inside, release)
}
