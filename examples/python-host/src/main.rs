//! Calls Python from Rust: a function, a coroutine, and a Rust function that Python calls back.
//!
//! `PYO3_PYTHON=/path/to/python cargo run --manifest-path examples/python-host/Cargo.toml`

use std::error::Error;
use std::time::Duration;

use pelton_python::host::{Config, Host};
use pelton_python::native::Module;

const GREETINGS: &str = "
import asyncio
import office

async def greet(name):
    await asyncio.sleep(0.01)
    return f'{office.greeting()}, {name}'
";

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::start(Config::new())?;
    let root = host.create_task("math", "sqrt", (2.0,), ())?.wait()?;
    println!("the square root of 2 is {}", root.as_float().unwrap_or_default());

    Module::new("office").function("greeting", |_| Ok("good morning")).install()?;
    let namespace = host.namespace();
    namespace.exec(GREETINGS)?.wait()?;
    let greeting = namespace.create_task("__main__", "greet", ("Ada",), ())?.wait()?;
    println!("{}", greeting.as_str().unwrap_or_default());

    println!("all is well: {}", host.shutdown(Duration::from_secs(5)).is_clean());
    Ok(())
}
