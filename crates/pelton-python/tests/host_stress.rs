//! Many tasks and threads: no outcome is lost or goes to the wrong caller, and memory does not grow.

#![cfg(feature = "embed")]

mod host_support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use host_support::{LONG, start, start_with, until, wait, with};
use pelton_python::Value;
use pelton_python::host::{Call, Config, Host, RefusalKind};

/// Unoptimised builds do a tenth.
const fn many(number: usize) -> usize {
    if cfg!(debug_assertions) { number / 10 } else { number }
}

#[test]
fn wake_ups_from_other_python_threads_are_not_lost() {
    let host = start();
    let namespace = with(
        &host,
        "
import asyncio, socket
async def executor(number):
    return await asyncio.get_running_loop().run_in_executor(None, int, number)
async def thread(number):
    return await asyncio.to_thread(int, number)
async def name(number):
    found = await asyncio.get_running_loop().getaddrinfo('127.0.0.1', number % 60000 + 1, type=socket.SOCK_STREAM)
    return found[0][4][1] - 1
",
    );
    for function in ["executor", "thread", "name"] {
        // One at a time, so that the loop goes to sleep between any two. That is when wake-ups could get lost.
        for number in 0..many(3_000) as i64 {
            let reply = namespace.create_task("__main__", function, (number,), ()).unwrap();
            assert_eq!(wait(reply).unwrap(), Value::Int(number), "{function}");
        }
        let calls = (0..many(7_000) as i64).map(|number| Call::new("__main__", function).arg(number)).collect();
        let outcomes = namespace.batch(calls).unwrap().wait_timeout(LONG).expect("no outcome is missing");
        for (number, outcome) in (0..).zip(outcomes) {
            assert_eq!(outcome.unwrap(), Value::Int(number), "{function}");
        }
    }
}

#[test]
fn threads_that_race_a_loop_going_to_sleep_wake_it() {
    for spin in [Duration::ZERO, Duration::from_micros(20)] {
        let host = start_with(Config::new().spin(spin));
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let host: &Host = &host;
                scope.spawn(move || {
                    for number in 0..many(30_000) as i64 {
                        let reply = host.create_task("builtins", "int", (number,), ()).unwrap();
                        assert_eq!(wait(reply).unwrap(), Value::Int(number));
                        // Vary the moment relative to the loop going to sleep.
                        for _ in 0..(number * thread) % 200 {
                            std::hint::spin_loop();
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_million_calls_of_64_threads_each_return_to_their_caller() {
    let host = start_with(Config::new().loops(2));
    let calls = many(1_000_000) as i64 / 64;
    std::thread::scope(|scope| {
        for thread in 0..64i64 {
            let host: &Host = &host;
            scope.spawn(move || {
                let mut outstanding = std::collections::VecDeque::new();
                for number in 0..calls {
                    let mine = thread << 32 | number;
                    let (module, function) = if number % 16 == 0 { ("asyncio", "sleep") } else { ("builtins", "int") };
                    let call = Call::new(module, function);
                    let call = if number % 16 == 0 { call.arg(0).arg(mine) } else { call.arg(mine) };
                    outstanding.push_back((mine, host.submit(call).unwrap()));
                    if outstanding.len() == 32 {
                        let (mine, reply) = outstanding.pop_front().unwrap();
                        assert_eq!(wait(reply).unwrap(), Value::Int(mine));
                    }
                }
                for (mine, reply) in outstanding {
                    assert_eq!(wait(reply).unwrap(), Value::Int(mine));
                }
            });
        }
    });
}

#[test]
fn long_tasks_do_not_stall() {
    let host = start();
    let namespace = with(
        &host,
        "
import asyncio
async def turns(count):
    for _ in range(count): await asyncio.sleep(0)
    return count
async def through_a_queue(count):
    queue = asyncio.Queue(10)
    async def produce():
        for number in range(count): await queue.put(number)
    producer = asyncio.create_task(produce())
    total = 0
    for _ in range(count): total += await queue.get()
    await producer
    return total
",
    );
    let turns = namespace.create_task("__main__", "turns", (1_000,), ()).unwrap();
    let queue = namespace.create_task("__main__", "through_a_queue", (10_000,), ()).unwrap();
    assert_eq!(wait(turns).unwrap(), Value::Int(1_000));
    assert_eq!(wait(queue).unwrap(), Value::Int(9_999 * 10_000 / 2));
}

#[test]
fn sleeps_fire_on_time_and_never_early() {
    let host = start();
    let namespace = with(
        &host,
        "
import asyncio, time
async def nap(seconds):
    start = time.perf_counter()
    await asyncio.sleep(seconds)
    return time.perf_counter() - start
",
    );
    // Concurrent ones of all lengths.
    let lengths: Vec<f64> = (0..500).map(|number| 0.000_2 * f64::from(number)).collect();
    let calls = lengths.iter().map(|length| Call::new("__main__", "nap").arg(*length)).collect();
    let outcomes = namespace.batch(calls).unwrap().wait_timeout(LONG).expect("all have fired");
    for (length, outcome) in lengths.iter().zip(outcomes) {
        let took = outcome.unwrap().as_float().unwrap();
        assert!(took >= *length, "{took} is early for {length}");
        assert!(took < length + 2.0, "{took} is late for {length}");
    }
    // Less than a millisecond, one at a time: neither immediate nor rounded up to a millisecond.
    let mut took: Vec<f64> = (0..200)
        .map(|_| wait(namespace.create_task("__main__", "nap", (0.000_3,), ()).unwrap()).unwrap().as_float().unwrap())
        .collect();
    took.sort_by(f64::total_cmp);
    assert!(took[0] >= 0.000_3, "{} is early", took[0]);
    assert!(took[50] < 0.001, "a quarter took longer than {}", took[50]);
}

#[test]
fn a_batch_takes_one_lock_and_an_idle_loop_takes_none() {
    let host = start_with(Config::new().loops(2));
    // Threads are spread over the loops, so each of these gets its own.
    let of_a_thread = || std::thread::scope(|scope| scope.spawn(|| host.namespace()).join().unwrap());
    let (namespace, other) = (of_a_thread(), of_a_thread());
    let hold =
        "import builtins, threading\nheld = builtins.pelton_test_held = threading.Event()\ndef hold(): held.wait()";
    wait(namespace.exec(hold).unwrap()).unwrap();
    // It is counted at the end of its batch, perhaps after its outcome is there.
    let busy = || host.stats().iter().position(|stats| stats.tasks > 0);
    until("it is counted", || busy().is_some());
    let index = busy().unwrap();
    let settled = |host: &Host| {
        until("the loop sleeps", || host.stats()[index].asleep && host.stats()[index].queued == 0);
        host.stats()[index]
    };
    let before = settled(&host);
    for number in 0..1_000 {
        assert_eq!(wait(other.eval(format!("{number}")).unwrap()).unwrap(), Value::Int(number));
    }
    assert_eq!(host.stats()[index], before, "while another loop works, an idle loop takes no lock and does not turn");

    let holding = namespace.create_task("__main__", "hold", (), ()).unwrap();
    let calls = (0..6_400).map(|number| Call::new("builtins", "int").arg(number)).collect();
    let batch = namespace.batch(calls).unwrap();
    release();
    wait(holding).unwrap();
    assert!(batch.wait().iter().all(Result::is_ok));
    let after = settled(&host);
    assert_eq!(after.tasks - before.tasks, 6_401);
    let batches = after.batches - before.batches;
    assert!((101..=103).contains(&batches), "{batches} batches of 64");
    // One acquisition at the start. Then the lock is released every 5 ms while there is more to do.
    let locks = after.locks - before.locks;
    assert!(locks >= 1 && locks <= batches, "{locks} for {batches} batches");
    assert!(after.wakeups - before.wakeups <= 2, "one wake-up for any number of tasks");
}

#[test]
fn the_bound_holds_at_a_million_queued() {
    let bound = many(1_000_000);
    let host = start_with(Config::new().queue_bound(bound));
    let namespace = with(
        &host,
        "import builtins, threading\nheld = builtins.pelton_test_held = threading.Event()\ndef hold(): held.wait()",
    );
    let holding = namespace.create_task("__main__", "hold", (), ()).unwrap();
    until("the loop is blocked", || host.stats()[0].queued == 0);
    let mut accepted = 0;
    let refused = loop {
        match host.spawn(Call::new("builtins", "int")) {
            Ok(()) => accepted += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!((accepted, refused.kind), (bound, RefusalKind::Full));
    release();
    wait(holding).unwrap();
    until("all have run", || host.stats()[0].tasks >= bound as u64);
    assert_eq!(wait(host.submit(*refused.call).unwrap()).unwrap(), Value::Int(0));
}

/// Sets the event that blocks the loop, from this thread.
fn release() {
    use pyo3::prelude::*;
    Python::attach(|py| {
        py.import("builtins").unwrap().getattr("pelton_test_held").unwrap().call_method0("set").unwrap();
    });
}

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
#[cfg(target_os = "linux")]
fn memory_stays_flat_over_ten_million_tasks() {
    let host = start();
    let namespace = with(&host, "async def nothing(): pass\nasync def fails(): raise ValueError('no')");
    let round = |tasks: usize| {
        for _ in 0..tasks / 1_000 {
            let calls = (0..1_000)
                .map(|number| match number % 100 {
                    0 => Call::new("asyncio", "sleep").arg(0),
                    1 => Call::new("__main__", "fails"),
                    2..10 => Call::new("__main__", "nothing"),
                    _ => Call::new("math", "sqrt").arg(2.0),
                })
                .collect();
            let outcomes = namespace.batch(calls).unwrap().wait();
            assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 10);
        }
    };
    round(many(1_000_000));
    let before = resident();
    round(many(9_000_000));
    let after = resident();
    let grown = after.saturating_sub(before);
    let kib = |bytes: usize| bytes >> 10;
    println!("resident: {} KiB after a tenth of the tasks, {} KiB after all", kib(before), kib(after));
    assert!(grown < 8 << 20, "{grown} bytes more");
}

#[test]
fn every_task_has_one_outcome_however_it_ends() {
    let host = start();
    let namespace = with(
        &host,
        "
import asyncio
async def ends(how):
    if how % 3: await asyncio.sleep(0.0001 * (how % 5))
    if how % 7 == 0: raise SystemExit(how)
    if how % 11 == 0: raise ValueError(how)
    if how % 13 == 0: asyncio.current_task().cancel(); await asyncio.sleep(0)
    return how
",
    );
    let told = AtomicU64::new(0);
    let count = many(100_000) as i64;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (namespace, told) = (namespace.clone(), &told);
            scope.spawn(move || {
                for number in (thread..count).step_by(4) {
                    let mut call = Call::new("__main__", "ends").arg(number);
                    if number % 17 == 0 {
                        call = call.timeout(Duration::from_micros(100));
                    }
                    let reply = namespace.submit(call).unwrap();
                    if number % 19 == 0 {
                        reply.cancel();
                    }
                    let _ = wait(reply);
                    told.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(told.load(Ordering::Relaxed), count as u64);
    assert_eq!(host.stats()[0].waiting, 0);
    assert!(start.elapsed() < LONG * 4);
}
