//! Exceptions, wrong names, and values that cannot be converted.

use std::time::Duration;

use pelton_python::Value;
use pelton_python::host::{Call, TaskError};

use super::host_support::{start, wait, with};

const ERRORS: &str = "
import asyncio

class Custom(Exception): pass
class Rude(Exception):
    def __str__(self): raise SystemExit(3)
class Base(BaseException): pass

def make(kind):
    return {
        'custom': Custom('what it says'),
        'rude': Rude(),
        'base': Base('base'),
        'exit': SystemExit(7),
        'interrupt': KeyboardInterrupt(),
        'generator': GeneratorExit(),
        'stop': StopAsyncIteration('s'),
        'surrogate': ValueError('half \\udc80 of a pair'),
        'cancelled': asyncio.CancelledError(),
    }[kind]

def at_once(kind): raise make(kind)
async def first_step(kind): raise make(kind)
async def later(kind):
    await asyncio.sleep(0.001)
    raise make(kind)
async def task_of_another(kind):
    return await asyncio.create_task(later(kind))
";

#[test]
fn every_exception_is_reported_and_the_loop_survives() {
    let host = start();
    let namespace = with(&host, ERRORS);
    for kind in ["custom", "rude", "base", "exit", "interrupt", "generator", "stop", "surrogate"] {
        for function in ["at_once", "first_step", "later", "task_of_another"] {
            let error = wait(namespace.create_task("__main__", function, (kind,), ()).unwrap()).unwrap_err();
            let exception = error.exception().unwrap_or_else(|| panic!("{function}({kind}): {error:?}"));
            let expected = match kind {
                "custom" => "__main__.Custom",
                "rude" => "__main__.Rude",
                "base" => "__main__.Base",
                "exit" => "SystemExit",
                "interrupt" => "KeyboardInterrupt",
                "generator" => "GeneratorExit",
                "stop" => "StopAsyncIteration",
                _ => "ValueError",
            };
            assert_eq!(exception.type_name(), expected, "{function}({kind})");
            assert!(exception.traceback().contains(function), "{}", exception.traceback());
            assert!(exception.object().is_none());
            match kind {
                "custom" => assert_eq!(exception.message(), "what it says"),
                "surrogate" => assert_eq!(exception.message(), "half ? of a pair"),
                _ => {}
            }
            assert_eq!(namespace.run("math", "sqrt", (1.0,), ()).unwrap(), Value::Float(1.0), "the loop survives");
        }
    }
    for function in ["first_step", "later"] {
        let outcome = namespace.run("__main__", function, ("cancelled",), ());
        assert!(matches!(outcome, Err(TaskError::Cancelled)), "{outcome:?}");
    }
}

#[test]
fn the_exception_itself_is_kept_on_request() {
    let host = start();
    let namespace = with(&host, ERRORS);
    for function in ["at_once", "later"] {
        let call = Call::new("__main__", function).arg("exit").keep_exception();
        let error = wait(namespace.submit(call).unwrap()).unwrap_err();
        let object = error.exception().unwrap().object().unwrap().clone();
        let code = namespace.run("builtins", "getattr", (Value::Object(object), Value::from("code")), ());
        assert_eq!(code.unwrap(), Value::Int(7));
    }
}

#[test]
fn long_and_wrong_names_are_handled() {
    let host = start();
    let long = "n".repeat(100_000);
    for (module, function, expected) in [
        (long.clone(), "f".to_owned(), "ModuleNotFoundError"),
        ("math".to_owned(), long.clone(), "AttributeError"),
        ("no_such_module".to_owned(), "f".to_owned(), "ModuleNotFoundError"),
        ("math".to_owned(), String::new(), "AttributeError"),
        ("math".to_owned(), "pi".to_owned(), "TypeError"),
        (String::new(), "f".to_owned(), "ValueError"),
    ] {
        let error = wait(host.create_task(module.clone(), function.clone(), (), ()).unwrap()).unwrap_err();
        let name = error.exception().unwrap_or_else(|| panic!("{error:?}")).type_name().to_owned();
        assert_eq!(name, expected, "{:.20}.{:.20}", module, function);
    }
    let namespace = host.namespace();
    namespace.exec(format!("def {long}():\n    return 1")).unwrap().wait().unwrap();
    assert_eq!(namespace.run("__main__", long, (), ()).unwrap(), Value::Int(1));
    let error = namespace.run("__main__", "missing", (), ()).unwrap_err();
    assert_eq!(error.to_string(), "NameError: name 'missing' is not defined");
    let error = wait(namespace.exec("a = \0").unwrap()).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "ValueError");
    let error = wait(namespace.exec("def broken(:").unwrap()).unwrap_err();
    assert_eq!(error.exception().unwrap().type_name(), "SyntaxError");
}

#[test]
fn data_that_cannot_be_converted_is_an_error_of_the_task() {
    let host = start();
    let namespace = with(
        &host,
        "
def cyclic():
    a = []
    a.append(a)
    return a

def deep(levels):
    value = 1
    for _ in range(levels): value = [value]
    return value

async def later(): return cyclic()
def text(): return 'half \\udc80'
def echo(value): return value
",
    );
    for (function, args) in
        [("cyclic", vec![]), ("deep", vec![Value::Int(100_000)]), ("later", vec![]), ("text", vec![])]
    {
        let outcome = wait(namespace.create_task("__main__", function, args, ()).unwrap());
        assert!(matches!(outcome, Err(TaskError::Conversion(_))), "{function}: {outcome:?}");
    }
    let deep = (0..1_500).fold(Value::Int(1), |value, _| Value::List(vec![value]));
    let outcome = wait(namespace.create_task("__main__", "echo", vec![deep], ()).unwrap());
    assert!(matches!(outcome, Err(TaskError::Conversion(_))), "{outcome:?}");
    // Deeper than any stack, and dropped on the loop, or here if the call is refused.
    let deepest = || (0..1_000_000).fold(Value::Int(1), |value, _| Value::List(vec![value]));
    let call = || Call::new("__main__", "echo").keyword("value", deepest());
    for call in [call(), call().on_worker()] {
        let outcome = wait(namespace.submit(call).unwrap());
        assert!(matches!(outcome, Err(TaskError::Conversion(_))), "{outcome:?}");
    }
    let cancelled = namespace.submit(call().timeout(Duration::ZERO)).unwrap();
    assert!(matches!(wait(cancelled), Err(TaskError::TimedOut)));
    let unhashable = Value::Dict(vec![(Value::List(vec![]), Value::None)]);
    let outcome = wait(namespace.submit(Call::new("__main__", "echo").arg(1).arg(unhashable)).unwrap());
    assert!(
        matches!(&outcome, Err(TaskError::Conversion(error)) if error.path().starts_with("args[1]")),
        "{outcome:?}"
    );
    assert_eq!(namespace.run("__main__", "echo", ("fine",), ()).unwrap(), Value::from("fine"));
}
