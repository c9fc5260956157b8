//! Step 5: a web server that reads files.
//!
//! Sockets can be waited for together; files cannot. To read one is to wait for the disk, and on the loop everybody would wait along. So
//! the loop hands it to a few threads, and is told what came of it like of anything else that takes its time. How many threads is a
//! limit on purpose: a disk does not get faster by being asked for more at once.
//!
//! `/file` is read by the threads, `/file-on-the-loop` is not. The disk is a slow one, so that a difference can be measured: files
//! that were read before come from memory.
//!
//! ```text
//! $ cargo run --release -p pelton-examples --bin step-5 127.0.0.1:8085
//! http://127.0.0.1:8085/
//! ```

#![forbid(unsafe_code)]

mod answer;
mod request;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io, thread};

use pelton::{Chunk, Connection, Io, Lane, LaneSettings, Promise, Reactor};

/// How long the disk takes to find a file.
const SEEK: Duration = Duration::from_millis(5);

/// How many threads read.
const THREADS: usize = 4;

/// Waits for the disk, wherever it is called.
fn read(path: &Path) -> io::Result<String> {
    thread::sleep(SEEK);
    fs::read_to_string(path)
}

/// What a path leads to.
fn route(reactor: &mut Reactor, path: &str) -> Promise<String, String> {
    let Files { file } = reactor.state::<Files>();
    let file = file.clone();
    match path {
        "/" => Promise::resolved(reactor, "hello\n".to_owned()),
        "/file-on-the-loop" => match read(&file) {
            Ok(text) => Promise::resolved(reactor, text),
            Err(error) => Promise::rejected(reactor, error.to_string()),
        },
        "/file" => match reactor.defer_promise(Lane::Files, move || read(&file)) {
            // What can go wrong on the way is one error, what can go wrong with the file another.
            Ok(read) => {
                read.map_err(|failure| failure.to_string()).then(|_, text| text.map_err(|error| error.to_string()))
            }
            Err(full) => Promise::rejected(reactor, full.to_string()),
        },
        _ => Promise::rejected(reactor, "there is no such thing".to_owned()),
    }
}

/// What there is to be read.
#[derive(Default)]
struct Files {
    file: PathBuf,
}

#[derive(Default)]
struct Client {
    input: Vec<u8>,
    waits: bool,
    /// Nothing more comes in.
    finished: bool,
}

impl Client {
    fn go_on(&mut self, io: &mut Io<'_>) {
        if self.waits {
            return;
        }
        let Some(path) = request::take(&mut self.input) else {
            if self.finished {
                io.close_after_writing();
            }
            return;
        };
        self.waits = true;
        let id = io.id();
        route(io.reactor(), &path).done(move |reactor, outcome| {
            let answer = match outcome {
                Ok(text) => answer::plain("200 OK", &text),
                Err(rejected) => answer::plain("404 Not Found", &format!("{rejected}\n")),
            };
            reactor.visit(id, |client: &mut Client, io| {
                let _ = io.send(&answer);
                client.waits = false;
                client.go_on(io);
            });
        });
    }
}

impl Connection for Client {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        self.input.extend_from_slice(&chunk);
        self.go_on(io);
    }

    fn peer_finished(&mut self, io: &mut Io<'_>) {
        // It asks nothing more, but still wants its answers.
        self.finished = true;
        self.go_on(io);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::temp_dir().join(format!("pelton-step-5-{}", std::process::id()));
    fs::write(&file, "a wheel is turned by jets of water\n".repeat(100))?;
    let lane = LaneSettings { threads: THREADS, ..LaneSettings::FILES };
    let mut reactor = Reactor::builder().lane(Lane::Files, lane).build()?;
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        reactor.on_signal(signal.as_raw(), |reactor, _| reactor.stop())?;
    }
    reactor.put_state(Files { file: file.clone() });
    let listener = reactor.listen(request::address(), |_| Client::default())?;
    println!("http://{}/", reactor.listening_on(listener).ok_or("it does not listen")?);
    reactor.run()?;
    fs::remove_file(&file)?;
    Ok(())
}
