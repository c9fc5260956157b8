//! Settings of a host, virtual environments, and reloaded modules.

use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, StartError};

use super::host_support::{LONG, start, start_with, wait, with};

#[test]
fn a_reload_is_seen_by_the_next_call() {
    let directory = std::env::temp_dir().join(format!("pelton-reload-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("pelton_reloaded.py");
    std::fs::write(&file, "def answer(): return 1\n").unwrap();
    let host = start_with(Config::new().path(&directory));
    assert_eq!(host.run("pelton_reloaded", "answer", (), ()).unwrap(), Value::Int(1));
    std::fs::write(&file, "def answer(): return 'changed'\n").unwrap();
    host.run("importlib", "invalidate_caches", (), ()).unwrap();
    host.reload("pelton_reloaded").unwrap();
    assert_eq!(host.run("pelton_reloaded", "answer", (), ()).unwrap(), Value::from("changed"));
    // The same goes for a module that Python code replaces.
    let namespace = host.namespace();
    let replace = "import sys, types\nnew = types.ModuleType('pelton_reloaded')\nnew.answer = lambda: 3\n\
                   sys.modules['pelton_reloaded'] = new";
    namespace.exec(replace).unwrap().wait().unwrap();
    assert_eq!(host.run("pelton_reloaded", "answer", (), ()).unwrap(), Value::Int(3));
    namespace.exec("new.answer = lambda: 4").unwrap().wait().unwrap();
    assert_eq!(host.run("pelton_reloaded", "answer", (), ()).unwrap(), Value::Int(4));
    assert!(host.reload("no_such_module").is_err());
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn invalid_settings_and_a_second_host_are_refused() {
    let host = start();
    assert!(matches!(Host::start(Config::new()), Err(StartError::AlreadyRunning)));
    assert!(matches!(Host::start(Config::new().loops(0)), Err(StartError::Setting(_))));
    host.shutdown(LONG);
    let again = Host::start(Config::new()).unwrap();
    assert_eq!(again.run("math", "sqrt", (1.0,), ()).unwrap(), Value::Float(1.0));
    let error = Host::start(Config::new().environment("/no/such/place"));
    assert!(matches!(error, Err(StartError::AlreadyRunning)));
    drop(again);
    let error = Host::start(Config::new().environment("/no/such/place")).unwrap_err();
    assert!(error.to_string().contains("/no/such/place"), "{error}");
    assert!(Host::start(Config::new()).is_ok(), "a failed start does not prevent the next one");
}

#[test]
fn recursion_in_c_has_as_much_stack_as_on_the_main_thread() {
    let host = start();
    let namespace = with(
        &host,
        "
import sys, threading
def levels(count):
    # Sorting takes some kilobytes of stack, and calls the key.
    return 0 if count == 0 else sorted([count - 1], key=lambda below: levels(below))[0] + 1
def deep():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        return levels(1_200)
    except RecursionError:
        return 1_200
    finally:
        sys.setrecursionlimit(before)
",
    );
    for call in [Call::new("__main__", "deep"), Call::new("__main__", "deep").on_worker()] {
        assert_eq!(wait(namespace.submit(call).unwrap()).unwrap(), Value::Int(1_200));
    }
    drop(host);
    assert!(matches!(Host::start(Config::new().stack_size(1 << 10)), Err(StartError::Setting(_))));
}

#[test]
fn a_virtual_environment_is_used() {
    let directory = std::env::temp_dir().join(format!("pelton-environment-{}", std::process::id()));
    let ask = |host: &Host, expression: &'static str| {
        let namespace = with(host, "import os, sys");
        wait(namespace.eval(expression).unwrap()).unwrap().as_str().unwrap().to_owned()
    };
    let host = start();
    let program = ask(&host, "'{}/bin/python{}.{}'.format(sys.base_prefix, *sys.version_info)");
    let library = ask(&host, "'python{}.{}'.format(*sys.version_info)");
    let keep = "sys.kept_by_test = (sys.path[:], sys.prefix, sys.exec_prefix, sys.executable)";
    wait(with(&host, "import sys").exec(keep).unwrap()).unwrap();
    host.shutdown(LONG);
    let made = std::process::Command::new(&program).args(["-m", "venv", "--without-pip"]).arg(&directory).status();
    assert!(made.unwrap().success(), "{program} creates virtual environments");
    let packages = directory.join("lib").join(library).join("site-packages");
    std::fs::create_dir(directory.join("elsewhere")).unwrap();
    for (file, text) in [
        (packages.join("pelton_in_environment.py"), "def answer(): return 42\n"),
        (packages.join("pelton_elsewhere.pth"), directory.join("elsewhere").to_str().unwrap()),
        (directory.join("elsewhere/pelton_elsewhere.py"), "def answer(): return 43\n"),
    ] {
        std::fs::write(file, text).unwrap();
    }

    let next = Host::start(Config::new().environment(&directory)).unwrap();
    assert_eq!(next.run("pelton_in_environment", "answer", (), ()).unwrap(), Value::Int(42));
    assert_eq!(next.run("pelton_elsewhere", "answer", (), ()).unwrap(), Value::Int(43), "named in a .pth file");
    assert_eq!(ask(&next, "sys.prefix"), directory.to_str().unwrap());
    assert_eq!(ask(&next, "os.environ['VIRTUAL_ENV']"), directory.to_str().unwrap());
    let namespace = with(&next, "import sys, os");
    wait(namespace.exec("sys.path[:], sys.prefix, sys.exec_prefix, sys.executable = sys.kept_by_test").unwrap())
        .unwrap();
    wait(namespace.exec("del os.environ['VIRTUAL_ENV']").unwrap()).unwrap();
    assert!(next.run("pelton_elsewhere", "answer", (), ()).is_ok(), "imported modules stay loaded");
    next.shutdown(LONG);

    // An environment for another Python is refused with its version.
    let settings = std::fs::read_to_string(directory.join("pyvenv.cfg")).unwrap();
    let others = settings.lines().map(|line| if line.starts_with("version") { "version = 2.7.18" } else { line });
    std::fs::write(directory.join("pyvenv.cfg"), others.collect::<Vec<_>>().join("\n")).unwrap();
    let error = Host::start(Config::new().environment(&directory)).unwrap_err();
    assert!(error.to_string().contains("made for Python 2.7.18"), "{error}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn arguments_and_paths_are_set() {
    let host = start_with(Config::new().arguments(["program", "-x"]).path("/somewhere").path("/else"));
    let namespace = with(&host, "import sys");
    assert_eq!(wait(namespace.eval("sys.argv").unwrap()).unwrap(), Value::from(vec!["program", "-x"]));
    assert_eq!(wait(namespace.eval("sys.path[:2]").unwrap()).unwrap(), Value::from(vec!["/somewhere", "/else"]));
    wait(namespace.exec("sys.path[:2] = []; sys.argv[:] = ['']").unwrap()).unwrap();
}
