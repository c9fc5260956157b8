//! The same task three times: with nested callbacks, with each step as a promise, and as a chain with a time
//! limit, a fallback and concurrent steps.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin promises
//! callbacks: ann owes 42
//! a chain:   ann owes 42
//! a chain:   nobody is number 3
//! at once:   ann owes 42, bob owes 7, and number 3 is unknown
//! ```

#![forbid(unsafe_code)]

use std::time::Duration;

use pelton::{Promise, Reactor, Rejected};

/// How long each request takes.
const DELAY: Duration = Duration::from_millis(20);

type Name = &'static str;

/// The starting point: functions that take a callback. The callback has to handle the error.
fn find_name(reactor: &mut Reactor, number: u32, then: impl FnOnce(&mut Reactor, Result<Name, String>) + 'static) {
    reactor.after(DELAY, move |reactor| match number {
        1 => then(reactor, Ok("ann")),
        2 => then(reactor, Ok("bob")),
        _ => then(reactor, Err(format!("nobody is number {number}"))),
    });
}

fn find_debts(reactor: &mut Reactor, name: Name, then: impl FnOnce(&mut Reactor, Result<Vec<u32>, String>) + 'static) {
    reactor.after(DELAY, move |reactor| then(reactor, Ok(if name == "ann" { vec![20, 22] } else { vec![7] })));
}

/// With callbacks. Each step is nested one level deeper, and has to handle the error of the previous one.
fn with_callbacks(reactor: &mut Reactor) {
    find_name(reactor, 1, |reactor, name| match name {
        Err(error) => println!("callbacks: {error}"),
        Ok(name) => find_debts(reactor, name, move |reactor, debts| {
            match debts {
                Err(error) => println!("callbacks: {error}"),
                Ok(debts) => println!("callbacks: {name} owes {}", debts.iter().sum::<u32>()),
            }
            with_promises(reactor);
        }),
    });
}

/// First, turn a function that takes a callback into one that returns a promise. The deferred takes the place of the
/// callback.
fn name_of(reactor: &mut Reactor, number: u32) -> Promise<Name, String> {
    let (deferred, name) = reactor.promise();
    find_name(reactor, number, move |_, name| {
        // Nothing else settles it.
        let _ = deferred.settle(name);
    });
    name
}

fn debts_of(reactor: &mut Reactor, name: Name) -> Promise<Vec<u32>, String> {
    let (deferred, debts) = reactor.promise();
    find_debts(reactor, name, move |_, debts| {
        let _ = deferred.settle(debts);
    });
    debts
}

/// Second, nested steps become a flat chain, with one error handler.
fn summary(reactor: &mut Reactor, number: u32) -> Promise<String, String> {
    name_of(reactor, number).then(|reactor, name| {
        debts_of(reactor, name).map(move |debts| format!("{name} owes {}", debts.iter().sum::<u32>()))
    })
}

fn with_promises(reactor: &mut Reactor) {
    summary(reactor, 1)
        .then(|reactor, line| {
            println!("a chain:   {line}");
            summary(reactor, 3)
        })
        .done(|reactor, line| {
            match line {
                Ok(line) => println!("a chain:   {line}"),
                Err(rejected) => println!("a chain:   {rejected}"),
            }
            side_by_side(reactor);
        });
}

/// Third, promises are values, so they can be combined.
fn side_by_side(reactor: &mut Reactor) {
    let summaries: Vec<_> = (1..=3)
        .map(|number| {
            let summary = summary(reactor, number).timeout(reactor, Duration::from_secs(1));
            summary.or_else(move |_, rejected| match rejected {
                Rejected::Failed(_) => Ok(format!("and number {number} is unknown")),
                // Other rejections, such as a timeout, are not for this step to handle.
                other => Err(other),
            })
        })
        .collect();
    Promise::all(reactor, summaries).map(|lines| lines.join(", ")).done(|reactor, lines| {
        match lines {
            Ok(lines) => println!("at once:   {lines}"),
            Err(rejected) => println!("at once:   {rejected}"),
        }
        reactor.stop();
    });
}

fn main() -> Result<(), pelton::Error> {
    let mut reactor = Reactor::new()?;
    with_callbacks(&mut reactor);
    reactor.run()?;
    Ok(())
}
