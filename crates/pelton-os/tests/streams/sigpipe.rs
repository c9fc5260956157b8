//! Writing to a pipe without a reader, in processes in which `SIGPIPE` has its default action.

use std::io::pipe;
use std::process::Command;
use std::sync::Mutex;

use pelton_os::{Outbox, Socket, signal};

use crate::{on_every_engine, token};

/// Tests that depend on descriptor numbers take turns.
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

const CHILD: &str = "PELTON_TEST_CHILD";

#[test]
fn a_closed_pipe_is_an_error_where_the_signal_would_end_the_process() {
    if std::env::var_os(CHILD).is_some() {
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        assert!(signal::is_default(libc::SIGPIPE).unwrap());
        on_every_engine(|kind, engine| {
            let (reader, writer) = pipe().unwrap();
            engine.adopt(token(1), Socket::from(writer)).unwrap();
            drop(reader);
            for pieces in 1..=2 {
                let mut outbox = Outbox::default();
                outbox.push_copy(b"one");
                if pieces == 2 {
                    outbox.push_bytes(b"two".as_slice().into());
                }
                let error = engine.send(token(1), &mut outbox).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe, "{kind}");
            }
            let _ = engine.forget(token(1));
        });
        println!("survived");
        std::process::exit(0);
    }
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sigpipe::a_closed_pipe_is_an_error_where_the_signal_would_end_the_process", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("survived"), "{output:?}");
}
