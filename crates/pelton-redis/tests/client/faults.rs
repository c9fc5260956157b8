//! A real server that is killed, frozen, full, read-only, or behind a network that cuts connections.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pelton::{EventLoop, Reactor};
use pelton_redis::{Client, Command, Error, Options};
use pelton_testing::{CuttingProxy, RedisServer, run_until};

use super::{ask, open, options, ping, quick, settled};

/// A command that does not return while the server lives.
fn block() -> Command {
    Command::new("BLPOP").arg("nothing").arg(0)
}

#[test]
fn killed_server_interrupts_commands_and_is_found_again() {
    for persistent in [false, true] {
        let arguments: &[&str] = if persistent { &["--appendonly", "yes", "--appendfsync", "always"] } else { &[] };
        let mut server = RedisServer::start(arguments);
        let mut reactor = Reactor::new().unwrap();
        let redis = open(&mut reactor, options(&server));
        let set = Command::new("SET").arg("k").arg("v");
        ask::<()>(&mut reactor, &redis, set).unwrap();
        let interrupted = redis.ask::<()>(&mut reactor, block());
        let again = redis.ask::<Option<String>>(&mut reactor, Command::new("GET").arg("k").idempotent());
        run_until(&mut reactor, |_| redis.stats().sent == 3);
        pelton_testing::poll(&mut reactor);
        server.kill();
        let interrupted = settled(&mut reactor, interrupted);
        assert!(matches!(&interrupted, Err(Error::Interrupted { command: "BLPOP", .. })), "{interrupted:?}");
        assert!(interrupted.unwrap_err().may_have_run());
        server.restart();
        let expected = persistent.then(|| "v".to_owned());
        assert_eq!(settled(&mut reactor, again), Ok(expected), "persistent: {persistent}");
        assert_eq!(redis.stats().connects, 2);
    }
}

#[test]
fn frozen_server_makes_commands_fail_in_time_and_answers_after_it_thaws() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server).time_limit(Duration::from_millis(300)));
    assert!(ask::<()>(&mut reactor, &redis, ping()).is_ok());
    server.freeze();
    let started = std::time::Instant::now();
    let answer = ask::<()>(&mut reactor, &redis, ping());
    assert_eq!(answer, Err(Error::TimedOut { command: "PING", limit: Duration::from_millis(300) }));
    assert!(started.elapsed() >= Duration::from_millis(300));
    // The connection was given up. Later commands cannot be sent.
    let answer = ask::<()>(&mut reactor, &redis, ping());
    assert!(matches!(answer, Err(Error::Unavailable { .. } | Error::TimedOut { .. })), "{answer:?}");
    server.thaw();
    run_until(&mut reactor, |_| redis.stats().connects >= 2);
    let patient = Command::new("ECHO").arg("hello").time_limit(Duration::from_secs(15));
    assert_eq!(ask::<String>(&mut reactor, &redis, patient).as_deref(), Ok("hello"));
}

#[test]
fn late_answers_are_not_taken_for_those_of_other_commands() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    // The limit of the connection is long, so it is kept although a command is late.
    let redis = open(&mut reactor, options(&server));
    let slow = Command::new("BLPOP").arg("nothing").arg(0.3).time_limit(Duration::from_millis(50));
    let slow = redis.ask::<()>(&mut reactor, slow);
    let echo = redis.ask::<String>(&mut reactor, Command::new("ECHO").arg("mine"));
    assert!(matches!(settled(&mut reactor, slow), Err(Error::TimedOut { command: "BLPOP", .. })));
    assert_eq!(settled(&mut reactor, echo).as_deref(), Ok("mine"));
    assert_eq!(redis.stats().connects, 1);
}

#[test]
fn full_and_read_only_servers_answer_with_typed_errors() {
    let server = RedisServer::start(&[]);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, options(&server));
    let config = |name: &'static str, value: &'static str| Command::new("CONFIG").arg("SET").arg(name).arg(value);
    let code = |answer: Result<(), Error>| match answer {
        Err(Error::Server(error)) => error.code().to_owned(),
        other => panic!("{other:?}"),
    };
    ask::<()>(&mut reactor, &redis, config("maxmemory", "1")).unwrap();
    let set = || Command::new("SET").arg("k").arg("v");
    assert_eq!(code(ask(&mut reactor, &redis, set())), "OOM");
    ask::<()>(&mut reactor, &redis, config("maxmemory", "0")).unwrap();
    assert_eq!(ask::<()>(&mut reactor, &redis, set()), Ok(()));
    // A replica of nobody.
    ask::<()>(&mut reactor, &redis, Command::new("REPLICAOF").arg("127.0.0.1").arg(1)).unwrap();
    assert_eq!(code(ask(&mut reactor, &redis, set())), "READONLY");
    ask::<()>(&mut reactor, &redis, Command::new("REPLICAOF").arg("NO").arg("ONE")).unwrap();
    assert_eq!(ask::<()>(&mut reactor, &redis, set()), Ok(()));
}

/// The answers that have arrived, by command.
type Answers = Rc<RefCell<Vec<Option<Result<String, Error>>>>>;

/// Runs this many commands through connections that are cut at random bytes, and returns the answers.
fn through_cuts(seed: u64, commands: u32, make: impl Fn(u32) -> Command + 'static) -> Vec<Result<String, Error>> {
    let server = RedisServer::start(&[]);
    let proxy = CuttingProxy::start(server.socket(), seed);
    let mut reactor = Reactor::new().unwrap();
    let redis = open(&mut reactor, quick(Options::new(proxy.address())));
    let answers = Rc::new(RefCell::new(vec![None; commands as usize]));
    let next = Rc::new(Cell::new(0));
    let make = Rc::new(make);
    for _ in 0..8 {
        ask_next(&mut reactor, &redis, &next, &answers, &make);
    }
    run_all(&mut reactor, &answers);
    assert!(redis.stats().connects > 3, "seed {seed}: {:?}", redis.stats());
    let answers = answers.take();
    answers.into_iter().map(Option::unwrap).collect()
}

fn run_all(reactor: &mut EventLoop, answers: &Answers) {
    run_until(reactor, |_| answers.borrow().iter().all(Option::is_some));
}

fn ask_next<F: Fn(u32) -> Command + 'static>(
    reactor: &mut Reactor,
    redis: &Client,
    next: &Rc<Cell<u32>>,
    answers: &Answers,
    make: &Rc<F>,
) {
    let number = next.get();
    if number as usize >= answers.borrow().len() {
        return;
    }
    next.set(number + 1);
    let (client, next, answers, make) = (redis.clone(), next.clone(), answers.clone(), make.clone());
    let command = make(number);
    redis.call(reactor, command, move |reactor, answer| {
        let previous = answers.borrow_mut()[number as usize].replace(answer);
        assert!(previous.is_none(), "command {number} was answered twice");
        ask_next(reactor, &client, &next, &answers, &make);
    });
}

#[test]
fn connections_cut_at_random_bytes_never_mix_up_answers() {
    for seed in 0..3 {
        let answers = through_cuts(seed, 400, |number| Command::new("ECHO").arg(format!("answer {number}")));
        let mut interrupted = 0;
        for (number, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(text) => assert_eq!(text, format!("answer {number}"), "seed {seed}"),
                Err(Error::Interrupted { .. }) => interrupted += 1,
                Err(error) => panic!("seed {seed}, command {number}: {error}"),
            }
        }
        assert!(interrupted > 0, "seed {seed}");
        // Idempotent commands are sent until they are answered.
        let answers =
            through_cuts(seed, 200, |number| Command::new("ECHO").arg(format!("again {number}")).idempotent());
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer, Ok(format!("again {number}")), "seed {seed}");
        }
    }
}
