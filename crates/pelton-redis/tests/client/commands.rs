//! Commands, their forms and their bounds.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use pelton::{Bytes, Exit, Reactor};
use pelton_redis::{Command, Error, Protocol, Value};
use pelton_testing::{On, RedisServer, block_on, count_faults, on_every_engine, run, run_until, run_with};

use super::{ask, open, options, ping, settled};

on_every_engine![callbacks_promises_and_tasks_get_their_answers_in_order, other_threads_get_answers];

fn callbacks_promises_and_tasks_get_their_answers_in_order(on: On) {
    let server = RedisServer::start(&[]);
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let mut reactor = on.reactor();
        let redis = open(&mut reactor, options(&server).protocol(protocol));
        let seen = Rc::new(RefCell::new(Vec::new()));
        for number in 0..100i64 {
            let (called, promised) = (seen.clone(), seen.clone());
            let set = Command::new("SET").arg(format!("key{number}")).arg(number);
            redis.call(&mut reactor, set, move |_, answer: Result<String, Error>| {
                assert_eq!(answer.as_deref(), Ok("OK"));
                called.borrow_mut().push(2 * number);
            });
            let get = Command::new("GET").arg(format!("key{number}"));
            redis.ask::<i64>(&mut reactor, get).done(move |_, answer| {
                assert_eq!(answer, Ok(number));
                promised.borrow_mut().push(2 * number + 1);
            });
        }
        run_until(&mut reactor, |_| seen.borrow().len() == 200);
        assert!(seen.borrow().is_sorted(), "{seen:?}");
        let client = redis.clone();
        let total = block_on(&mut reactor, async move {
            let mut total = 0;
            for number in 0..10i64 {
                total += client.query::<i64>(Command::new("GET").arg(format!("key{number}"))).await?;
            }
            client.query::<()>(Command::new("FLUSHALL")).await?;
            assert_eq!(client.query::<Option<Bytes>>(Command::new("GET").arg("key1")).await?, None);
            Ok::<_, Error>(total)
        });
        assert_eq!(total, Ok(45));
        let stats = redis.stats();
        assert_eq!((stats.connects, stats.in_flight, stats.answered), (1, 0, 212), "{stats:?}");
    }
}

fn other_threads_get_answers(on: On) {
    let server = RedisServer::start(&[]);
    let mut reactor = on.reactor();
    let redis = open(&mut reactor, options(&server)).sender();
    let total = run_with(&mut reactor, move || {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let redis = redis.clone();
                std::thread::spawn(move || {
                    let asked: Vec<_> = (0..100).map(|_| redis.ask::<i64>(Command::new("INCR").arg("n"))).collect();
                    asked.into_iter().map(|reply| reply.wait().unwrap().unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut numbers: Vec<i64> = threads
            .into_iter()
            .flat_map(|thread| {
                let numbers = thread.join().unwrap();
                assert!(numbers.is_sorted(), "each thread's commands run in its order");
                numbers
            })
            .collect();
        numbers.sort_unstable();
        numbers
    });
    assert_eq!(total, (1..=400).collect::<Vec<_>>());
}

#[test]
fn server_errors_are_typed_and_do_not_affect_other_commands() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server));
    ask::<()>(&mut reactor, &redis, Command::new("LPUSH").arg("list").arg(1)).unwrap();
    let wrong = redis.ask::<()>(&mut reactor, Command::new("INCR").arg("list"));
    let right = redis.ask::<String>(&mut reactor, ping());
    let Err(Error::Server(error)) = settled(&mut reactor, wrong) else { panic!("no error") };
    assert_eq!(error.code(), "WRONGTYPE");
    assert_eq!(settled(&mut reactor, right).as_deref(), Ok("PONG"));
    let found = ask::<i64>(&mut reactor, &redis, ping());
    assert_eq!(found, Err(Error::WrongType { expected: "an integer", found: "a status" }));
    assert_eq!(redis.stats().server_errors, 1);
}

#[test]
fn transactions_run_whole_or_not_at_all() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server));
    let commands =
        vec![Command::new("SET").arg("a").arg("text"), Command::new("INCR").arg("a"), Command::new("INCR").arg("b")];
    let before = redis.ask::<String>(&mut reactor, ping());
    let transaction = redis.transaction(&mut reactor, commands);
    let after = redis.ask::<i64>(&mut reactor, Command::new("INCR").arg("b"));
    let answers = settled(&mut reactor, transaction).unwrap();
    assert!(matches!(&answers[..], [Value::Status(_), Value::Error(_), Value::Int(1)]), "{answers:?}");
    assert_eq!(settled(&mut reactor, before).as_deref(), Ok("PONG"));
    assert_eq!(settled(&mut reactor, after), Ok(2));

    let commands = vec![Command::new("INCR").arg("b"), Command::new("NOSUCHCOMMAND")];
    let transaction = redis.transaction(&mut reactor, commands);
    let Err(Error::Server(error)) = settled(&mut reactor, transaction) else { panic!("no error") };
    assert!(error.text().contains("unknown command"), "{error}");
    assert_eq!(ask::<i64>(&mut reactor, &redis, Command::new("GET").arg("b")), Ok(2));

    let transaction = redis.transaction(&mut reactor, vec![Command::new("EXEC")]);
    assert!(matches!(settled(&mut reactor, transaction), Err(Error::Misplaced { command: "EXEC", .. })));
    let empty = redis.transaction(&mut reactor, vec![]);
    assert_eq!(settled(&mut reactor, empty), Ok(vec![]));
}

#[test]
fn commands_that_change_the_connection_are_refused() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server));
    for name in ["SUBSCRIBE", "MULTI", "select", "QUIT", "MONITOR"] {
        let refused = ask::<()>(&mut reactor, &redis, Command::new(name).arg("1"));
        assert!(matches!(refused, Err(Error::Misplaced { .. })), "{name}: {refused:?}");
    }
    let off = Command::new("CLIENT").arg("REPLY").arg("OFF");
    assert!(matches!(ask::<()>(&mut reactor, &redis, off), Err(Error::Misplaced { .. })));
    assert_eq!(ask::<String>(&mut reactor, &redis, ping()).as_deref(), Ok("PONG"));
}

#[test]
fn too_many_and_too_large_commands_are_refused_with_typed_errors() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server).in_flight(10).queued_bytes(1000));
    let promises: Vec<_> = (0..12).map(|_| redis.ask::<String>(&mut reactor, ping())).collect();
    let answers: Vec<_> = promises.into_iter().map(|promise| settled(&mut reactor, promise)).collect();
    assert!(answers[..10].iter().all(Result::is_ok), "{answers:?}");
    assert!(answers[10..].iter().all(|answer| *answer == Err(Error::Busy { command: "PING", waiting: 10, most: 10 })));
    let large = Command::new("SET").arg("k").arg(vec![0; 2000]);
    assert!(matches!(ask::<()>(&mut reactor, &redis, large), Err(Error::TooLarge { command: "SET", most: 1000, .. })));
    assert_eq!(redis.stats().refused, 3);
    assert_eq!(ask::<String>(&mut reactor, &redis, ping()).as_deref(), Ok("PONG"));
}

#[test]
fn bound_holds_for_other_threads_while_the_loop_does_not_turn() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server).in_flight(10)).sender();
    let mut replies: Vec<_> = (0..12).map(|_| redis.ask::<String>(ping())).collect();
    // The loop has not turned, and these are refused already.
    for reply in replies.split_off(10) {
        let answer = reply.try_take().expect("an answer at once").unwrap();
        assert_eq!(answer, Err(Error::Busy { command: "PING", waiting: 10, most: 10 }));
    }
    let answers = run_with(&mut reactor, move || {
        let answers = replies.into_iter().map(|reply| reply.wait().unwrap());
        answers.collect::<Result<Vec<_>, _>>()
    });
    assert_eq!(answers.unwrap().len(), 10);
}

#[test]
fn answers_that_wait_for_their_callbacks_count_as_in_flight() {
    let server = RedisServer::start(&[]);
    let mut reactor = pelton::Reactor::builder().ticks_per_turn(1).build().unwrap();
    let redis = open(&mut reactor, options(&server).in_flight(10));
    let called = Rc::new(RefCell::new(0));
    for _ in 0..10 {
        let called = called.clone();
        redis.call(&mut reactor, ping(), move |_, _: Result<(), Error>| *called.borrow_mut() += 1);
    }
    run_until(&mut reactor, |_| redis.stats().answered == 10);
    // All are answered, and at most a few callbacks have run: one per turn.
    assert!(*called.borrow() < 10);
    let waiting = 10 - *called.borrow();
    assert_eq!(redis.stats().in_flight, waiting);
    for _ in waiting..10 {
        redis.tell(&mut reactor, ping());
    }
    redis.tell(&mut reactor, ping());
    assert_eq!(redis.stats().refused, 1);
    run_until(&mut reactor, |_| redis.stats().in_flight == 0);
    assert_eq!(*called.borrow(), 10);
}

#[test]
fn large_values_come_back_unchanged() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server));
    let value: Bytes = pelton_testing::pattern(9_000_000).into();
    ask::<()>(&mut reactor, &redis, Command::new("SET").arg("large").arg(&value)).unwrap();
    let get = || Command::new("GET").arg("large");
    assert!(ask::<Bytes>(&mut reactor, &redis, get()).unwrap() == value);
    // With a limit on replies, the connection is given up, and the next one works.
    let limits = pelton_redis::Limits { bytes: 1 << 20, ..Default::default() };
    let careful = open(&mut reactor, options(&server).limits(limits));
    let refused = ask::<Bytes>(&mut reactor, &careful, get());
    let error = pelton_redis::ProtocolError::TooLarge(1 << 20);
    assert_eq!(refused, Err(Error::Protocol { command: "GET", error }));
    assert_eq!(ask::<String>(&mut reactor, &careful, ping()).as_deref(), Ok("PONG"));
    assert_eq!(careful.stats().connects, 2);
}

#[test]
fn callback_may_ask_close_and_panic() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let faults = count_faults(&mut reactor);
    let redis = open(&mut reactor, options(&server));
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (first, third, client) = (seen.clone(), seen.clone(), redis.clone());
    redis.call(&mut reactor, ping(), move |reactor, _: Result<(), Error>| {
        first.borrow_mut().push("first");
        let fourth = first.clone();
        client.clone().call(reactor, ping(), move |reactor, answer: Result<(), Error>| {
            assert_eq!(answer, Ok(()));
            fourth.borrow_mut().push("fourth");
            let last = fourth.clone();
            client.call(reactor, ping(), move |_, answer: Result<(), Error>| {
                assert!(matches!(answer, Err(Error::Interrupted { .. })), "{answer:?}");
                last.borrow_mut().push("interrupted");
            });
            client.close(reactor);
            client.call(reactor, ping(), move |_, answer: Result<(), Error>| {
                assert_eq!(answer, Err(Error::Closed { command: "PING" }));
                fourth.borrow_mut().push("closed");
            });
        });
    });
    redis.call(&mut reactor, ping(), |_, _: Result<(), Error>| panic!("a panic of a test"));
    redis.call(&mut reactor, ping(), move |_, _: Result<(), Error>| third.borrow_mut().push("third"));
    run_until(&mut reactor, |_| seen.borrow().len() == 5);
    assert_eq!(*seen.borrow(), ["first", "third", "fourth", "interrupted", "closed"]);
    assert_eq!(faults.get(), 1);
    assert_eq!(redis.stats().connects, 1);
}

#[test]
fn dropping_the_last_client_closes_the_connection() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server));
    assert!(ask::<()>(&mut reactor, &redis, ping()).is_ok());
    let sender = redis.sender();
    drop(redis);
    assert!(run_with(&mut reactor, move || sender.ask::<()>(ping()).wait()).unwrap().is_ok());
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
}

#[test]
fn draining_waits_for_answers_and_not_for_idle_connections() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server));
    assert!(ask::<()>(&mut reactor, &redis, ping()).is_ok());
    let answers = Rc::new(RefCell::new(Vec::new()));
    let (first, client) = (answers.clone(), redis.clone());
    let slow = Command::new("BLPOP").arg("nothing").arg(0.2);
    let hold = reactor.hold();
    redis.call(&mut reactor, slow, move |reactor, answer: Result<Value, Error>| {
        first.borrow_mut().push(answer);
        // The connection is idle and is closed. A command some time later opens it again.
        reactor.after(Duration::from_millis(50), move |reactor| {
            client.call(reactor, ping(), move |_, answer: Result<Value, Error>| {
                first.borrow_mut().push(answer);
                drop(hold);
            });
        });
    });
    reactor.drain(Duration::from_secs(15));
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(*answers.borrow(), [Ok(Value::Null), Ok(Value::Status("PONG".into()))]);
}

#[test]
fn draining_does_not_wait_for_a_server_that_says_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, super::quick(pelton_redis::Options::new(listener.local_addr().unwrap())));
    let accepted = run_with(&mut reactor, move || listener.accept().map(|accepted| (listener, accepted)));
    // Other work goes on for a while. Nothing needs the connection, so it is not made again.
    let hold = reactor.hold();
    reactor.after(Duration::from_millis(100), move |_| drop(hold));
    reactor.drain(Duration::from_secs(15));
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!((redis.stats().connects, redis.stats().outages), (0, 1));
    drop(accepted);
}

#[test]
fn stopped_loop_answers_nobody_and_leaks_nothing() {
    let server = RedisServer::start(&[]);
    let alive = Rc::new(());
    let sender = {
        let mut reactor = Reactor::new().unwrap();
        let redis = open(&mut reactor, options(&server));
        let counted = alive.clone();
        redis.call(&mut reactor, ping(), move |_, _: Result<(), Error>| drop(counted));
        let sender = redis.sender();
        reactor.stop();
        run(&mut reactor);
        sender
    };
    assert_eq!(Rc::strong_count(&alive), 1);
    assert!(sender.ask::<()>(ping()).wait().is_err(), "the reply is lost");
}
