//! Jobs on a server that speaks the protocol of Redis, for workers on many machines.
//!
//! `scripts/` has one script per request, `codec.rs` their arguments and answers, and `bell.rs` waits for jobs. The time of all
//! leases and delays is the server's (`TIME`, and the idle time of pending entries), so clocks of workers may differ.

mod bell;
mod codec;
mod scripts;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use pelton::Reactor;
use pelton_redis::{Client, Command, Error as RedisError, Options, Value};

use self::bell::Bell;
use self::scripts::{ALL, Script};
use crate::Error;
use crate::store::{Listening, Request, Response, Ring, Store, Then};

pub(crate) struct RedisStore {
    inner: Rc<Inner>,
}

struct Inner {
    client: Client,
    options: Options,
    state: RefCell<Loading>,
}

struct Loading {
    /// The hashes of the scripts, once the server has them.
    hashes: Option<Rc<[String]>>,
    /// Requests that wait for the scripts, in order.
    waiting: VecDeque<Asked>,
    loading: bool,
}

struct Asked {
    request: Request,
    then: Then,
    /// How often the server did not know the script although it was loaded before.
    loads: u32,
}

/// A server that forgets scripts more often than this does not keep them at all.
const MOST_LOADS: u32 = 5;

/// A script that finds this many removes or moves no more at once, and is asked again.
const SCRIPT_STEP: u64 = 1000;

impl RedisStore {
    pub(crate) fn open(reactor: &mut Reactor, options: Options) -> Result<RedisStore, Error> {
        let client = Client::open(reactor, options.clone())?;
        let state = Loading { hashes: None, waiting: VecDeque::new(), loading: false };
        Ok(RedisStore { inner: Rc::new(Inner { client, options, state: RefCell::new(state) }) })
    }
}

impl Store for RedisStore {
    fn ask(&self, reactor: &mut Reactor, request: Request, then: Then) {
        self.inner.ask(reactor, Asked { request, then, loads: 0 });
    }

    fn listen(
        &self,
        reactor: &mut Reactor,
        queue: &str,
        heartbeat: Duration,
        ring: Ring,
    ) -> Result<Rc<dyn Listening>, Error> {
        Ok(Rc::new(Bell::hang(reactor, self.inner.options.clone(), queue, heartbeat, ring)?))
    }
}

impl Inner {
    fn ask(self: &Rc<Inner>, reactor: &mut Reactor, asked: Asked) {
        let hashes = self.state.borrow().hashes.clone();
        let Some(hashes) = hashes else {
            self.state.borrow_mut().waiting.push_back(asked);
            return self.load(reactor);
        };
        let command = asked.request.command(&hashes[Script::of(&asked.request).index]);
        let inner = self.clone();
        self.client.call::<Value>(reactor, command, move |reactor, answer| {
            inner.answered(reactor, asked, &hashes, answer);
        });
    }

    fn answered(
        self: &Rc<Inner>,
        reactor: &mut Reactor,
        asked: Asked,
        hashes: &Rc<[String]>,
        answer: Result<Value, RedisError>,
    ) {
        let Asked { request, then, loads } = asked;
        match answer {
            Err(RedisError::Server(error)) if error.code() == "NOSCRIPT" && loads < MOST_LOADS => {
                // The server was restarted, or another one has taken its place.
                let mut state = self.state.borrow_mut();
                if state.hashes.as_ref().is_some_and(|current| Rc::ptr_eq(current, hashes)) {
                    state.hashes = None;
                }
                drop(state);
                self.ask(reactor, Asked { request, then, loads: loads + 1 });
            }
            Err(RedisError::Server(error)) if error.code() == "FULL" => {
                let most = error.text().split(' ').nth(1).and_then(|most| most.parse().ok()).unwrap_or(0);
                then(reactor, Err(Error::Full { queue: request.queue().to_owned(), most }));
            }
            Err(error) => then(reactor, Err(error.into())),
            Ok(value) => match request.response(value) {
                Ok(Response::Count(SCRIPT_STEP)) if request.is_stepwise() => self.next_step(reactor, request, then),
                response => then(reactor, response),
            },
        }
    }

    /// Asks again, and adds up.
    fn next_step(self: &Rc<Inner>, reactor: &mut Reactor, request: Request, then: Then) {
        let sum = move |reactor: &mut Reactor, answer: Result<Response, Error>| {
            let answer = match answer {
                Ok(Response::Count(count)) => Ok(Response::Count(count + SCRIPT_STEP)),
                other => other,
            };
            then(reactor, answer);
        };
        self.ask(reactor, Asked { request, then: Box::new(sum), loads: 0 });
    }

    /// Loads the scripts, and then sends what waits for them.
    fn load(self: &Rc<Inner>, reactor: &mut Reactor) {
        if std::mem::replace(&mut self.state.borrow_mut().loading, true) {
            return;
        }
        let found = Rc::new(RefCell::new(Vec::new()));
        for script in ALL {
            let (inner, found) = (self.clone(), found.clone());
            let command = Command::new("SCRIPT").arg("LOAD").arg(script.source).idempotent();
            self.client.call::<String>(reactor, command, move |reactor, answer| {
                found.borrow_mut().push(answer);
                if found.borrow().len() == ALL.len() {
                    inner.loaded(reactor, found.take().into_iter().collect());
                }
            });
        }
    }

    fn loaded(self: &Rc<Inner>, reactor: &mut Reactor, hashes: Result<Vec<String>, RedisError>) {
        let mut state = self.state.borrow_mut();
        state.loading = false;
        let waiting = std::mem::take(&mut state.waiting);
        match hashes {
            Ok(hashes) => {
                state.hashes = Some(hashes.into());
                drop(state);
                for asked in waiting {
                    self.ask(reactor, asked);
                }
            }
            Err(error) => {
                drop(state);
                for Asked { then, .. } in waiting {
                    let error = error.clone();
                    reactor.next_tick(move |reactor| then(reactor, Err(error.into())));
                }
            }
        }
    }
}

impl Request {
    fn is_stepwise(&self) -> bool {
        matches!(self, Request::Purge { .. } | Request::Requeue { id: None, .. })
    }
}
