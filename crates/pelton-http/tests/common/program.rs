//! Runs client programs beside the server's loop.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Site;

impl Site {
    /// Runs a program with these arguments, in which `URL` stands for the server's, and with `input` on its standard input.
    /// Panics if it fails. Returns its output.
    pub(crate) fn run_program(&mut self, program: impl AsRef<Path>, arguments: &[&str], input: Vec<u8>) -> String {
        let program = program.as_ref().to_owned();
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        self.run(move |address| {
            let url = format!("http://{address}");
            let words = arguments.iter().map(|word| word.replace("URL", &url));
            let mut command = Command::new(&program);
            command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let shown = program.display();
            let mut child = command.spawn().unwrap_or_else(|error| panic!("this test needs {shown}: {error}"));
            let mut stdin = child.stdin.take().unwrap();
            let writing = std::thread::spawn(move || {
                // The program may end before it has read everything.
                let _ = stdin.write_all(&input);
            });
            let output = child.wait_with_output().unwrap();
            writing.join().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{shown}: {}: {errors}", output.status);
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }

    pub(crate) fn curl(&mut self, arguments: &str, input: Vec<u8>) -> String {
        let mut words = vec!["--silent", "--show-error", "--http1.1", "--noproxy", "*", "--max-time", "20"];
        words.extend(arguments.split(' '));
        self.run_program("curl", &words, input)
    }

    /// Runs a Python program with the port as its argument.
    pub(crate) fn python(&mut self, script: &str) -> String {
        let port = self.address.rsplit(':').next().unwrap_or_default().to_owned();
        self.run_program("python3", &["-c", script, &port], Vec::new())
    }
}
