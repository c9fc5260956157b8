//! One watchdog and one set of statistics for callbacks in Rust and in Python.

use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use pelton::CallbackKind;
use pyo3::prelude::*;

use crate::with_loop;

const SLOW: Duration = Duration::from_millis(20);

#[test]
fn the_watchdog_names_callbacks_of_both_languages() {
    let code = "
import functools
def quick(): pass
def slow(): time.sleep(0.03)
class Thing:
    def method(self): time.sleep(0.03)
async def coroutine():
    time.sleep(0.03)
async def main():
    loop.call_soon(quick)
    loop.call_soon(slow)
    loop.call_soon(functools.partial(Thing().method))
    loop.call_soon(time.sleep, 0.03)
    await asyncio.sleep(0)
    await loop.create_task(coroutine())
    await asyncio.sleep(0.02)
";
    with_loop(code, |fixture| {
        let (report, reports) = mpsc::channel();
        fixture.with_reactor(|reactor| {
            reactor.on_slow_callback(SLOW, move |slow| report.send(slow.clone()).unwrap()).unwrap();
            let timer = reactor.after(Duration::from_millis(1), |_| sleep(2 * SLOW));
            reactor.label(timer, "a timer in Rust");
        });
        fixture.run("main")?;
        let reports: Vec<_> = reports.try_iter().collect();
        let names: Vec<String> = reports.iter().filter(|slow| slow.finished).map(ToString::to_string).collect();
        let named = |part: &str| names.iter().filter(|name| name.contains(part)).count();
        for part in [
            "slow (<string>:5)",
            "Thing.method (<string>:7)",
            "sleep (a builtin_function_or_method)",
            "coroutine (<string>:8)",
        ] {
            assert_eq!(named(part), 1, "{part} in {names:#?}");
        }
        assert_eq!(named("a timer in Rust"), 1, "{names:#?}");
        assert_eq!(named("quick"), 0, "{names:#?}");
        // The helper thread has reported some while they were running, by the same names.
        assert!(reports.iter().any(|slow| !slow.finished && slow.to_string().contains("<string>:")), "{names:#?}");
        let stats = fixture.with_reactor(|reactor| reactor.stats());
        assert!(stats.slow_callbacks >= 5 && stats.guest_callbacks >= 7, "{stats:?}");
        assert!(stats.calls(CallbackKind::Guest) > 0);
        Ok(())
    });
}

#[test]
fn python_hears_of_slow_callbacks_in_rust() {
    let code = "
told = []
async def main():
    await asyncio.sleep(0.05)
";
    with_loop(code, |fixture| {
        let its_loop = &fixture.its_loop;
        its_loop.call_method1("on_slow_callback", (SLOW.as_secs_f64(), fixture.get("told").getattr("append")?))?;
        let error = fixture.run("main");
        assert!(error.is_ok(), "append takes one argument, but an error of the hook is reported, not raised");
        fixture.names.set_item(
            "note",
            fixture
                .its_loop
                .py()
                .eval(c"lambda told: lambda handle, seconds: told.append(repr(handle))", None, None)?
                .call1((fixture.get("told"),))?,
        )?;
        its_loop.call_method1("on_slow_callback", (SLOW.as_secs_f64(), fixture.get("note")))?;
        fixture.with_reactor(|reactor| {
            let timer = reactor.after(Duration::from_millis(1), |_| sleep(2 * SLOW));
            reactor.label(timer, "heartbeat");
        });
        fixture.run("main")?;
        let told: Vec<String> = fixture.get("told").extract()?;
        assert!(told.len() == 1 && told[0].starts_with("<NativeHandle timer \"heartbeat\" ("), "{told:?}");
        let stats = its_loop.call_method0("stats")?;
        assert_eq!(stats.get_item("slow_callbacks")?.extract::<u64>()?, 1);
        assert!(stats.get_item("native_callbacks")?.extract::<u64>()? >= 1);
        its_loop.call_method1("on_slow_callback", (0, fixture.its_loop.py().None())).map(drop)
    });
}
