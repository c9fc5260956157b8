//! numpy, called from Rust threads.
//!
//! ```text
//! $ cargo run -p pelton-python --features embed --example numpy [VIRTUAL-ENVIRONMENT]
//! thread 0: mean 49.5, standard deviation 28.9
//! …
//! the matrix stays in Python: its trace is 3
//! ```
//!
//! numpy releases the interpreter lock while it computes, so with workers the threads compute in parallel.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, Outcome};

fn main() -> Result<(), Box<dyn Error>> {
    let config = match std::env::args_os().nth(1) {
        Some(environment) => Config::new().environment(environment),
        None => Config::new(),
    };
    let host = Host::start(config)?;
    if let Err(error) = host.submit(Call::new("importlib", "import_module").arg("numpy").as_object())?.wait() {
        println!(
            "numpy is not installed for this Python ({error}); run `pip install numpy`, or pass a virtual environment"
        );
        return Ok(());
    }

    let statistics = |thread: i64| -> Result<(Value, Value), Box<dyn Error + Send + Sync>> {
        let numbers: Vec<f64> = (0..100).map(|number| (number + thread * 100) as f64).collect();
        let ask = |function| -> Outcome {
            host.submit(Call::new("numpy", function).arg(numbers.clone()).on_worker())?.wait()
        };
        // numpy's own number types are returned as objects; `float` converts them.
        let plain = |value: Value| host.run("builtins", "float", (value,), ());
        Ok((plain(ask("mean")?)?, plain(ask("std")?)?))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || (thread, statistics(thread)))).collect();
        for thread in threads {
            let (number, outcome) = thread.join().expect("the thread does not panic");
            match outcome {
                Ok((mean, deviation)) => println!(
                    "thread {number}: mean {:.1}, standard deviation {:.1}",
                    mean.as_float().unwrap_or(f64::NAN),
                    deviation.as_float().unwrap_or(f64::NAN)
                ),
                Err(error) => println!("thread {number}: {error}"),
            }
        }
    });

    let matrix = host.submit(Call::new("numpy", "eye").arg(3).as_object())?.wait()?;
    let trace = host.run("numpy", "trace", (matrix,), ())?;
    let trace = host.run("builtins", "int", (trace,), ())?;
    println!("the matrix stays in Python: its trace is {}", trace.as_int().unwrap_or_default());
    host.shutdown(Duration::from_secs(5));
    Ok(())
}
