//! Reloads a configuration whenever it changes, however it is written.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin watch-files app.conf
//! watching app.conf
//! created app.conf
//! 12 bytes
//! ```
//!
//! Edit the file in an editor, delete it, move it away and back. End with ctrl-c.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use pelton::{PathWatchOptions, Reactor, fs};
use rustix::process::Signal;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: watch-files PATH")?;
    let mut reactor = Reactor::new()?;
    for signal in [Signal::INT, Signal::TERM] {
        reactor.on_signal(signal.as_raw(), |reactor, _| reactor.stop())?;
    }

    // Programs write a file in several steps. Wait until they are done.
    let options = PathWatchOptions::default().quiet(Duration::from_millis(50));
    let file = path.clone();
    reactor.watch_path_with(&path, &options, move |reactor, changes| {
        for change in &*changes {
            println!("{change}");
        }
        let reading = fs::read(&file).then(reactor, |_, contents| match contents {
            Ok(contents) => println!("{} bytes", contents.len()),
            Err(error) => println!("{error}"),
        });
        if let Err(error) = reading {
            eprintln!("{error}");
        }
    })?;
    println!("watching {path}");
    reactor.run()?;
    Ok(())
}
