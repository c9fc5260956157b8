//! A Python loop publishes to subscribers in Rust.
//!
//! The Python code knows its subscribers only as `Sender`s. Each has its own bounded channel: a slow subscriber
//! blocks the publisher when its channel is full, and memory does not grow. The publisher notices a closed channel
//! at the next send.
//!
//! ```console
//! $ cargo run -p pelton-python --features embed --example publish
//! ```

use std::error::Error;
use std::thread;
use std::time::Duration;

use futures::StreamExt;
use pelton_python::host::{Config, Host};
use pelton_python::native::{Module, Sender, channel};
use pelton_python::value;
use serde::Deserialize;

const PUBLISHER: &str = r#"
import asyncio, logging, pelton, market

subscribers = []

async def publish(count):
    """Publish `count` prices. Return the number of deliveries."""
    delivered = 0
    for number in range(count):
        price = {"symbol": "PLT", "cents": 10_000 + number * 25}
        for subscriber in list(subscribers):
            try:
                await subscriber.asend(price)
                delivered += 1
            except pelton.ChannelClosed:
                subscribers.remove(subscriber)
        await asyncio.sleep(0.001)
    for subscriber in subscribers:
        subscriber.close()
    market.closed(delivered)
    return delivered
"#;

#[derive(Deserialize)]
struct Price {
    symbol: String,
    cents: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::start(Config::new())?;
    Module::new("market")
        .function("closed", |args| {
            println!("closed after {} deliveries", args.one::<u64>()?);
            Ok(())
        })
        .install()?;
    let publisher = host.namespace();
    publisher.exec(PUBLISHER)?.wait()?;
    let subscribe = |sender: Sender| publisher.run("__main__", "subscribers.append", (sender,), ());

    // A slow subscriber that blocks a thread.
    let (sender, receiver) = channel(4);
    subscribe(sender)?;
    let slow = thread::spawn(move || -> Result<u64, value::ConversionError> {
        let mut highest = 0;
        while let Ok(value) = receiver.receive_timeout(Duration::from_secs(5)) {
            let Price { symbol, cents } = value::from_value(value)?;
            println!("{symbol} {}.{:02}", cents / 100, cents % 100);
            highest = highest.max(cents);
            thread::sleep(Duration::from_millis(5));
        }
        Ok(highest)
    });
    // A subscriber that uses a stream.
    let (sender, receiver) = channel(4);
    subscribe(sender)?;
    let counting = thread::spawn(move || futures::executor::block_on(receiver.count()));
    // A subscriber that leaves early.
    let (sender, receiver) = channel(1);
    subscribe(sender)?;
    let fickle = thread::spawn(move || receiver.receive_timeout(Duration::from_secs(5)));

    let delivered = publisher.run("__main__", "publish", (20,), ())?;
    let highest = slow.join().expect("the thread does not panic")?;
    let counted = counting.join().expect("the thread does not panic");
    fickle.join().expect("the thread does not panic")?;
    println!("highest {highest}, counted {counted}");
    assert_eq!((highest, counted), (10_475, 20));
    assert!(delivered.as_int() >= Some(41), "two received all, and the third at least one");
    let remains = host.shutdown(Duration::from_secs(5));
    assert!(remains.is_clean());
    Ok(())
}
