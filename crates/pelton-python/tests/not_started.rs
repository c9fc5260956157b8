//! Functions that need Python, called before it is started. A single test, because a host started by another would
//! spoil it.

#![cfg(feature = "embed")]

use pelton_python::host::{Config, Host, RefusalKind, TaskError};
use pelton_python::native::{Module, call, forward_logging, refuse_processes};

#[test]
fn functions_that_need_python_fail_before_a_host_is_started() {
    let shop = || Module::new("shop").function("price", |_| Ok(3.5));
    let error = shop().install().unwrap_err();
    assert_eq!(error.message(), "install the module shop: Python is not running; start a host first");
    let error = forward_logging(tracing::Level::INFO).unwrap_err();
    assert_eq!(error.message(), "forward Python's logging: Python is not running; start a host first");
    assert!(refuse_processes().unwrap_err().message().starts_with("refuse processes: Python is not running"));
    let outcome = call("math", "sqrt", (4.0,), ());
    assert!(matches!(outcome, Err(TaskError::Refused(RefusalKind::NotRunning))), "{outcome:?}");

    let host = Host::start(Config::new()).unwrap();
    shop().install().unwrap();
    assert_eq!(host.create_task("shop", "price", (), ()).unwrap().wait().unwrap(), 3.5.into());
    call("math", "sqrt", (4.0,), ()).unwrap();
}
