//! Tests against aiohttp's client. `python/aiohttp_peer.py` makes the requests and checks the answers.
//!
//! `cargo xtask test` installs aiohttp in an environment below the target directory. Without it, these tests fail and say how to
//! install it.

mod common;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use common::tree::{Tree, settled};
use common::{On, Serve, on_every_engine};
use pelton::Reactor;
use pelton_http::{
    BodyEvent, Event, EventStream, Files, Handler, Request, Responder, Response, ResponseStream, Router, SendState,
    plain,
};

on_every_engine![
    aiohttp_keeps_connections_and_sends_bodies,
    aiohttp_reads_streams_and_events_as_they_arrive,
    aiohttp_gets_files_ranges_and_compressed_files,
    aiohttp_makes_many_requests_at_once,
];

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/aiohttp_peer.py");

/// A Python interpreter with aiohttp.
fn python() -> PathBuf {
    // Tests' temporary directory is below the target directory.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("peers/bin/python3");
    assert!(
        python.exists(),
        "this test needs aiohttp; `cargo xtask test --only tools` installs it as {}",
        python.display()
    );
    python
}

fn talk(on: On, scenarios: &[&str]) {
    let (python, tree) = (python(), Tree::new());
    let mut site = on.serve(site(&tree));
    let port = site.address.rsplit(':').next().unwrap_or_default().to_owned();
    let arguments = [&[SCRIPT, &port, tree.path().to_str().unwrap()], scenarios].concat();
    assert_eq!(site.run_program(&python, &arguments, Vec::new()), "fine\n");
}

fn aiohttp_keeps_connections_and_sends_bodies(on: On) {
    talk(on, &["keep_alive", "uploads"]);
}

fn aiohttp_reads_streams_and_events_as_they_arrive(on: On) {
    talk(on, &["streams", "events"]);
}

fn aiohttp_gets_files_ranges_and_compressed_files(on: On) {
    talk(on, &["files", "compressed"]);
}

fn aiohttp_makes_many_requests_at_once(on: On) {
    talk(on, &["parallel"]);
}

fn site(tree: &Tree) -> impl Handler {
    let steps: Rc<RefCell<Option<ResponseStream>>> = Rc::default();
    let (begin, step, end) = (steps.clone(), steps.clone(), steps);
    let listeners: Rc<Cell<usize>> = Rc::default();
    let count_of = listeners.clone();
    let files = Files::with_settings(tree.path(), settled()).unwrap();
    Router::new()
        .get("/users/{id}", plain(|request| format!("{}\n", request.parameter("id").unwrap_or_default())))
        .delete("/users/{id}", plain(|_| Response::new(204)))
        .get("/old", plain(|_| Response::redirect(301, "/users/new")))
        .post("/measure", measure)
        .post("/forbidden", plain(|_| Response::plain_status(403)))
        .post("/little", little)
        .get("/later/{id}", later)
        .get("/steps", move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
            *begin.borrow_mut() = Some(responder.stream(reactor, Response::text("")));
        })
        .post("/step", move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
            let steps = step.clone();
            request.body().collect(reactor, move |reactor, body| {
                let line = format!("step {}\n", String::from_utf8(body.unwrap()).unwrap());
                steps.borrow().as_ref().unwrap().send(reactor, line).unwrap();
                responder.respond(reactor, "sent\n");
            });
        })
        .post("/end", move |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
            end.take().unwrap().finish(reactor);
            responder.respond(reactor, "sent\n");
        })
        .get("/count", |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
            let stream = responder.stream(reactor, Response::text(""));
            count(reactor, stream, 0);
        })
        .get("/cut", |reactor: &mut Reactor, _: Request<'_>, responder: Responder| {
            responder.stream(reactor, Response::text("")).send(reactor, "some").unwrap();
        })
        .get("/events", move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
            tell_news(reactor, request, responder, &listeners);
        })
        .get("/listeners", plain(move |_| format!("{}\n", count_of.get())))
        .fallback(files)
}

/// Answers with the length and the sum of the body, without storing it.
fn measure(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    let (mut length, mut sum) = (0, 0);
    let mut responder = Some(responder);
    request.body().limit(10_000_000).read(reactor, move |reactor, event| match event {
        BodyEvent::Data(data) => {
            length += data.len();
            sum += data.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        }
        BodyEvent::End(_) => responder.take().unwrap().respond(reactor, format!("{length} {sum}\n")),
        BodyEvent::Failed(error) => responder.take().unwrap().respond(reactor, error.response()),
    });
}

fn little(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    request.body().limit(1000).collect(reactor, |reactor, body| {
        responder.respond(reactor, body.map_or_else(|error| error.response(), |_| Response::text("little\n")));
    });
}

fn later(reactor: &mut Reactor, request: Request<'_>, responder: Responder) {
    let answer = format!("{}\n", request.parameter("id").unwrap_or_default());
    reactor.after(Duration::from_millis(1), |reactor| responder.respond(reactor, answer));
}

/// Sends while the client reads.
fn count(reactor: &mut Reactor, stream: ResponseStream, mut number: u32) {
    while number < 200_000 {
        match stream.send(reactor, format!("{number}\n")) {
            Ok(SendState::Ready) => number += 1,
            Ok(SendState::Full) => {
                return stream.when_ready(reactor, move |reactor, stream| count(reactor, stream, number + 1));
            }
            Err(_) => return,
        }
    }
    stream.finish(reactor);
}

/// Sends an event at intervals, starting after the one that the client saw last.
fn tell_news(reactor: &mut Reactor, request: Request<'_>, responder: Responder, listeners: &Rc<Cell<usize>>) {
    let last = request.header("Last-Event-ID").and_then(|id| std::str::from_utf8(id).ok());
    let mut number: u32 = last.and_then(|id| id.parse().ok()).unwrap_or_default();
    let stream = EventStream::start(reactor, responder);
    stream.comment(reactor, "news from here").unwrap();
    listeners.set(listeners.get() + 1);
    let ticking = Rc::new(Cell::new(None));
    let (gone, timer) = (listeners.clone(), ticking.clone());
    stream.on_gone(reactor, move |reactor| {
        gone.set(gone.get() - 1);
        reactor.cancel(timer.take().unwrap());
    });
    ticking.set(Some(reactor.every(Duration::from_millis(2), move |reactor, _| {
        number += 1;
        let event = Event::new("two\nlines").name("news").id(&number.to_string());
        // A disconnected client is handled above.
        let _ = stream.send(reactor, &event);
    })));
}
