//! Python code must not fork or execute programs. In its own test process, because the guard cannot be removed.

#![cfg(feature = "embed")]

mod host_support;

use host_support::{start, wait, with};
use pelton_python::host::TaskError;
use pelton_python::native::refuse_processes;

const WAYS: &[&str] = &[
    "os.fork()",
    "os.forkpty()",
    "pty.fork()",
    "pty.spawn('/bin/true')",
    "os.execv('/bin/true', ['true'])",
    "os.execlp('true', 'true')",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "os.posix_spawnp('true', ['true'], {})",
    "os.spawnv(os.P_WAIT, '/bin/true', ['true'])",
    "os.system('true')",
    "os.popen('true')",
    "subprocess.run(['true'])",
    "subprocess.Popen('true', shell=True)",
    "asyncio.create_subprocess_exec('true')",
    "asyncio.create_subprocess_shell('true')",
    "multiprocessing.get_context('fork').Process(target=print).start()",
    "multiprocessing.get_context('spawn').Process(target=print).start()",
    "multiprocessing.get_context('forkserver').Process(target=print).start()",
    "_posixsubprocess.fork_exec([b'true'], [b'/bin/true'], True, (), None, None, -1, -1, -1, -1, -1, -1, 1, 1, False, False, 0, None, None, None, -1, None, False)",
];

#[test]
fn every_way_to_start_a_process_is_refused() {
    let host = start();
    let namespace = with(&host, "import asyncio, os, pty, subprocess, multiprocessing");
    // Everything is allowed until the guard is installed.
    let allowed = wait(namespace.eval("subprocess.run(['true']).returncode").unwrap()).unwrap();
    assert_eq!(allowed.as_int(), Some(0));
    refuse_processes().unwrap();
    refuse_processes().unwrap();
    wait(namespace.exec("import _posixsubprocess").unwrap()).unwrap();
    for way in WAYS {
        let Err(TaskError::Raised(exception)) = wait(namespace.eval(*way).unwrap()) else {
            panic!("{way} was not refused")
        };
        assert_eq!(exception.type_name(), "PermissionError", "{way}: {exception}");
        assert!(exception.message().contains("is refused"), "{way}: {exception}");
    }
    // Other code still works, and Rust may start processes.
    wait(namespace.exec("import tempfile\nwith tempfile.TemporaryFile() as file: file.write(b'x')").unwrap()).unwrap();
    assert!(std::process::Command::new("true").status().unwrap().success());
}
