//! Asks a Sentinel where the master is.

use std::rc::Rc;

use pelton::{Chunk, Connection, Endpoint, Io, Reactor, Reason};

use super::{Cause, Link, Role};
use crate::{Command, FromValue, Parser, Value};

/// The connection to a Sentinel. It ends with its answer.
pub(super) struct Scout<R> {
    link: Rc<Link<R>>,
    attempt: u64,
    parser: Parser,
    /// The password was sent, and its answer comes first.
    authenticating: bool,
    found: bool,
}

impl<R: Role> Scout<R> {
    pub(super) fn new(link: Rc<Link<R>>, attempt: u64) -> Scout<R> {
        let parser = Parser::new(link.options.limits);
        Scout { link, attempt, parser, authenticating: false, found: false }
    }

    fn answered(&mut self, io: &mut Io<'_>, answer: Value) {
        let master = match answer {
            Value::Error(error) => Err(format!("the Sentinel answers: {error}")),
            _ if std::mem::take(&mut self.authenticating) => return,
            Value::Null => Err("the Sentinel does not know this master".to_owned()),
            answer => endpoint(answer).ok_or_else(|| "the Sentinel's answer is not an address".to_owned()),
        };
        match master {
            Ok(master) => {
                self.found = true;
                io.close();
                self.link.connect_to_master(io.reactor(), self.attempt, &master);
            }
            Err(why) => io.close_with(Reason::layer(why)),
        }
    }
}

/// Reads the answer: a host and a port.
fn endpoint(answer: Value) -> Option<Endpoint> {
    let mut parts = Vec::<String>::from_value(answer).ok()?.into_iter();
    let (Some(host), Some(port), None) = (parts.next(), parts.next(), parts.next()) else { return None };
    (host, port.parse().ok()?).try_into().ok()
}

impl<R: Role> Connection for Scout<R> {
    fn opened(&mut self, io: &mut Io<'_>) {
        let Some(sentinels) = &self.link.options.sentinels else { return io.close() };
        let mut bytes = Vec::new();
        if let Some(password) = &sentinels.password {
            self.authenticating = true;
            Command::new("AUTH").args(sentinels.user.as_ref()).arg(password).write_to(&mut bytes);
        }
        Command::new("SENTINEL").arg("get-master-addr-by-name").arg(&sentinels.master).write_to(&mut bytes);
        // If it fails, the connection is closing, which `closed` reports.
        let _ = io.send(&bytes);
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let mut input = &chunk[..];
        while io.is_open() && !self.found {
            match self.parser.parse(&mut input) {
                Ok(Some(answer)) => self.answered(io, answer),
                Ok(None) => return,
                Err(error) => return io.close_with(Reason::layer(error)),
            }
        }
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        if !self.found {
            self.link.is_over(reactor, self.attempt, &format!("ask a Sentinel: {reason}"), Cause::Outage);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_host_and_a_port_are_an_endpoint() {
        let text = |text: &'static str| Value::Bytes(text.into());
        let answer = |parts: &[&'static str]| endpoint(Value::Array(parts.iter().map(|part| text(part)).collect()));
        assert_eq!(answer(&["127.0.0.1", "7"]).unwrap().to_string(), "127.0.0.1:7");
        assert_eq!(answer(&["::1", "7"]).unwrap().to_string(), "[::1]:7");
        assert_eq!(answer(&["master.example", "7"]).unwrap().to_string(), "master.example:7");
        let lies: [&[&'static str]; 7] =
            [&[], &["h"], &["h", "x"], &["h", "99999"], &["", "7"], &["h", "7", "7"], &["h/x", "7"]];
        assert!(lies.iter().all(|lie| answer(lie).is_none()));
        assert!(endpoint(Value::Int(7)).is_none());
    }
}
