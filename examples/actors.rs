//! A server that processes requests with actors on a thread pool, and two clients.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin actors
//! factoring on 127.0.0.1:40389
//! patient  > 10000004400000259
//! hasty    > 12
//! hasty    > 97
//! hasty    > water
//! hasty    < 12 = 2 * 2 * 3
//! hasty    < 97 = 97
//! hasty    < error: water is not a number: invalid digit found in string
//! patient  < 10000004400000259 = 100000007 * 100000037
//! the pool received 7 messages in 7 turns
//! ```
//!
//! The protocol is an ordinary one. `serve(codec, protocol)` would run it on the loop, where one client's large number
//! would delay the other client. `.on(&pool)` makes each connection an actor: whichever worker is free processes its requests
//! one at a time, in order. The pool ends with the loop.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use pelton::codec::Lines;
use pelton::{Framed, Peer, Pool, Protocol, Reactor, Reason, Replies, Service, serve};

/// Factors numbers.
struct Factors;

impl Protocol for Factors {
    type Message = String;

    fn process(&mut self, line: String, replies: &mut Replies<String>) {
        replies.send(match line.parse() {
            Ok(number) => {
                let factors: Vec<String> = factors(number).iter().map(u64::to_string).collect();
                format!("{number} = {}", factors.join(" * "))
            }
            Err(error) => format!("error: {line} is not a number: {error}"),
        });
    }
}

/// Trial division. Slow for large numbers, so not for the loop.
fn factors(mut number: u64) -> Vec<u64> {
    let mut found = Vec::new();
    let mut candidate = 2;
    while candidate * candidate <= number {
        while number.is_multiple_of(candidate) {
            found.push(candidate);
            number /= candidate;
        }
        candidate += 1;
    }
    found.push(number);
    found
}

/// Sends all questions at once, and ends when all are answered.
struct Client {
    name: &'static str,
    questions: &'static [&'static str],
    answers: usize,
    at_work: Rc<Cell<usize>>,
}

impl Protocol for Client {
    type Message = String;

    fn opened(&mut self, _: &Peer<String>, replies: &mut Replies<String>) {
        for question in self.questions {
            println!("{:8} > {question}", self.name);
            replies.send((*question).to_owned());
        }
    }

    fn process(&mut self, answer: String, _: &mut Replies<String>) {
        println!("{:8} < {answer}", self.name);
        self.answers += 1;
    }

    fn should_close(&self) -> bool {
        self.answers == self.questions.len()
    }

    fn closed(&mut self, _: &Reason) {
        self.at_work.set(self.at_work.get() - 1);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let pool = Pool::builder().workers(2).name("factors").build()?;
    reactor.shut_down_at_end(&pool, Duration::from_secs(5));
    let listener = reactor.listen("127.0.0.1:0", serve(Lines::new, || Factors).on(&pool))?;
    let address = reactor.listening_on(listener).ok_or("it listens")?.clone();
    println!("factoring on {address}");

    let clients: [(&str, &[&str]); 2] = [("patient", &["10000004400000259"]), ("hasty", &["12", "97", "water"])];
    let at_work = Rc::new(Cell::new(clients.len()));
    for (name, questions) in clients {
        let client = Client { name, questions, answers: 0, at_work: at_work.clone() };
        reactor.connect(&address, Framed::new(Lines::new(), client))?;
    }
    reactor.run_until(|_| at_work.get() == 0)?;
    reactor.stop();
    reactor.run()?;
    let stats = pool.stats();
    println!("the pool received {} messages in {} turns", stats.messages, stats.turns);
    Ok(())
}
