//! Counts, times and logs the requests that a handler answers.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use pelton::{Io, Reactor};
use pelton_http::wire::Refusal;
use pelton_http::{Handler, Method, Request, Responder, Response};

use super::line::{self, Outcome, Subject};
use super::options::LogFormat;
use crate::service::access_log::Lines;

/// Status in the log for a request whose client disconnected before the response.
const CLIENT_WENT: u16 = 499;

/// Upper bounds of the histogram's buckets.
pub const BUCKETS: [Duration; 14] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(10),
];

/// The counts of one worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Answered requests, by the first digit of the status, from 2 to 5.
    pub answered: [u64; 4],
    /// Requests that were not answered, because the client disconnected or the handler panicked.
    pub unanswered: u64,
    pub in_flight: u64,
    /// Bytes of response bodies.
    pub bytes: u64,
    /// Requests in each bucket: slower than the previous bound, not slower than this one. The last bucket has no bound.
    pub times: [u64; BUCKETS.len() + 1],
    pub time: Duration,
}

impl Counts {
    fn took(&mut self, time: Duration) {
        let bucket = BUCKETS.iter().position(|bound| time <= *bound).unwrap_or(BUCKETS.len());
        self.times[bucket] += 1;
        self.time += time;
    }
}

/// State shared by a worker's handlers.
pub struct Watch {
    pub counts: RefCell<Counts>,
    log: Option<(Lines, LogFormat)>,
}

impl Watch {
    pub fn new(log: Option<(Lines, LogFormat)>) -> Watch {
        Watch { counts: RefCell::default(), log }
    }

    /// Queues the remaining lines of the log.
    pub fn finish(&self) {
        if let Some((lines, _)) = &self.log {
            lines.hand_on();
        }
    }

    /// Logs input that was refused before it could be parsed as a request.
    pub fn refused(&self, io: &mut Io<'_>, refusal: Refusal) {
        let Some((lines, format)) = &self.log else { return };
        let peer = io.peer_address().ok();
        lines.expect(io.reactor());
        lines.push(|text| {
            line::write_refusal(*format, peer.as_ref(), refusal.status, refusal.why, SystemTime::now(), text);
        });
    }
}

/// A handler whose requests are counted, timed and logged.
pub struct Watched<H> {
    pub inner: H,
    pub watch: Rc<Watch>,
}

impl<H: Handler> Handler for Watched<H> {
    fn handle(&self, reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
        self.watch.counts.borrow_mut().in_flight += 1;
        let subject = self.watch.log.as_ref().map(|(lines, _)| {
            lines.expect(reactor);
            Subject::new(&request, responder.peer_address(reactor).ok())
        });
        let head_only = request.method() == Method::Head;
        let mut exchange =
            Exchange { watch: self.watch.clone(), begun: Instant::now(), subject, head_only, answer: None };
        let responder = responder.before_sending(move |response| exchange.answered(response));
        self.inner.handle(reactor, request, responder);
    }
}

/// A request that is not answered yet.
struct Exchange {
    watch: Rc<Watch>,
    begun: Instant,
    subject: Option<Subject>,
    head_only: bool,
    /// Status, and length of the body.
    answer: Option<(u16, u64)>,
}

impl Exchange {
    fn answered(&mut self, response: &Response) {
        let has_body = !self.head_only && !matches!(response.status(), 204 | 304);
        let length = response.fields().content_length().unwrap_or_else(|| response.content().len());
        self.answer = Some((response.status(), if has_body { length } else { 0 }));
    }
}

/// Counts and logs the request when it ends, answered or not.
impl Drop for Exchange {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        let mut counts = self.watch.counts.borrow_mut();
        counts.in_flight -= 1;
        match self.answer {
            Some((status, bytes)) => {
                counts.answered[usize::from(status / 100).clamp(2, 5) - 2] += 1;
                counts.bytes += bytes;
                counts.took(took);
            }
            None => counts.unanswered += 1,
        }
        drop(counts);
        if let (Some(subject), Some((lines, format))) = (&self.subject, &self.watch.log) {
            let panicked = std::thread::panicking();
            let (status, bytes) = self.answer.unwrap_or((if panicked { 500 } else { CLIENT_WENT }, 0));
            let outcome = Outcome { status, bytes, took };
            lines.push(|text| subject.write(*format, outcome, SystemTime::now(), text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_in_their_buckets() {
        let mut counts = Counts::default();
        for time in [0, 50_000, 50_001, 1_000_000, 60_000_000_000] {
            counts.took(Duration::from_nanos(time));
        }
        assert_eq!((counts.times[0], counts.times[1], counts.times[4], counts.times[14]), (2, 1, 1, 1));
        assert_eq!(counts.times.iter().sum::<u64>(), 5);
        assert!(BUCKETS.is_sorted());
    }
}
