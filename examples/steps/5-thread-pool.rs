//! Step 5: a web server that reads files.
//!
//! Sockets can be polled together; files cannot. Reading a file waits for the disk, and on the loop that would block everybody. So
//! the loop hands the read to a few threads, and gets the result like any other event. The number of threads is deliberately
//! limited: a disk does not get faster when asked for more at once.
//!
//! Threads read `/file`; the loop itself reads `/file-on-the-loop`. The example simulates a slow disk, so that the difference can be
//! measured: files that were read before come from memory.
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

/// The number of threads that read.
const THREADS: usize = 4;

/// Waits for the disk, on the calling thread.
fn read(path: &Path) -> io::Result<String> {
    thread::sleep(SEEK);
    fs::read_to_string(path)
}

/// The answer to a path.
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
            // One error for the lane, another for the file.
            Ok(read) => {
                read.map_err(|failure| failure.to_string()).then(|_, text| text.map_err(|error| error.to_string()))
            }
            Err(full) => Promise::rejected(reactor, full.to_string()),
        },
        _ => Promise::rejected(reactor, "there is no such thing".to_owned()),
    }
}

/// The file to read.
#[derive(Default)]
struct Files {
    file: PathBuf,
}

#[derive(Default)]
struct Client {
    input: Vec<u8>,
    waits: bool,
    /// The peer has finished sending.
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
        // The client sends no more requests, but still expects its answers.
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
    println!("http://{}/", reactor.listening_on(listener).ok_or("the listener has ended")?);
    reactor.run()?;
    fs::remove_file(&file)?;
    Ok(())
}
