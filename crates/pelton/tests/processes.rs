//! What takes a whole process to see: how it ends, and what its environment says.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use pelton::{Chunk, Connection, ENGINE_VARIABLE, Io, PanicPolicy, Reactor};
use rustix::process::{Resource, Rlimit, setrlimit};
use signal_hook::consts::{SIGABRT, SIGTERM};
use signal_hook::low_level::raise;

/// Set in the child.
const CHILD: &str = "PELTON_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs the test of this name again, in a process of its own.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    command(test, variables).output().unwrap()
}

fn command(test: &str, variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env_remove(ENGINE_VARIABLE);
    command.envs(variables.iter().copied());
    command
}

struct Echo;

impl Connection for Echo {
    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        if &*chunk == b"quit" {
            println!("turns: {}.", io.reactor().stats().turns);
            return io.reactor().stop();
        }
        io.send_chunk(chunk).unwrap();
    }
}

/// Sends one byte and says whether it came back.
fn is_served(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut answer = [0];
    // One that was turned away is closed or reset; it must not be left hanging.
    match stream.write_all(b"x").and_then(|()| stream.read_exact(&mut answer)) {
        Ok(()) => true,
        Err(error) => {
            assert_ne!(error.kind(), io::ErrorKind::WouldBlock, "neither served nor turned away");
            false
        }
    }
}

#[test]
fn a_server_without_descriptors_turns_connections_away_does_not_spin_and_recovers() {
    const TEST: &str = "a_server_without_descriptors_turns_connections_away_does_not_spin_and_recovers";
    if is_child() {
        let mut reactor = Reactor::new().unwrap();
        let listener = reactor.listen("127.0.0.1:0", |_| Echo).unwrap();
        // Room for a handful of connections, beside what is open already.
        let next = rustix::io::dup(io::stdout()).unwrap().as_raw_fd() as u64;
        let limit = Rlimit { current: Some(next + 5), maximum: Some(next + 5) };
        setrlimit(Resource::Nofile, limit).unwrap();
        println!("address: {}.", reactor.listening_on(listener).unwrap());
        reactor.run().unwrap();
        return;
    }
    let mut child = command(TEST, &[]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut said = |what: &str| {
        let mut found = lines.by_ref().map(|line| line.unwrap()).find_map(|line| {
            let (_, rest) = line.split_once(what)?;
            Some(rest.trim_end_matches('.').to_owned())
        });
        found.take().unwrap_or_else(|| panic!("the child did not say {what:?}"))
    };
    let address = said("address: ");
    let mut streams: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let served = streams.iter_mut().filter_map(|stream| is_served(stream).then_some(())).count();
    assert!((1..=5).contains(&served), "{served} of 20 were served");
    drop(streams);
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut again = loop {
        let mut stream = TcpStream::connect(&address).unwrap();
        if is_served(&mut stream) {
            break stream;
        }
        assert!(Instant::now() < deadline, "it did not recover");
    };
    again.write_all(b"quit").unwrap();
    let turns: u64 = said("turns: ").parse().unwrap();
    assert!(turns < 1_000, "{turns} turns");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_signal_has_its_default_effect_again_when_its_last_callback_is_removed() {
    if is_child() {
        let mut reactor = Reactor::new().unwrap();
        let first = reactor.on_signal(SIGTERM, |_, _| {}).unwrap();
        let second = reactor.on_signal(SIGTERM, |reactor, _| *reactor.state::<u32>() += 1).unwrap();
        reactor.remove_signal(first);
        raise(SIGTERM).unwrap();
        reactor.run_until(|reactor| *reactor.state::<u32>() == 1).unwrap();
        reactor.remove_signal(second);
        raise(SIGTERM).unwrap();
        println!("survived");
        return;
    }
    let output = child("a_signal_has_its_default_effect_again_when_its_last_callback_is_removed", &[]);
    assert_eq!(output.status.signal(), Some(SIGTERM), "{output:?}");
}

#[test]
fn a_signal_has_its_default_effect_again_when_its_reactor_is_dropped() {
    if is_child() {
        let mut reactor = Reactor::new().unwrap();
        reactor.on_signal(SIGTERM, |_, _| {}).unwrap();
        drop(reactor);
        raise(SIGTERM).unwrap();
        println!("survived");
        return;
    }
    let output = child("a_signal_has_its_default_effect_again_when_its_reactor_is_dropped", &[]);
    assert_eq!(output.status.signal(), Some(SIGTERM), "{output:?}");
}

#[test]
fn the_abort_policy_aborts() {
    if is_child() {
        let mut reactor = Reactor::builder().panic_policy(PanicPolicy::Abort).build().unwrap();
        reactor.on_fault(|_, fault| println!("reported: {fault}"));
        reactor.next_tick(|_| panic!("the end"));
        let _ = reactor.run();
        return;
    }
    let output = child("the_abort_policy_aborts", &[]);
    assert_eq!(output.status.signal(), Some(SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("reported: tick ("), "{output:?}");
}

#[test]
fn the_environment_picks_the_engine() {
    if is_child() {
        match Reactor::new() {
            Ok(reactor) => println!("engine: {}.", reactor.engine_name()),
            Err(error) => println!("error: {error}."),
        }
        return;
    }
    let says = |variables: &[(&str, &str)]| {
        let output = child("the_environment_picks_the_engine", variables);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(says(&[(ENGINE_VARIABLE, "poll")]).contains("engine: poll."));
    assert!(says(&[(ENGINE_VARIABLE, "SELECT")]).contains("engine: select."));
    assert!(says(&[(ENGINE_VARIABLE, "")]).contains("engine: epoll.") || cfg!(not(target_os = "linux")));
    let error = says(&[(ENGINE_VARIABLE, "epol")]);
    assert!(error.contains(r#"error: there is no engine called "epol"; the engines are epoll, kqueue, poll, select."#));
}
