//! Waits for jobs, on a connection of its own: `BLPOP` blocks without polling, and wakes one idle worker per ring.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use pelton::Reactor;
use pelton_redis::{Client, Command, Options, Value};

use super::codec::prefix;
use crate::Error;
use crate::store::{Listening, Ring};

/// Rings until it is dropped.
pub(super) struct Bell {
    inner: Rc<Inner>,
}

struct Inner {
    /// `None` once it is dropped. That closes the connection, and the answer that is waited for is an error.
    client: RefCell<Option<Client>>,
    key: String,
    period: Duration,
    ring: Ring,
    /// The server was asked, and has not answered.
    waiting: Cell<bool>,
}

/// A server that does not answer is asked again after this time.
const RETRY: Duration = Duration::from_millis(200);

/// How much later than promised the server may answer.
const SLACK: Duration = Duration::from_secs(5);

impl Bell {
    pub(super) fn hang(
        reactor: &mut Reactor,
        options: Options,
        queue: &str,
        period: Duration,
        ring: Ring,
    ) -> Result<Bell, Error> {
        let client = Client::open(reactor, options)?;
        let key = format!("{}bell", prefix(queue));
        let inner = Rc::new(Inner { client: RefCell::new(Some(client)), key, period, ring, waiting: Cell::new(false) });
        Ok(Bell { inner })
    }
}

impl Listening for Bell {
    fn wait(&self, reactor: &mut Reactor) {
        self.inner.wait(reactor);
    }

    fn pass_on(&self, reactor: &mut Reactor) {
        if let Some(client) = &*self.inner.client.borrow() {
            client.tell(reactor, Command::new("LPUSH").arg(&self.inner.key).arg(1));
        }
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        drop(self.inner.client.borrow_mut().take());
    }
}

impl Inner {
    fn wait(self: &Rc<Inner>, reactor: &mut Reactor) {
        let Some(client) = self.client.borrow().clone() else { return };
        if self.waiting.replace(true) {
            return;
        }
        let command = Command::new("BLPOP").arg(&self.key).arg(self.period.as_secs_f64());
        let command = command.time_limit(self.period + SLACK);
        let inner = self.clone();
        client.call::<Value>(reactor, command, move |reactor, answer| {
            inner.waiting.set(false);
            if inner.client.borrow().is_none() {
                return;
            }
            match answer {
                Ok(Value::Null) => inner.wait(reactor),
                Ok(_) => (inner.ring)(reactor),
                Err(_) => {
                    // A ring may have been lost with the connection.
                    let again = inner.clone();
                    reactor.after(RETRY, move |reactor| {
                        if again.client.borrow().is_some() {
                            again.wait(reactor);
                            (again.ring)(reactor);
                        }
                    });
                }
            }
        });
    }
}
