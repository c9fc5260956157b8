//! A key-value store with a line protocol, and a client, on one loop.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin key-value
//! storing on 127.0.0.1:40389
//! > set wheel pelton
//! < stored
//! > get wheel
//! < pelton
//! > get mill
//! < nothing
//! > fetch wheel
//! < error: set KEY VALUE, get KEY, or quit
//! > quit
//! < bye
//! ```
//!
//! A `Protocol` decides what to answer, and knows neither sockets nor line endings. A codec, `Lines`, handles those. `serve` and
//! `Framed` put both on a connection. A line that is too long closes the connection before it exhausts the memory.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::rc::Rc;

use pelton::codec::Lines;
use pelton::{Framed, Peer, Protocol, Reactor, Reason, Replies, serve};

/// The longest line. Everybody shares the store, so lines are kept short.
const LONGEST_LINE: usize = 1024;

/// One client's session. All sessions are on one thread, so their shared state needs no lock.
struct Session {
    store: Rc<RefCell<HashMap<String, String>>>,
    over: bool,
}

impl Session {
    fn answer(&mut self, line: &str) -> String {
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("set"), Some(key), Some(value)) => {
                self.store.borrow_mut().insert(key.to_owned(), value.to_owned());
                "stored".to_owned()
            }
            (Some("get"), Some(key), None) => {
                self.store.borrow().get(key).cloned().unwrap_or_else(|| "nothing".to_owned())
            }
            (Some("quit"), None, None) => {
                self.over = true;
                "bye".to_owned()
            }
            _ => "error: set KEY VALUE, get KEY, or quit".to_owned(),
        }
    }
}

impl Protocol for Session {
    type Message = String;

    fn process(&mut self, line: String, replies: &mut Replies<String>) {
        replies.send(self.answer(&line));
    }

    fn should_close(&self) -> bool {
        self.over
    }
}

/// Asks one question after another.
struct Client {
    questions: std::vec::IntoIter<&'static str>,
    over: Rc<RefCell<bool>>,
}

impl Client {
    fn ask(&mut self, replies: &mut Replies<String>) {
        if let Some(question) = self.questions.next() {
            println!("> {question}");
            replies.send(question.to_owned());
        }
    }
}

impl Protocol for Client {
    type Message = String;

    fn opened(&mut self, _: &Peer<String>, replies: &mut Replies<String>) {
        self.ask(replies);
    }

    fn process(&mut self, answer: String, replies: &mut Replies<String>) {
        println!("< {answer}");
        self.ask(replies);
    }

    fn closed(&mut self, _: &Reason) {
        *self.over.borrow_mut() = true;
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut reactor = Reactor::new()?;
    let store = Rc::new(RefCell::new(HashMap::new()));
    let lines = || Lines::new().limit(LONGEST_LINE);
    let session = move || Session { store: store.clone(), over: false };
    let listener = reactor.listen("127.0.0.1:0", serve(lines, session))?;
    let address = reactor.listening_on(listener).ok_or("it listens")?.clone();
    println!("storing on {address}");

    let over = Rc::new(RefCell::new(false));
    let questions = vec!["set wheel pelton", "get wheel", "get mill", "fetch wheel", "quit"].into_iter();
    reactor.connect(&address, Framed::new(lines(), Client { questions, over: over.clone() }))?;
    reactor.run_until(|_| *over.borrow())?;
    Ok(())
}
