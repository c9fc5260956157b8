//! Namespaces: functions and state for one caller.
//!
//! ```text
//! $ cargo run -p pelton-python --features embed --example namespaces
//! process_data: [2, 4, 6]
//! tracked_call: 42, call number 1
//! tracked_call: 43, call number 2
//! evaluated: 100, and a timeout of 30
//! namespace 1 has my_id = 1
//! …
//! nobody else has my_id: NameError: name 'my_id' is not defined
//! all is well: true
//! ```

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use pelton_python::Value;
use pelton_python::host::{Config, Host};

const DEFINITIONS: &str = "
import asyncio

async def process_data(items):
    results = []
    for item in items:
        await asyncio.sleep(0.01)
        results.append(item * 2)
    return results

call_count = 0

async def tracked_call(x):
    global call_count
    call_count += 1
    return {'result': x, 'call_number': call_count}
";

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::start(Config::new())?;

    // Definitions persist here, and no other code sees them.
    let namespace = host.namespace();
    namespace.exec(DEFINITIONS)?.wait()?;

    let doubled = namespace.create_task("__main__", "process_data", (vec![1, 2, 3],), ())?.wait()?;
    let doubled: Vec<i64> = doubled.as_slice().unwrap_or_default().iter().filter_map(Value::as_int).collect();
    println!("process_data: {doubled:?}");

    for number in [42, 43] {
        let outcome = namespace.run("__main__", "tracked_call", (number,), ())?;
        let field = |name| outcome.get(name).and_then(Value::as_int).unwrap_or_default();
        println!("tracked_call: {}, call number {}", field("result"), field("call_number"));
    }

    let hundred = namespace.eval("50 * 2")?.wait()?;
    namespace.exec("config = {'timeout': 30}")?.wait()?;
    let timeout = namespace.eval("config['timeout']")?.wait()?;
    println!(
        "evaluated: {}, and a timeout of {}",
        hundred.as_int().unwrap_or_default(),
        timeout.as_int().unwrap_or_default()
    );

    // Five callers define the same name, each in its own namespace.
    let mut lines: Vec<String> = std::thread::scope(|scope| {
        let callers: Vec<_> = (1..=5)
            .map(|number: i64| {
                let host = &host;
                scope.spawn(move || -> Result<String, Box<dyn Error + Send + Sync>> {
                    let namespace = host.namespace();
                    namespace.exec(format!("my_id = {number}"))?.wait()?;
                    let mine = namespace.eval("my_id")?.wait()?;
                    Ok(format!("namespace {number} has my_id = {}", mine.as_int().unwrap_or_default()))
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().expect("the thread does not panic")).collect::<Result<_, _>>()
    })
    .map_err(|error: Box<dyn Error + Send + Sync>| error.to_string())?;
    lines.sort();
    for line in lines {
        println!("{line}");
    }
    if let Err(error) = namespace.eval("my_id")?.wait() {
        println!("nobody else has my_id: {error}");
    }

    let remains = host.shutdown(Duration::from_secs(5));
    println!("all is well: {}", remains.is_clean());
    Ok(())
}
