//! Channels between Rust and Python.

#![cfg(feature = "embed")]

mod host_support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use host_support::{LONG, start, until, wait, with};
use pelton::Reactor;
use pelton_python::Value;
use pelton_python::host::{Call, TaskError};
use pelton_python::native::{ReceiveError, SendError, Sender, channel};

const ENDS: &str = "
import asyncio, pelton

async def send(sender, count):
    for number in range(count):
        await sender.asend(number)
    return len(sender)

def send_blocking(sender, count):
    for number in range(count):
        sender.send(number)

async def receive_all(receiver):
    return [value async for value in receiver]

def receive_all_blocking(receiver):
    return list(receiver)

def closes(sender, receiver):
    sender.close()
    found = []
    for function in (lambda: sender.send(1), lambda: sender.try_send(1), receiver.receive, receiver.try_receive):
        try:
            function()
        except pelton.ChannelClosed as error:
            found.append(str(error))
    return found, sender.closed, receiver.closed, list(receiver), issubclass(pelton.ChannelClosed, EOFError)
";

#[test]
fn python_sends_no_faster_than_rust_receives() {
    let host = start();
    let namespace = with(&host, ENDS);
    for (function, on_worker) in [("send", false), ("send_blocking", true)] {
        let (sender, receiver) = channel(2);
        let call = Call::new("__main__", function).args((sender, 1_000));
        let reply = namespace.submit(if on_worker { call.on_worker() } else { call }).unwrap();
        until("the channel is full", || receiver.len() == 2);
        assert_eq!(wait(namespace.eval("1").unwrap()).unwrap(), Value::from(1), "the loop keeps running");
        assert_eq!(receiver.len(), 2);
        for number in 0..1_000 {
            assert_eq!(receiver.receive_timeout(LONG), Ok(Value::from(number)));
            assert!(receiver.len() <= 2);
        }
        wait(reply).unwrap();
        until("Python's sender is dropped", || receiver.is_closed());
        assert_eq!(receiver.try_receive(), Err(ReceiveError::Closed));
    }
}

#[test]
fn rust_sends_no_faster_than_python_receives() {
    let host = start();
    let namespace = with(&host, ENDS);
    for (function, on_worker) in [("receive_all", false), ("receive_all_blocking", true)] {
        let (sender, receiver) = channel(3);
        for number in 0..3 {
            sender.try_send(number).unwrap();
        }
        assert_eq!(sender.try_send(3), Err(SendError::Full(3.into())));
        assert_eq!(sender.send_timeout(3, Duration::from_millis(1)), Err(SendError::Full(3.into())));
        let call = Call::new("__main__", function).arg(receiver);
        let reply = namespace.submit(if on_worker { call.on_worker() } else { call }).unwrap();
        for number in 3..500 {
            sender.send_timeout(number, LONG).unwrap();
        }
        for number in 500..1_000 {
            futures::executor::block_on(sender.send(number)).unwrap();
        }
        sender.close();
        assert_eq!(wait(reply).unwrap(), Value::list(0..1_000), "{function}");
        assert_eq!(sender.try_send(1), Err(SendError::Closed(1.into())));
    }
}

#[test]
fn a_closed_channel_raises_on_both_ends() {
    let host = start();
    let namespace = with(&host, ENDS);
    let (sender, receiver) = channel(3);
    sender.try_send("left").unwrap();
    let reply = namespace.create_task("__main__", "closes", (sender, receiver), ()).unwrap();
    let closed = "the channel is closed";
    let expected = (Value::list([closed, closed, closed]), true, true, Value::List(vec![]), true);
    // The value sent before closing is still received, so only three operations find the channel closed.
    assert_eq!(wait(reply).unwrap(), Value::from(expected));

    let (sender, receiver) = channel(1);
    let reply = namespace.create_task("__main__", "receive_all", (receiver,), ()).unwrap();
    drop(sender);
    assert_eq!(wait(reply).unwrap(), Value::List(vec![]), "iteration ends when there are no senders left");
    let (sender, receiver) = channel(1);
    drop(receiver);
    let reply = namespace.create_task("__main__", "send", (sender, 1), ()).unwrap();
    let Err(TaskError::Raised(exception)) = wait(reply) else { panic!() };
    assert_eq!(exception.type_name(), "pelton.ChannelClosed");
}

#[test]
fn a_channel_closes_when_python_drops_it_before_the_outcome_is_taken() {
    let host = start();
    let namespace = with(&host, ENDS);
    for (function, on_worker) in [("send", false), ("send_blocking", true)] {
        let (sender, receiver) = channel(4);
        let call = Call::new("__main__", function).arg(sender).keyword("count", 3);
        let reply = namespace.submit(if on_worker { call.on_worker() } else { call }).unwrap();
        until("the channel is closed", || receiver.is_closed());
        assert_eq!(receiver.len(), 3);
        wait(reply).unwrap();
    }
}

#[test]
fn blocking_is_refused_on_the_loop_and_times_out_in_a_thread() {
    let host = start();
    let namespace = with(
        &host,
        "
import pelton

def outcomes(sender, receiver, **timeout):
    found = []
    for function in (lambda: receiver.receive(**timeout), lambda: [sender.send(n, **timeout) for n in range(2)]):
        try:
            function()
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found

def makes():
    sender, receiver = pelton.channel(2)
    with sender:
        sender.send({'a': [1]})
        assert receiver and sender and len(receiver) == 1 and receiver.bound == 2
        assert receiver.try_receive() == {'a': [1]}
        assert receiver.try_receive() is None and receiver.try_receive('nothing') == 'nothing'
        assert receiver.receive.__doc__
    assert receiver.closed
    try: pelton.channel(0)
    except ValueError: return sender
",
    );
    let (sender, receiver) = channel(1);
    let run = |call: Call| wait(namespace.submit(call).unwrap()).unwrap();
    let call = || Call::new("__main__", "outcomes").args((sender.clone(), receiver.clone()));
    let refused = |what: &str, instead: &str| {
        let text = format!("{what} would block the event loop of this thread: await {instead}");
        Value::from(("RuntimeError", text))
    };
    let expected = Value::list([refused("Receiver.receive", "areceive"), refused("Sender.send", "asend")]);
    assert_eq!(run(call()), expected);
    receiver.try_receive().unwrap();
    let timed_out = |text: &str| Value::from(("TimeoutError", text));
    let expected = Value::list([timed_out("the channel is empty"), timed_out("the channel is full")]);
    assert_eq!(run(call().keyword("timeout", 0.001).on_worker()), expected);
    receiver.try_receive().unwrap();
    assert_eq!(run(call().keyword("timeout", 0)), expected, "a timeout of zero does not block the loop");

    let made: Sender = run(Call::new("__main__", "makes")).try_into().unwrap();
    assert!(made.is_closed(), "a channel end created in Python converts to Rust");
}

#[test]
fn a_blocked_thread_can_be_interrupted() {
    let host = start();
    let namespace = with(&host, ENDS);
    let (sender, receiver) = channel(1);
    let call = Call::new("__main__", "receive_all_blocking").arg(receiver).on_worker();
    let reply = namespace.submit(call).unwrap();
    sender.send_timeout(1, LONG).unwrap();
    until("the task has taken the argument", || sender.is_empty());
    until("it is interrupted", || reply.interrupt());
    let Err(TaskError::Raised(exception)) = wait(reply) else { panic!() };
    assert!(exception.type_name().ends_with("Interrupted"), "{exception}");
    until("the task has dropped its end", || sender.is_closed());
}

#[test]
fn no_value_is_lost_when_a_waiting_receiver_is_cancelled() {
    let host = start();
    let namespace = with(
        &host,
        "
seen = []

async def see(receiver):
    async for value in receiver:
        seen.append(value)
",
    );
    for round in 1..=200 {
        let (sender, receiver) = channel(1);
        let call = || Call::new("__main__", "see").arg(receiver.clone());
        let (one, other) = (namespace.submit(call()).unwrap(), namespace.submit(call()).unwrap());
        until("both wait", || host.stats()[0].waiting == 2);
        // One of them is woken for the value and one is cancelled, perhaps the same one.
        sender.try_send(round).unwrap();
        one.cancel();
        sender.close();
        let _ = wait(one);
        wait(other).unwrap();
        assert_eq!(wait(namespace.eval("len(seen)").unwrap()).unwrap(), Value::from(round), "each value is received");
    }
}

#[test]
fn every_value_is_received_exactly_once() {
    let host = start();
    let namespace = with(&host, ENDS);
    let (sender, receiver) = channel(8);
    let mut senders = Vec::new();
    for on_worker in [false, true] {
        let function = if on_worker { "send_blocking" } else { "send" };
        let call = Call::new("__main__", function).args((sender.clone(), 2_000));
        senders.push(namespace.submit(if on_worker { call.on_worker() } else { call }).unwrap());
    }
    let from_rust = std::thread::spawn({
        let sender = sender.clone();
        move || (2_000..4_000).for_each(|number| sender.send_timeout(number, LONG).unwrap())
    });
    drop(sender);
    let receivers = [
        namespace.submit(Call::new("__main__", "receive_all").arg(receiver.clone())).unwrap(),
        namespace.submit(Call::new("__main__", "receive_all_blocking").arg(receiver.clone()).on_worker()).unwrap(),
    ];
    let mut all: Vec<Value> = futures::executor::block_on(receiver.collect());
    for reply in receivers {
        all.extend(Vec::<Value>::try_from(wait(reply).unwrap()).unwrap());
    }
    from_rust.join().unwrap();
    senders.into_iter().for_each(|reply| drop(wait(reply).unwrap()));
    let numbers: Vec<i64> = all.iter().map(|value| value.as_int().unwrap()).collect();
    assert_eq!(numbers.len(), 6_000);
    assert_eq!(numbers.iter().collect::<HashSet<_>>().len(), 4_000);
}

#[test]
fn a_reactor_calls_back_for_each_value() {
    let host = start();
    let namespace = with(&host, ENDS);
    let (sender, receiver) = channel(4);
    let received = Arc::new(Mutex::new(Vec::new()));
    let kept = received.clone();
    let reply = namespace.create_task("__main__", "send", (sender, 100), ()).unwrap();
    let reactor_thread = std::thread::spawn(move || {
        let mut event_loop = Reactor::new().unwrap();
        let done = receiver.for_each(&mut event_loop, move |_, value| kept.lock().unwrap().push(value));
        event_loop.block_on(done).unwrap().unwrap();
    });
    wait(reply).unwrap();
    reactor_thread.join().unwrap();
    assert_eq!(Value::List(received.lock().unwrap().clone()), Value::list(0..100));
}
