//! Tests that need a process of their own: how it ends, and its environment.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use pelton::{ENGINE_VARIABLE, PanicPolicy, Reactor};
use pelton_testing::{EchoUntilQuit, child, is_served};
use rustix::process::{Resource, Rlimit, setrlimit};
use signal_hook::consts::{SIGABRT, SIGTERM};
use signal_hook::low_level::raise;

/// Runs the test of this name again in a child process.
fn in_a_child(test: &str, variables: &[(&str, &str)]) -> Output {
    child::command(test, "1").envs(variables.iter().copied()).output().unwrap()
}

#[test]
fn server_without_descriptors_refuses_connections_and_recovers_without_spinning() {
    const TEST: &str = "server_without_descriptors_refuses_connections_and_recovers_without_spinning";
    if child::role().is_some() {
        let mut reactor = Reactor::new().unwrap();
        let listener = reactor.listen("127.0.0.1:0", |_| EchoUntilQuit).unwrap();
        // Room for a handful of connections, beside the open descriptors.
        let next = rustix::io::dup(io::stdout()).unwrap().as_raw_fd() as u64;
        let limit = Rlimit { current: Some(next + 5), maximum: Some(next + 5) };
        setrlimit(Resource::Nofile, limit).unwrap();
        println!("address: {}.", reactor.listening_on(listener).unwrap());
        reactor.run().unwrap();
        return;
    }
    let mut server = child::command(TEST, "1").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut said = |what: &str| {
        let mut found = lines.by_ref().map(|line| line.unwrap()).find_map(|line| {
            let (_, rest) = line.split_once(what)?;
            Some(rest.trim_end_matches('.').to_owned())
        });
        found.take().unwrap_or_else(|| panic!("the child did not print {what:?}"))
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
        assert!(Instant::now() < deadline, "the server did not recover");
    };
    again.write_all(b"quit").unwrap();
    let turns: u64 = said("turns: ").parse().unwrap();
    assert!(turns < 1_000, "{turns} turns");
    assert!(server.wait().unwrap().success());
}

#[test]
fn removing_the_last_callback_restores_the_default_action() {
    if child::role().is_some() {
        let mut reactor = Reactor::new().unwrap();
        let first = reactor.on_signal(SIGTERM, |_, _| {}).unwrap();
        let second = reactor.on_signal(SIGTERM, |reactor, _| *reactor.state::<u32>() += 1).unwrap();
        reactor.end(first);
        raise(SIGTERM).unwrap();
        reactor.run_until(|reactor| *reactor.state::<u32>() == 1).unwrap();
        reactor.end(second);
        raise(SIGTERM).unwrap();
        println!("survived");
        return;
    }
    let output = in_a_child("removing_the_last_callback_restores_the_default_action", &[]);
    assert_eq!(output.status.signal(), Some(SIGTERM), "{output:?}");
}

#[test]
fn dropping_the_reactor_restores_the_default_action() {
    if child::role().is_some() {
        let mut reactor = Reactor::new().unwrap();
        reactor.on_signal(SIGTERM, |_, _| {}).unwrap();
        drop(reactor);
        raise(SIGTERM).unwrap();
        println!("survived");
        return;
    }
    let output = in_a_child("dropping_the_reactor_restores_the_default_action", &[]);
    assert_eq!(output.status.signal(), Some(SIGTERM), "{output:?}");
}

#[test]
fn the_abort_policy_aborts() {
    if child::role().is_some() {
        let mut reactor = Reactor::builder().panic_policy(PanicPolicy::Abort).build().unwrap();
        reactor.on_fault(|_, fault| println!("reported: {fault}"));
        reactor.next_tick(|_| panic!("the end"));
        let _ = reactor.run();
        return;
    }
    let output = in_a_child("the_abort_policy_aborts", &[]);
    assert_eq!(output.status.signal(), Some(SIGABRT), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("reported: tick ("), "{output:?}");
}

#[test]
fn the_environment_picks_the_engine() {
    if child::role().is_some() {
        match Reactor::new() {
            Ok(reactor) => println!("engine: {}.", reactor.engine_name()),
            Err(error) => println!("error: {error}."),
        }
        return;
    }
    let says = |variables: &[(&str, &str)]| {
        let output = in_a_child("the_environment_picks_the_engine", variables);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(says(&[(ENGINE_VARIABLE, "poll")]).contains("engine: poll."));
    assert!(says(&[(ENGINE_VARIABLE, "SELECT")]).contains("engine: select."));
    assert!(says(&[(ENGINE_VARIABLE, "")]).contains("engine: epoll.") || cfg!(not(target_os = "linux")));
    let error = says(&[(ENGINE_VARIABLE, "epol")]);
    assert!(error.contains(r#"error: there is no engine called "epol"; the engines are epoll, kqueue, poll, select."#));
}

/// Lines on standard error about faults.
fn fault_lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| line.starts_with("pelton: ")).map(str::to_owned).collect()
}

#[test]
fn faults_without_a_hook_go_to_standard_error_once_per_kind_and_place() {
    if child::role().is_some() {
        let mut reactor = Reactor::new().unwrap();
        for number in 0..3 {
            // A rejection and a panic, each at one place.
            let (deferred, promise) = reactor.promise::<(), String>();
            drop(promise);
            deferred.reject(format!("rejected {number}")).unwrap();
            reactor.next_tick(move |_| std::panic::resume_unwind(Box::new(format!("panicked {number}"))));
        }
        reactor.report(pelton::Fault::new("cache", "of a layer above"));
        let pool = pelton::Pool::builder().workers(1).build().unwrap();
        let keyed = pool.keyed();
        keyed.submit(1, || std::panic::resume_unwind(Box::new("on a pool"))).unwrap();
        assert_eq!(keyed.submit_with_reply(1, || ()).unwrap().wait(), Ok(()));
        let handle = reactor.handle();
        reactor.after(Duration::from_millis(1), |reactor| reactor.stop());
        reactor.run().unwrap();
        // The loop has stopped, but the fault is still reported.
        handle.report(pelton::Fault::new("late", "from another thread"));
        return;
    }
    let output = in_a_child("faults_without_a_hook_go_to_standard_error_once_per_kind_and_place", &[]);
    assert!(output.status.success(), "{output:?}");
    let lines = fault_lines(&output);
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(
        (count("was rejected, and nobody handled it: \"rejected"), count("panicked: panicked")),
        (1, 1),
        "{lines:#?}"
    );
    assert_eq!(
        (count("of a layer above"), count("panicked: on a pool"), count("from another thread")),
        (1, 1, 1),
        "{lines:#?}"
    );
    assert_eq!(count("tests/processes.rs:"), 5, "each includes its place: {lines:#?}");
    assert_eq!(count("Builder::on_fault"), 1, "the hint is printed once: {lines:#?}");
    assert_eq!(lines.len(), 6, "{lines:#?}");
}

#[test]
fn a_fault_hook_takes_everything_that_would_go_to_standard_error() {
    if child::role().is_some() {
        let mut reactor = Reactor::builder()
            .engine(pelton::EngineKind::Epoll)
            .on_fault(|reactor, fault| reactor.state::<Vec<String>>().push(fault.to_string()))
            .build()
            .unwrap();
        let (deferred, promise) = reactor.promise::<(), &str>();
        drop(promise);
        deferred.reject("rejected").unwrap();
        reactor.next_tick(|_| std::panic::resume_unwind(Box::new("panicked")));
        reactor.handle().report(pelton::Fault::new("cache", "from another thread"));
        reactor.after(Duration::from_millis(1), |reactor| reactor.stop());
        reactor.run().unwrap();
        let told = reactor.take_state::<Vec<String>>().unwrap();
        for part in ["nobody handled it: \"rejected\"", "panicked: panicked", "from another thread"] {
            assert!(told.iter().any(|fault| fault.contains(part)), "{part}: {told:?}");
        }
        return;
    }
    let output = in_a_child("a_fault_hook_takes_everything_that_would_go_to_standard_error", &[]);
    assert!(output.status.success(), "{output:?}");
    assert!(fault_lines(&output).is_empty(), "{output:?}");
}

#[test]
fn stopping_with_pending_promises_reports_nothing() {
    if child::role().is_some() {
        let mut reactor = Reactor::new().unwrap();
        let (deferred, promise) = reactor.promise::<(), &str>();
        promise.map(|()| ()).done(|_, _| {});
        reactor.after(Duration::from_secs(3600), move |_| drop(deferred));
        let (deferred, promise) = reactor.promise::<(), &str>();
        drop(promise.map(|()| ()));
        reactor.after(Duration::from_secs(3600), move |_| drop(deferred));
        reactor.after(Duration::from_millis(1), |reactor| reactor.stop());
        reactor.run().unwrap();
        return;
    }
    let output = in_a_child("stopping_with_pending_promises_reports_nothing", &[]);
    assert!(output.status.success() && fault_lines(&output).is_empty(), "{output:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn unavailable_engine_is_a_fault() {
    use pelton::{EngineKind, FaultKind};
    if child::role().is_some() {
        // One descriptor is enough for poll, but not for epoll.
        let free = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
        setrlimit(Resource::Nofile, Rlimit { current: Some(free + 1), maximum: Some(free + 1) }).unwrap();
        for _ in 0..2 {
            let reactor = Reactor::builder().engine(EngineKind::Epoll).build().unwrap();
            assert_ne!(reactor.engine_name(), "epoll");
        }
        let hook = |reactor: &mut Reactor, fault: &pelton::Fault| {
            reactor.put_state((fault.kind, fault.message.clone()));
        };
        let mut reactor = Reactor::builder().engine(EngineKind::Epoll).on_fault(hook).build().unwrap();
        let (kind, message) = reactor.take_state::<(FaultKind, String)>().unwrap();
        assert_eq!(kind, FaultKind::Engine);
        println!("hook: {message}.");
        return;
    }
    let output = in_a_child("unavailable_engine_is_a_fault", &[]);
    assert!(output.status.success(), "{output:?}");
    let lines = fault_lines(&output);
    assert_eq!(lines.len(), 2, "one fault for both, and the hint: {lines:#?}");
    assert!(lines[0].contains("engine not available: epoll was requested, using "), "{lines:#?}");
    assert!(lines[0].contains("tests/processes.rs:"), "{lines:#?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("hook: engine not available: epoll"), "{output:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn inheriting_descriptors_is_a_choice() {
    use pelton::process::Command;
    if child::role().is_some() {
        let unmarked = rustix::io::dup(io::stdout()).unwrap();
        let mut reactor = Reactor::new().unwrap();
        let path = format!("/proc/self/fd/{}", unmarked.as_raw_fd());
        let is_open = |command: Command| command.arg("-e").arg(&path);
        let inherits = is_open(Command::new("test").inherit_descriptors()).status(&mut reactor);
        assert!(reactor.block_on(inherits).unwrap().unwrap().success());
        let given_nothing = is_open(Command::new("test")).status(&mut reactor);
        assert!(!reactor.block_on(given_nothing).unwrap().unwrap().success());
        return;
    }
    let output = in_a_child("inheriting_descriptors_is_a_choice", &[]);
    assert!(output.status.success(), "{output:?}");
}
