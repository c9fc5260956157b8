//! Work by key: the transfers of each account run one after the other, in order; those of different accounts run in parallel.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin keyed
//! task panicked (examples/keyed.rs:58): the ledger of carol is gone
//! alice: 100, 70, 75
//! bob: 50, 30, 40
//! carol: 10, 5
//! 0 keys are busy, 0 tasks wait
//! ```
//!
//! `submit(key, task)` is the actor pool of the textbooks, where the key is the actor. No lock keeps the tasks of an account apart:
//! the pool never runs two of them at a time. A task that panics is reported, and the next one of its key runs. A key without
//! tasks costs nothing.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::panic::resume_unwind;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use pelton::Pool;

const TRANSFERS: [(&str, i64); 9] = [
    ("alice", 100),
    ("bob", 50),
    ("carol", 10),
    ("alice", -30),
    ("bob", -20),
    // A mistake.
    ("carol", 0),
    ("alice", 5),
    ("bob", 10),
    ("carol", -5),
];

fn main() -> Result<(), Box<dyn Error>> {
    let report = |fault: &pelton::ActorFault| {
        println!("task panicked ({}:{}): {}", fault.place.file(), fault.place.line(), fault.message);
    };
    let pool = Pool::builder().workers(3).on_fault(report).build()?;
    let accounts = pool.keyed();
    let (ledger, entries) = channel();
    for (name, amount) in TRANSFERS {
        let ledger = ledger.clone();
        let transfer = move || {
            if amount == 0 {
                // Quieter than `panic!`, which would print a message of its own.
                resume_unwind(Box::new(format!("the ledger of {name} is gone")));
            }
            // The first ones take longest. Without an order per key, later ones would overtake them.
            thread::sleep(Duration::from_millis(amount.unsigned_abs() / 5));
            let _ = ledger.send((name, amount));
        };
        accounts.submit(name, transfer)?;
    }
    drop(ledger);

    // The caller can also wait for a result: here, after all other tasks of this key.
    accounts.submit_with_reply("alice", || ())?.wait()?;
    pool.shutdown(Duration::from_secs(10))?;

    let mut balances = BTreeMap::<&str, Vec<i64>>::new();
    for (name, amount) in entries {
        let balances = balances.entry(name).or_default();
        balances.push(balances.last().unwrap_or(&0) + amount);
    }
    for (name, balances) in &balances {
        let balances: Vec<String> = balances.iter().map(i64::to_string).collect();
        println!("{name}: {}", balances.join(", "));
    }
    println!("{} keys are busy, {} tasks wait", accounts.busy_keys(), accounts.tasks());
    Ok(())
}
