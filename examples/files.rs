//! Files without blocking the loop: writes some, lists them, reads them all at once, and copies one with progress.
//!
//! Each step starts when the previous one is done. Any error is printed, with the operation and the
//! file, and ends the program.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use pelton::Reactor;
use pelton::fs::{self, Progress, Steps};

const FILES: usize = 20;

fn main() -> Result<(), pelton::Error> {
    let directory = std::env::temp_dir().join(format!("pelton-example-{}", std::process::id()));
    let mut reactor = Reactor::new()?;
    let inside = directory.clone();
    fs::create_dir_all(directory.join("below")).then(&mut reactor, move |reactor, made| {
        let begun = made.and_then(|()| write_all(reactor, &inside));
        stop_if_failed(reactor, begun);
    })?;
    reactor.run()?;

    // The loop has ended, so this may block.
    if std::fs::remove_dir_all(&directory).is_ok() {
        println!("everything is removed again");
    }
    Ok(())
}

fn stop_if_failed<T>(reactor: &mut Reactor, outcome: io::Result<T>) -> Option<T> {
    outcome
        .map_err(|error| {
            println!("{error}");
            reactor.stop();
        })
        .ok()
}

/// The number of finished operations in the current batch.
#[derive(Default)]
struct Done(usize);

fn write_all(reactor: &mut Reactor, directory: &Path) -> io::Result<()> {
    for number in 0..FILES {
        let inside = directory.to_path_buf();
        let path = directory.join(if number % 2 == 0 { "." } else { "below" }).join(format!("{number}.txt"));
        fs::write_atomic(path, format!("this is file {number}")).then(reactor, move |reactor, written| {
            stop_if_failed(reactor, written);
            reactor.state::<Done>().0 += 1;
            if reactor.state::<Done>().0 == FILES {
                println!("{FILES} files are written");
                let begun = list(reactor, &inside);
                stop_if_failed(reactor, begun);
            }
        })?;
    }
    Ok(())
}

fn list(reactor: &mut Reactor, directory: &Path) -> io::Result<()> {
    let inside = directory.to_path_buf();
    let mut found = Vec::new();
    let walk = fs::walk(directory).each(reactor, move |reactor, entries| {
        match entries {
            Ok(Some(entries)) => {
                let files = entries.into_iter().flatten().filter(|entry| entry.file_type().is_file());
                found.extend(files.map(fs::Entry::into_path));
            }
            Ok(None) => {
                println!("{} files are found", found.len());
                let begun = read_all(reactor, &inside, std::mem::take(&mut found));
                stop_if_failed(reactor, begun);
            }
            Err(error) => {
                stop_if_failed(reactor, Err::<(), _>(error));
            }
        }
        ControlFlow::Continue(())
    });
    Ok(walk?)
}

fn read_all(reactor: &mut Reactor, directory: &Path, paths: Vec<PathBuf>) -> io::Result<()> {
    *reactor.state::<Done>() = Done(0);
    for path in paths {
        let inside = directory.to_path_buf();
        fs::read_to_string(path).then(reactor, move |reactor, text| {
            stop_if_failed(reactor, text);
            reactor.state::<Done>().0 += 1;
            if reactor.state::<Done>().0 == FILES {
                println!("{FILES} files are read");
                let begun = copy(reactor, &inside);
                stop_if_failed(reactor, begun);
            }
        })?;
    }
    // A missing file is an error, and ends nothing.
    fs::read(directory.join("missing")).then(reactor, |_, outcome| {
        if let Err(error) = outcome {
            println!("as it should: {error}");
        }
    })?;
    Ok(())
}

fn copy(reactor: &mut Reactor, directory: &Path) -> io::Result<()> {
    let copying = fs::copy_in_steps(directory.join("0.txt"), directory.join("copy.txt")).bytes_per_step(5);
    let begun = copying.each(reactor, |reactor, progress| {
        match stop_if_failed(reactor, progress) {
            Some(Some(Progress { copied, total })) => println!("{copied} of {total} bytes are copied"),
            Some(None) => reactor.stop(),
            None => {}
        }
        ControlFlow::Continue(())
    });
    Ok(begun?)
}
