//! Servers that lie: every answer of a wrong type, too long, too many, is an error and never a panic.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use pelton::Reactor;
use pelton_jobs::{Error, Job, Jobs, Limits, State};
use pelton_redis::{Options, Protocol};
use pelton_testing::run_until;

use crate::{keep_runs, queue, settled};

/// A server that loads scripts, and answers all of them with these bytes.
fn liar(answer: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        // The threads end with the process.
        for client in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            thread::spawn(move || serve(client, &answer));
        }
    });
    address
}

fn serve(mut client: std::net::TcpStream, answer: &[u8]) -> Option<()> {
    let mut input = Vec::new();
    loop {
        while let Some((words, used)) = command(&input) {
            input.drain(..used);
            match words.first()?.as_slice() {
                b"SCRIPT" => client.write_all(b"$40\r\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n").ok()?,
                b"EVALSHA" => client.write_all(answer).ok()?,
                // No bell rings.
                b"BLPOP" => {}
                _ => client.write_all(b"+OK\r\n").ok()?,
            }
        }
        let mut bytes = [0; 4096];
        let count = client.read(&mut bytes).ok().filter(|count| *count > 0)?;
        input.extend_from_slice(&bytes[..count]);
    }
}

/// Returns the words of the first command, and its length.
fn command(input: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let line = |from: usize| {
        let end = from + input.get(from..)?.windows(2).position(|two| two == b"\r\n")?;
        let number: usize = std::str::from_utf8(&input[from + 1..end]).ok()?.parse().ok()?;
        Some((number, end + 2))
    };
    let (count, mut at) = line(0)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let (length, start) = line(at)?;
        words.push(input.get(start..start + length)?.to_vec());
        at = start + length + 2;
        input.get(at - 1)?;
    }
    Some((words, at))
}

#[test]
fn answers_that_make_no_sense_are_errors() {
    let job = "*9\r\n$2\r\nid\r\n$1\r\np\r\n$0\r\n\r\n:1\r\n$1\r\n5\r\n:3\r\n:1\r\n:1\r\n$0\r\n\r\n";
    let lies: Vec<Vec<u8>> = vec![
        b"$-1\r\n".to_vec(),
        b":-5\r\n".to_vec(),
        b":9223372036854775807\r\n".to_vec(),
        b"+OK\r\n".to_vec(),
        b"*0\r\n".to_vec(),
        b"*2\r\n$-1\r\n$-1\r\n".to_vec(),
        b"*2\r\n*0\r\n*0\r\n".to_vec(),
        b"*2\r\n$3\r\n\xff\xfe\xfd\r\n:7\r\n".to_vec(),
        b"*2\r\n:-1\r\n*1\r\n*1\r\n:1\r\n".to_vec(),
        // More jobs than the worker has room for.
        format!("*2\r\n:-1\r\n*40\r\n{}", job.repeat(40)).into_bytes(),
        // An attempt that is no number of attempts, and a run without a number.
        b"*2\r\n:-1\r\n*1\r\n*9\r\n$2\r\nid\r\n$1\r\np\r\n$0\r\n\r\n:99999999999\r\n$1\r\nx\r\n:3\r\n:1\r\n:1\r\n$0\r\n\r\n".to_vec(),
        b"*2\r\n$4\r\nst\r\n\r\n$1\r\nz\r\n".to_vec(),
        b"-ERR \x1b[2J nonsense\r\n".to_vec(),
        b"-NOSCRIPT\r\n".to_vec(),
        b"-FULL many\r\n".to_vec(),
        b"*1000000\r\n".to_vec(),
    ];
    for lie in lies {
        let mut reactor = Reactor::new().unwrap();
        let options = Options::new(liar(lie.clone())).protocol(Protocol::Resp2).time_limit(Duration::from_millis(300));
        let jobs = Jobs::open_redis(&mut reactor, options).unwrap();
        let (worker, runs) = keep_runs(&mut reactor, &jobs, queue().lease(Duration::from_millis(100)));
        let shown = lie.escape_ascii().to_string();
        let nonsense = |result: Result<(), Error>| {
            if let Err(error) = result {
                assert!(!error.to_string().contains('\x1b'), "{shown}: {error}");
            }
        };
        let asked = jobs.enqueue(&mut reactor, "q", Job::new("x"));
        nonsense(settled(&mut reactor, asked).map(drop));
        let id = "id".parse().unwrap();
        let asked = jobs.inspect(&mut reactor, "q", &id);
        nonsense(settled(&mut reactor, asked).map(drop));
        let asked = jobs.list(&mut reactor, "q", State::Dead, 0, 10);
        nonsense(settled(&mut reactor, asked).map(drop));
        let asked = jobs.stats(&mut reactor, "q");
        assert!(settled(&mut reactor, asked).is_err(), "{shown}");
        let asked = jobs.cancel(&mut reactor, "q", &id);
        nonsense(settled(&mut reactor, asked).map(drop));
        let asked = jobs.configure(&mut reactor, "q", Limits::default());
        nonsense(settled(&mut reactor, asked).map(drop));
        let asked = jobs.queues(&mut reactor);
        nonsense(settled(&mut reactor, asked).map(drop));
        run_until(&mut reactor, |_| worker.stats().errors > 0);
        assert!(runs.borrow().is_empty(), "{shown}");
    }
}
