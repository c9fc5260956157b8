//! Runs programs beside the loop.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pelton::{EventLoop, Handle};
use pelton_testing::{DEADLINE, run_until};

/// A running program, killed when this is dropped.
pub(crate) struct Program {
    child: Child,
    name: String,
}

/// The output and the status of a program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    pub(crate) errors: Vec<u8>,
}

impl Ended {
    /// Its output, if it succeeded.
    pub(crate) fn output(self) -> Vec<u8> {
        let errors = String::from_utf8_lossy(&self.errors);
        assert!(self.status.success(), "{}: {errors}", self.status);
        self.output
    }

    pub(crate) fn text(self) -> String {
        String::from_utf8(self.output()).unwrap()
    }
}

/// What other threads have read so far.
#[derive(Default)]
struct Heard {
    output: Option<Vec<u8>>,
    errors: Option<Vec<u8>>,
}

/// The input of a program.
pub(crate) enum Input {
    These(Vec<u8>),
    /// Empty, but without an end until the program has closed its output.
    Open,
}

impl Program {
    pub(crate) fn start(program: &str, arguments: &[&str]) -> Program {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|error| panic!("this test needs {program}: {error}"));
        Program { child, name: program.to_owned() }
    }

    /// Starts a Python program.
    pub(crate) fn python(script: &str, arguments: &[&str]) -> Program {
        Program::start("python3", &[&["-c", script], arguments].concat())
    }

    /// Waits for a line on standard error that contains this, and returns the rest of the line.
    pub(crate) fn says(&mut self, what: &str) -> String {
        let errors = BufReader::new(self.child.stderr.take().unwrap());
        let (send, receive) = mpsc::channel();
        let wanted = what.to_owned();
        thread::spawn(move || {
            // Read to the end, so that the program is not blocked.
            for line in errors.lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once(&wanted) {
                    let _ = send.send(rest.to_owned());
                }
            }
        });
        receive.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("{} did not print {what:?}", self.name))
    }

    /// Passes `input` to the program and runs the loop until it ends.
    pub(crate) fn run(mut self, reactor: &mut EventLoop, input: Input) -> Ended {
        let mut stdin = self.child.stdin.take().unwrap();
        let held = match input {
            Input::Open => Some(stdin),
            Input::These(bytes) => {
                thread::spawn(move || {
                    // The program may end before it has read everything.
                    let _ = stdin.write_all(&bytes);
                });
                None
            }
        };
        let handle = reactor.handle();
        *reactor.state::<Heard>() = Heard::default();
        hear(&handle, self.child.stdout.take().unwrap(), |heard| &mut heard.output);
        match self.child.stderr.take() {
            Some(errors) => hear(&handle, errors, |heard| &mut heard.errors),
            // Another thread already reads standard error.
            None => reactor.state::<Heard>().errors = Some(Vec::new()),
        }
        run_until(reactor, |reactor| reactor.state::<Heard>().output.is_some());
        drop(held);
        run_until(reactor, |reactor| reactor.state::<Heard>().errors.is_some());
        let status = self.wait();
        let heard = std::mem::take(reactor.state::<Heard>());
        Ended { status, output: heard.output.unwrap_or_default(), errors: heard.errors.unwrap_or_default() }
    }

    /// Waits for it to end, without running the loop.
    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + DEADLINE;
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) => return status,
                None => assert!(Instant::now() < deadline, "{} closed its output and did not end", self.name),
            }
            // There is no way to wait with a deadline; it has closed its output and ends soon.
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn hear(handle: &Handle, mut stream: impl Read + Send + 'static, place: fn(&mut Heard) -> &mut Option<Vec<u8>>) {
    let handle = handle.clone();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        // If the receiver is gone, the test has failed already.
        let _ = handle.post(move |reactor| *place(reactor.state()) = Some(bytes));
    });
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
