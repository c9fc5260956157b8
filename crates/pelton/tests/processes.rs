//! What takes a whole process to see: how it ends, and what its environment says.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use pelton::{ENGINE_VARIABLE, PanicPolicy, Reactor};
use signal_hook::consts::{SIGABRT, SIGTERM};
use signal_hook::low_level::raise;

/// Set in the child.
const CHILD: &str = "PELTON_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs the test of this name again, in a process of its own.
fn child(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").env_remove(ENGINE_VARIABLE);
    command.envs(variables.iter().copied()).output().unwrap()
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
