//! Running a child and collecting its output.

use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use pelton::process::{Command, Output, OutputStream, ProcessError};
use pelton::{EventLoop, Exit, Reactor, Rejected};
use pelton_testing::{Log, On, block_on, on_every_engine, pattern, run, run_until};

use super::{is_running, sh};

on_every_engine![
    status_and_both_outputs_are_collected,
    input_larger_than_any_buffer_goes_through,
    input_that_is_not_read_is_no_error,
    output_within_the_limit_is_collected_and_more_is_an_error,
    a_time_limit_asks_and_then_kills,
    a_child_that_ends_in_time_is_not_late,
    output_waits_for_a_grandchild_that_has_the_pipe,
    lingering_for_a_grandchild_is_bounded,
    a_time_limit_bounds_the_wait_for_a_grandchild,
    a_time_limit_reaches_the_whole_group,
    a_status_is_not_an_error,
    tasks_run_children,
    a_task_that_is_dropped_may_kill_its_child,
    draining_waits_for_output,
    no_timer_is_left,
];

fn outcome(reactor: &mut EventLoop, command: Command) -> Result<Output, ProcessError> {
    let promise = command.output(reactor);
    block_on(reactor, promise).map_err(|rejected| match rejected {
        Rejected::Failed(error) => error,
        other => panic!("{other}"),
    })
}

fn status_and_both_outputs_are_collected(on: On) {
    let mut reactor = on.reactor();
    let output = outcome(&mut reactor, sh("echo out; echo err >&2; exit 4")).unwrap();
    assert_eq!((output.status.code(), output.stdout, output.stderr), (Some(4), b"out\n".to_vec(), b"err\n".to_vec()));
}

fn input_larger_than_any_buffer_goes_through(on: On) {
    let mut reactor = on.reactor();
    let input = pattern(30_000_000);
    let command = Command::new("cat").input(input.clone()).output_limit(usize::MAX);
    let output = outcome(&mut reactor, command).unwrap();
    assert!(output.stdout == input);
}

fn input_that_is_not_read_is_no_error(on: On) {
    let mut reactor = on.reactor();
    let output = outcome(&mut reactor, sh("head -c 3").input(vec![b'x'; 1_000_000])).unwrap();
    assert_eq!(output.stdout, b"xxx");
    assert!(outcome(&mut reactor, sh("exit 0").input(vec![b'x'; 1_000_000])).unwrap().status.success());
    assert_eq!(reactor.connection_count(), 0);
}

fn output_within_the_limit_is_collected_and_more_is_an_error(on: On) {
    let mut reactor = on.reactor();
    let output = outcome(&mut reactor, sh("head -c 1000 /dev/zero").output_limit(1000)).unwrap();
    assert_eq!(output.stdout.len(), 1000);
    for (script, stream) in [("cat /dev/zero", OutputStream::Stdout), ("cat /dev/zero >&2", OutputStream::Stderr)] {
        let error = outcome(&mut reactor, sh(&format!("exec {script}")).output_limit(1_000_000)).unwrap_err();
        assert!(
            matches!(&error, ProcessError::TooMuchOutput { stream: which, limit: 1_000_000, .. } if *which == stream),
            "{error:?}"
        );
        assert!(error.to_string().contains(&format!("more than 1000000 bytes to its {stream}")), "{error}");
    }
    assert_eq!((reactor.child_count(), reactor.connection_count()), (0, 0));
}

fn a_time_limit_asks_and_then_kills(on: On) {
    let mut reactor = on.reactor();
    let limit = Duration::from_millis(50);
    // Long enough for a shell to start on a busy machine.
    let polite = sh("echo begun; trap 'echo asked; exit 0' TERM; while :; do sleep 0.01; done");
    let polite = polite.time_limit(Duration::from_secs(1));
    let error = outcome(&mut reactor, polite).unwrap_err();
    let ProcessError::TimedOut { status, stdout, .. } = &error else { panic!("{error:?}") };
    assert_eq!((status.code(), &**stdout), (Some(0), b"begun\nasked\n".as_slice()));
    let stubborn = sh("trap '' TERM; while :; do sleep 0.01; done").time_limit(limit).grace(limit);
    let began = Instant::now();
    let error = outcome(&mut reactor, stubborn).unwrap_err();
    assert!(matches!(&error, ProcessError::TimedOut { status, .. } if status.signal() == Some(9)), "{error:?}");
    assert!(began.elapsed() >= 2 * limit);
    assert!(error.to_string().contains("longer than 50ms"), "{error}");
}

fn a_child_that_ends_in_time_is_not_late(on: On) {
    let mut reactor = on.reactor();
    let output = outcome(&mut reactor, sh("echo quick").time_limit(Duration::from_secs(60))).unwrap();
    assert_eq!(output.stdout, b"quick\n");
    assert_eq!(reactor.timer_count(), 0);
}

fn output_waits_for_a_grandchild_that_has_the_pipe(on: On) {
    let mut reactor = on.reactor();
    let output = outcome(&mut reactor, sh("echo child; (sleep 0.1; echo grandchild) & exit 0")).unwrap();
    assert_eq!(output.stdout, b"child\ngrandchild\n");
}

fn lingering_for_a_grandchild_is_bounded(on: On) {
    let mut reactor = on.reactor();
    let began = Instant::now();
    let command = sh("echo child; sleep 30 & exit 0").linger(Duration::from_millis(50));
    let output = outcome(&mut reactor, command).unwrap();
    assert_eq!((output.stdout, output.status.code()), (b"child\n".to_vec(), Some(0)));
    assert!(began.elapsed() < Duration::from_secs(15));
    assert_eq!(reactor.connection_count(), 0);
}

fn a_time_limit_bounds_the_wait_for_a_grandchild(on: On) {
    let mut reactor = on.reactor();
    let command = sh("echo child; sleep 30 & exit 0").time_limit(Duration::from_millis(100));
    let error = outcome(&mut reactor, command).unwrap_err();
    let ProcessError::TimedOut { status, stdout, .. } = &error else { panic!("{error:?}") };
    assert_eq!((status.code(), &**stdout), (Some(0), b"child\n".as_slice()));
}

fn a_time_limit_reaches_the_whole_group(on: On) {
    let mut reactor = on.reactor();
    let limit = Duration::from_millis(100);
    let command = sh("sleep 300 & echo $!; wait").process_group().time_limit(limit);
    let error = outcome(&mut reactor, command).unwrap_err();
    let ProcessError::TimedOut { stdout, .. } = &error else { panic!("{error:?}") };
    let grandchild: u32 = String::from_utf8_lossy(stdout).trim().parse().unwrap();
    pelton_testing::eventually("the grandchild has ended", || (!is_running(grandchild)).then_some(()));
}

fn a_status_is_not_an_error(on: On) {
    let mut reactor = on.reactor();
    let status = sh("kill -11 $$").status(&mut reactor);
    assert_eq!(block_on(&mut reactor, status).unwrap().signal(), Some(11));
}

fn tasks_run_children(on: On) {
    let mut reactor = on.reactor();
    let output = block_on(&mut reactor, async {
        let first = Command::new("echo").arg("one").run().await?;
        Command::new("cat").input(first.stdout).run().await
    });
    assert_eq!(output.unwrap().stdout, b"one\n");
    let error = block_on(&mut reactor, Command::new("/no/such-program").run()).unwrap_err();
    assert!(error.to_string().starts_with("start /no/such-program: "), "{error}");
}

fn a_task_that_is_dropped_may_kill_its_child(on: On) {
    let mut reactor = on.reactor();
    for kills in [true, false] {
        let command = sh("exec sleep 2");
        let task = reactor.spawn(if kills { command.kill_on_drop() } else { command }.run());
        run_until(&mut reactor, |reactor| reactor.child_count() == 1);
        task.cancel();
        if kills {
            run_until(&mut reactor, |reactor| reactor.child_count() == 0);
        } else {
            reactor.turn(Some(Duration::from_millis(20))).unwrap();
            assert_eq!(reactor.child_count(), 1);
        }
    }
}

fn draining_waits_for_output(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    sh("sleep 0.1; echo done").output(&mut reactor).done(move |_, output| {
        entry.add(String::from_utf8(output.unwrap().stdout).unwrap());
    });
    reactor.next_tick(|reactor: &mut Reactor| reactor.drain(Duration::from_secs(10)));
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(log.take(), ["done\n"]);
}

fn no_timer_is_left(on: On) {
    let mut reactor = on.reactor();
    let command = sh("exit 0").time_limit(Duration::from_secs(60)).linger(Duration::from_secs(60));
    outcome(&mut reactor, command).unwrap();
    assert_eq!((reactor.timer_count(), reactor.child_count(), reactor.connection_count()), (0, 0, 0));
}
