//! A server as a process, and its data in the kernel; also what such a process does at its start.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::time::clock_getcpuclockid;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, set_parent_process_death_signal, waitpid};

use crate::machine::{Place, pin};

/// How long a server may take from its last answer until it sleeps: this is part of its work.
const SETTLE: Duration = Duration::from_millis(1);

/// How long a server may take to exit. Under valgrind it has a profile to write.
const ENDING: Duration = Duration::from_secs(30);

/// Length of the backlog: more than the load opens at once.
const BACKLOG: i32 = 4096;

/// A server that runs until this is dropped.
pub struct Server {
    child: Child,
    pub address: SocketAddrV4,
}

impl Server {
    /// Starts a server on the loop's core and waits until it listens.
    pub fn start(mut command: Command) -> Result<Self> {
        // It inherits the core from the thread that starts it.
        pin(Place::Loop)?;
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        pin(Place::Partner)?;
        let child = started.with_context(|| format!("start {:?}", command.get_program()))?;
        // Kills it if the following fails.
        let mut server = Self { child, address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0) };
        let mut line = String::new();
        let stdout = server.child.stdout.take().context("a server without standard output")?;
        BufReader::new(stdout).read_line(&mut line).context("read a server's port")?;
        let port = line.trim().parse().with_context(|| format!("not a port that a server listens on: {line:?}"))?;
        server.address.set_port(port);
        Ok(server)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Result<Pid> {
        Pid::from_raw(i32::try_from(self.id())?).context("a process without a number")
    }

    /// Returns the processor time of all its threads so far, in user space and in the kernel, in nanoseconds.
    pub fn cpu_time(&self) -> Result<Duration> {
        cpu_time_of(self.id())
    }

    /// Returns the private user-space memory that has been written to, in bytes.
    pub fn memory(&self) -> Result<u64> {
        memory_of(self.id())
    }

    /// Stops the server with SIGSTOP, and waits until it has stopped.
    pub fn hold(&self) -> Result<()> {
        let id = self.pid()?;
        kill_process(id, Signal::STOP).context("stop a server")?;
        let (_, status) = waitpid(Some(id), WaitOptions::UNTRACED).context("wait for a server to stop")?.unzip();
        ensure!(status.is_some_and(WaitStatus::stopped), "a server has ended instead of stopping");
        Ok(())
    }

    /// Continues a stopped server.
    pub fn let_go(&self) -> Result<()> {
        kill_process(self.pid()?, Signal::CONT).context("let a server go on")
    }

    /// Ends the server with SIGTERM, and waits for it.
    pub fn end(mut self) -> Result<()> {
        kill_process(self.pid()?, Signal::TERM).context("end a server")?;
        let deadline = Instant::now() + ENDING;
        while self.child.try_wait().context("wait for a server to end")?.is_none() {
            ensure!(Instant::now() < deadline, "a server did not exit within {ENDING:?}");
            thread::sleep(SETTLE);
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already, and then there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the processor time of all threads of a process so far, in user space and in the kernel, in nanoseconds.
pub fn cpu_time_of(process: u32) -> Result<Duration> {
    thread::sleep(SETTLE);
    // Unlike the sum over the current threads, this includes threads that have ended: io_uring has such.
    let clock = clock_getcpuclockid(nix::unistd::Pid::from_raw(i32::try_from(process)?))?;
    Ok(clock.now().context("read a server's processor time")?.into())
}

/// Returns the private user-space memory of a process that has been written to, in bytes.
pub fn memory_of(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    anonymous(&text).with_context(|| format!("understand {path}"))
}

/// Parses the `Anonymous` line of a `smaps_rollup`.
fn anonymous(smaps_rollup: &str) -> Option<u64> {
    let line = smaps_rollup.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes << 10)
}

/// Makes the kernel kill this process when its parent exits, even after an exec.
pub fn end_with_parent() -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("ask to be killed together with the parent")
}

/// Returns a non-blocking socket that listens on a free port. The port has been [announced](announce): connections wait in the
/// backlog.
pub fn listener() -> Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on a free port")?;
    rustix::net::listen(&listener, BACKLOG).context("let more connections wait")?;
    listener.set_nonblocking(true).context("make a listener non-blocking")?;
    announce(listener.local_addr().context("ask which port it is")?.port())?;
    Ok(listener)
}

/// Tells the parent the port. Fails if the parent is gone.
pub fn announce(port: u16) -> Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{port}").and_then(|()| stdout.flush()).context("announce the port")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_anonymous_line() {
        let rollup = "00400000-7fff [rollup]\nRss:    4000 kB\nAnonymous:          12 kB\nLazyFree: 0 kB\n";
        assert_eq!(anonymous(rollup), Some(12 << 10));
        assert_eq!(anonymous("Rss: 4 kB\n"), None);
    }

    #[test]
    fn a_server_that_announces_no_port_is_an_error_and_is_killed() {
        let error = Server::start(Command::new("true")).err().unwrap();
        assert!(format!("{error:#}").contains("not a port"), "{error:#}");
    }
}
