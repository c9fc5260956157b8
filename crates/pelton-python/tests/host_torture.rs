//! Random calls of hostile functions from a seed. Each call has exactly one outcome, the same as on asyncio's own loop.
//!
//! `PELTON_TORTURE_SECONDS` sets the duration and `PELTON_TORTURE_SEED` the first seed. A failure names its seed.

#![cfg(feature = "embed")]

mod host_support;

use std::time::{Duration, Instant};

use host_support::{LONG, start_with, wait};
use pelton_python::Value;
use pelton_python::host::{Call, Config, Namespace, Outcome, TaskError};

/// Default duration: long enough for some hundred calls of each function.
const SECONDS: u64 = 5;

/// Calls per scenario.
const CALLS: usize = 120;

/// Functions whose results, arguments and exceptions run code when they are released, converted, iterated over or
/// awaited. Each takes a number. `reference` returns the outcome on asyncio's own loop.
const HOSTILE: &str = r#"
import asyncio, functools, gc, inspect, os, random, threading, time

def act(kind):
    kind = kind % 8
    if kind == 0:
        gc.collect()
    elif kind == 1:
        raise ZeroDivisionError
    elif kind == 2:
        try:
            asyncio.get_running_loop().call_soon(Mortal, 7)
        except RuntimeError:
            pass
    elif kind == 3:
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    elif kind == 4:
        time.sleep(0)
    elif kind == 5:
        try:
            asyncio.get_running_loop().run_until_complete(asyncio.sleep(0))
        except RuntimeError:
            pass
    elif kind == 6:
        try:
            asyncio.ensure_future(asyncio.sleep(0))
        except RuntimeError:
            pass

class Mortal:
    def __init__(self, kind):
        self.kind = kind
    def __del__(self):
        try:
            act(self.kind)
        except ZeroDivisionError:
            pass

class Failure(Exception):
    def __init__(self, kind):
        self.mortal = Mortal(kind)
    def __str__(self):
        act(self.mortal.kind)
        return "hostile"
    __repr__ = __str__

class Whole(int):
    def __index__(self):
        gc.collect()
        return 5
    __int__ = __index__

class Text(str):
    def __str__(self):
        raise ZeroDivisionError

class Pieces(list):
    def __iter__(self):
        self.clear()
        gc.collect()
        return super().__iter__()
    def __len__(self):
        return 1 << 40

class Key:
    def __hash__(self):
        gc.collect()
        return 1
    def __eq__(self, other):
        act(2)
        return self is other

class Awaitable:
    def __init__(self, kind):
        self.kind = kind
    def __await__(self):
        act(self.kind)
        yield from asyncio.sleep(0).__await__()
        act(self.kind)
        return self.kind

class Rubbish:
    def __await__(self):
        yield "rubbish"

class NoAwait:
    def __await__(self):
        return 5

def number(kind): return kind
def mortal(kind): return Mortal(kind)
def subclasses(kind): return [Whole(kind), Text("x"), 1.5]
def pieces(kind): return Pieces([Mortal(kind), 1, 2])
def keys(kind): return {Key(): Mortal(kind), Key(): 1}
def fails(kind): raise Failure(kind)
def exits(kind): raise SystemExit(Mortal(kind))
def interrupts(kind): raise KeyboardInterrupt
def acts(kind):
    kept = Mortal(kind)
    act(kind)
    return kind
def stops_iterating(kind): raise StopIteration(Mortal(kind))
def generator(kind):
    for index in range(3):
        act(kind + index)
        yield Mortal(kind)
async def coroutine(kind):
    kept = Mortal(kind)
    for _ in range(kind % 4):
        await asyncio.sleep(0)
    act(kind)
    return kind
async def cancels_itself(kind):
    asyncio.current_task().cancel()
    await asyncio.sleep(1)
async def swallows(kind):
    asyncio.current_task().cancel()
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        return Mortal(kind)
async def fails_later(kind):
    await asyncio.sleep(0)
    raise Failure(kind)
async def exits_later(kind):
    await asyncio.sleep(0)
    raise Failure(kind) if kind % 2 else GeneratorExit
def awaitable(kind): return Awaitable(kind)
def rubbish(kind): return Rubbish()
def no_await(kind): return NoAwait()
def done(kind):
    future = asyncio.get_running_loop().create_future()
    future.set_result(Mortal(kind))
    return future
def failed(kind):
    future = asyncio.get_running_loop().create_future()
    future.set_exception(Failure(kind))
    return future
def later(kind):
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(0.001, future.set_result, kind)
    return future
def cancelled(kind):
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    return future
def used_up(kind):
    coroutine = asyncio.sleep(0)
    coroutine.close()
    return coroutine
def foreign(kind):
    loop = asyncio.SelectorEventLoop()
    loop.close()
    return asyncio.Future(loop=loop)
def forks(kind):
    if kind % 16 == 0:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    return kind

FUNCTIONS = [number, mortal, subclasses, pieces, keys, fails, exits, interrupts, acts, stops_iterating, generator, coroutine, cancels_itself,
             swallows, fails_later, exits_later, awaitable, rubbish, no_await, done, failed, later, cancelled, used_up, foreign, forks]
NAMES = [function.__name__ for function in FUNCTIONS]

def reference(name, kind):
    outcome = []
    def call():
        # Not in the coroutine itself, which turns StopIteration into another exception.
        try:
            return globals()[name](kind)
        except BaseException as error:
            outcome.append(type(error).__name__)
    async def guard():
        result = call()
        # As the host does: generators are objects.
        if not inspect.isawaitable(result):
            return
        try:
            await result
        except asyncio.CancelledError:
            outcome.append("cancelled")
        except BaseException as error:
            outcome.append(type(error).__name__)
    loop = asyncio.SelectorEventLoop()
    loop.set_exception_handler(lambda loop, context: None)
    try:
        loop.run_until_complete(guard())
    except BaseException as error:
        outcome.append(type(error).__name__)
    finally:
        loop.close()
    return outcome[0] if outcome else "value"
"#;

/// A generator of random numbers, with the same sequence for a seed on every system.
struct Random(u64);

impl Random {
    /// Returns a number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }
}

/// Describes the outcome of a call in the same terms as `reference`.
fn kind_of(outcome: &Outcome) -> String {
    match outcome {
        Ok(_) | Err(TaskError::Conversion(_)) => "value".into(),
        Err(TaskError::Cancelled) => "cancelled".into(),
        Err(TaskError::Raised(exception)) => {
            // The text must be valid, whatever `__str__` does.
            assert!(!exception.traceback().is_empty());
            exception.type_name().rsplit('.').next().unwrap_or_default().into()
        }
        Err(other) => format!("{other:?}"),
    }
}

fn names(namespace: &Namespace) -> Vec<String> {
    let Value::List(names) = wait(namespace.eval("NAMES").unwrap()).unwrap() else { panic!("a list of names") };
    names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Plays one scenario: a host, and calls of all kinds.
fn play(seed: u64) {
    let mut random = Random(seed);
    let host =
        start_with(Config::new().loops(1 + random.below(2)).workers(1 + random.below(3)).batch(1 + random.below(64)));
    let namespace = host.namespace();
    wait(namespace.exec(HOSTILE).unwrap()).unwrap();
    let names = names(&namespace);
    let mut outstanding = Vec::new();
    for _ in 0..CALLS {
        let name = names[random.below(names.len())].as_str();
        let number = random.below(256) as i64;
        let context = format!("seed {seed}: {name}({number})");
        let mut call = Call::new("__main__", name.to_owned()).arg(number);
        if random.below(4) == 0 {
            call = call.keep_exception();
        }
        if random.below(4) == 0 {
            call = call.as_object();
        }
        // On a worker, functions find no running loop, so some have other outcomes.
        let on_worker =
            matches!(name, "number" | "mortal" | "fails" | "exits" | "keys" | "pieces") && random.below(3) == 0;
        if on_worker {
            call = call.on_worker();
        }
        let expected = || {
            let call = Call::new("__main__", "reference").arg(name.to_owned()).arg(number).on_worker();
            wait(namespace.submit(call).unwrap()).unwrap().as_str().unwrap().to_owned()
        };
        match random.below(11) {
            0..=2 => assert_eq!(kind_of(&wait(namespace.submit(call).unwrap())), expected(), "{context}"),
            3 => {
                let outcomes =
                    namespace.batch(vec![call.clone(), call]).unwrap().wait_timeout(LONG).expect("all outcomes");
                let kinds: Vec<String> = outcomes.iter().map(kind_of).collect();
                assert_eq!(kinds, [expected(), expected()], "{context}");
            }
            4 => outstanding.push((context, namespace.submit(call).unwrap())),
            5 => namespace.spawn(call).unwrap(),
            6 => drop(namespace.submit(call).unwrap()),
            7 => drop(namespace.submit(call).unwrap().cancel_on_drop()),
            8 => {
                let reply = namespace.submit(call.timeout(Duration::from_millis(random.below(3) as u64))).unwrap();
                let outcome = kind_of(&wait(reply));
                assert!(outcome == "TimedOut" || outcome == expected(), "{context}: {outcome}");
            }
            9 => {
                let reply = namespace.submit(call).unwrap();
                reply.cancel();
                let outcome = kind_of(&wait(reply));
                assert!(outcome == "cancelled" || outcome == expected(), "{context}: {outcome}");
            }
            _ => {
                let call = Call::new("__main__", "generator").arg(number);
                let mut stream = namespace.stream(call, 1 + random.below(3)).unwrap();
                let mut items = 0;
                while let Some(item) = stream.next_timeout(LONG).expect("an item, or the end") {
                    items += 1;
                    if item.is_err() || random.below(4) == 0 {
                        break;
                    }
                }
                assert!(items <= 4, "{context}: {items}");
            }
        }
    }
    for (context, reply) in outstanding {
        let outcome = reply.wait_timeout(LONG);
        assert!(outcome.is_ok(), "{context} has no outcome");
    }
    // The host still works.
    assert_eq!(wait(namespace.eval("1 + 1").unwrap()).unwrap(), Value::Int(2), "seed {seed}");
    let remains = host.shutdown(LONG);
    assert!(remains.is_clean(), "seed {seed}: {remains:?}");
}

#[test]
fn hostile_functions_have_the_same_outcomes_as_on_asyncios_own_loop() {
    let variable = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let seconds = Duration::from_secs(variable("PELTON_TORTURE_SECONDS").unwrap_or(SECONDS));
    let first = variable("PELTON_TORTURE_SEED").unwrap_or(1);
    let begun = Instant::now();
    let mut seed = first;
    while begun.elapsed() < seconds {
        play(seed);
        seed += 1;
    }
    println!("seeds {first} to {}", seed - 1);
}
