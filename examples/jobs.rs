//! Jobs that survive a crash: orders of one customer are processed in order, and one that fails is tried again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use pelton::Reactor;
use pelton_jobs::{Failure, Job, Jobs, Retry, WorkOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let mut reactor = Reactor::new()?;
    // Also file:/some/directory, or redis://localhost, and then other machines can work, too.
    let jobs = Jobs::open(&mut reactor, &store)?;

    for (number, customer) in [(1, "ana"), (2, "bob"), (3, "ana"), (4, "bob")] {
        let retry = Retry::times(5).first_wait(Duration::from_millis(20));
        let job = Job::new(format!("order {number} of {customer}")).key(customer).retry(retry);
        jobs.enqueue(&mut reactor, "orders", job).done(|_, result| _ = result.expect("the store takes jobs"));
    }

    let left = Rc::new(Cell::new(4));
    jobs.work_async(&mut reactor, WorkOptions::new("orders"), move |run| {
        let left = left.clone();
        async move {
            let order = std::str::from_utf8(run.payload())?.to_owned();
            // Something that takes a while, and fails the first time for one of them.
            pelton::task::sleep(Duration::from_millis(5)).await;
            if order.starts_with("order 1") && run.attempt() == 1 {
                println!("{order}: failed, will be tried again");
                return Err(Failure::new("the warehouse does not answer"));
            }
            println!("{order}: done at attempt {}", run.attempt());
            left.set(left.get() - 1);
            if left.get() == 0 {
                // Finishes what is running, acknowledges it, and ends.
                pelton::Reactor::with_current(|reactor| reactor.drain(Duration::from_secs(5)));
            }
            Ok(Vec::new())
        }
    })?;
    reactor.run()?;
    Ok(())
}
