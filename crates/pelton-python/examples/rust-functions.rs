//! Python code calls Rust functions, awaits others, shares a counter with Rust, and logs to `tracing`.
//!
//! ```console
//! $ cargo run -p pelton-python --features embed --example rust-functions
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use futures::channel::oneshot;
use pelton_python::Value;
use pelton_python::host::{Config, Host};
use pelton_python::native::{Module, Raise, State, call, forward_logging, refuse_processes};

const PROGRAM: &str = r#"
import asyncio, logging, inventory

log = logging.getLogger("shop")

def discount(price):
    return price * 0.9

async def order(item, count):
    try:
        price = inventory.price(item, count=count)
    except inventory.OutOfStock as error:
        log.warning("no %s: %s", item, error)
        return None
    inventory.stats.add("orders")
    return f"{count} {item} for {price:.2f}, {await inventory.deliver(item)}"

async def orders():
    return await asyncio.gather(order("rotor", 2), order("nozzle", 4), order("dam", 1))
"#;

#[derive(serde::Deserialize)]
struct Wish {
    item: String,
    count: Option<u32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::start(Config::new())?;
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).init();
    forward_logging(tracing::Level::INFO)?;
    refuse_processes()?;

    let stats = State::new();
    let stock = Mutex::new(HashMap::from([("rotor".to_owned(), (900.0, 3)), ("nozzle".to_owned(), (45.0, 40))]));
    Module::new("inventory")
        .doc("Items in stock and their prices.")
        .exception("OutOfStock", "LookupError")
        .function("price", move |args| {
            let Wish { item, count } = args.named(&["item", "count"])?;
            let count = count.unwrap_or(1);
            let mut stock = stock.lock().map_err(|_| "the stock's lock is poisoned")?;
            match stock.get_mut(&item) {
                Some((price, left)) if *left >= count => {
                    *left -= count;
                    // Call back into Python while holding our own lock, but not the interpreter lock.
                    Ok(call("__main__", "discount", (*price * f64::from(count),), ())?)
                }
                _ => Err(Raise::new("inventory.OutOfStock", format!("{count} wanted"))),
            }
        })
        .doc("Take items out of stock and return their price.")
        .async_function("deliver", |args| async move {
            let item: String = args.one()?;
            let (sender, delivered) = oneshot::channel();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(20));
                sender.send(format!("{item} is on its way"))
            });
            delivered.await.map_err(|_| Raise::new("ConnectionError", "lost on the way"))
        })
        .value("stats", stats.clone())
        .install()?;

    host.namespace().exec(format!("import __main__\nexec({PROGRAM:?}, __main__.__dict__)"))?.wait()?;
    let outcome = host.run("__main__", "orders", (), ())?;
    println!("{outcome:#?}");
    let Some([Value::Str(rotor), Value::Str(_), Value::None]) = outcome.as_slice() else {
        return Err("unexpected result".into());
    };
    assert_eq!(rotor, "2 rotor for 1620.00, rotor is on its way");
    assert_eq!(stats.get("orders"), Some(2.into()));
    host.shutdown(Duration::from_secs(5));
    Ok(())
}
