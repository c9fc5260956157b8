//! Handlers that answer later, in every supported way, on every engine.

mod common;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::{DEADLINE, On, Serve, on_every_engine, statuses};
use pelton::{Lane, LaneSettings, Pool, Reactor, task};
use pelton_http::{
    Handler, KeptRequest, RemoteResponder, Request, Responder, Response, Settings, deferred, pooled, promised, spawned,
};

on_every_engine![
    every_kind_echoes_the_request,
    slow_responses_are_sent_in_order,
    disconnecting_client_cancels_the_task,
    disconnecting_client_makes_the_promise_unwanted,
    disconnecting_client_cancels_deferred_work,
    a_half_close_cancels_nothing,
    failures_send_500_and_affect_no_other_request,
    full_lanes_and_ended_pools_send_503,
    dropped_remote_responder_sends_500,
    a_kept_request_has_no_body,
];

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn told(request: &KeptRequest, body: &[u8]) -> String {
    format!("{} {}\n", request.get().path(), String::from_utf8_lossy(body))
}

fn every_kind_echoes_the_request(on: On) {
    let pool = Pool::builder().workers(2).build().unwrap();
    let kinds: [(&str, Box<dyn Handler>); 4] = [
        ("spawned", Box::new(spawned(|request, body| async move { told(&request, &body.bytes().await.unwrap()) }))),
        (
            "promised",
            Box::new(promised(|reactor, request| {
                let kept = request.keep();
                request.body().collected(reactor).map(move |body| told(&kept, &body))
            })),
        ),
        ("deferred", Box::new(deferred(Lane::Cpu, |request, body| told(&request, &body)))),
        ("pooled", Box::new(pooled(&pool, |request, body| told(&request, &body)))),
    ];
    for (kind, handler) in kinds {
        let answer = on.serve(handler).ask(post("/one", "water") + &post("/two", "wheel"));
        assert_eq!(statuses(&answer), [200, 200], "{kind}");
        assert!(answer.contains("/one water\n") && answer.ends_with("/two wheel\n"), "{kind}: {answer}");
    }
}

fn slow_responses_are_sent_in_order(on: On) {
    // Earlier requests are answered more slowly.
    let handler = spawned(|request, _| async move {
        let number: u64 = request.get().path()[1..].parse().unwrap();
        task::sleep(Duration::from_millis(20 - number * 2)).await;
        format!("number {number}\n")
    });
    let requests: String = (0..10).map(|number| format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
    let answer = on.serve(handler).ask(requests);
    let order: Vec<&str> = answer.lines().filter(|line| line.starts_with("number")).collect();
    assert_eq!(order, (0..10).map(|number| format!("number {number}")).collect::<Vec<_>>());
}

/// Sets a flag when it is dropped.
struct Dropped(Rc<Cell<bool>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// Sends a request, and resets the connection once `asked` returns true: the handler was called.
fn ask_and_go(site: &mut common::Site, mut asked: impl FnMut() -> bool) {
    let client = site.run(|address| {
        let mut client = common::Client::connect(&address);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client
    });
    site.run_until(|_| asked());
    client.reset();
}

fn disconnecting_client_cancels_the_task(on: On) {
    let (begun, cancelled) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (begin, cancel) = (begun.clone(), cancelled.clone());
    let mut site = on.serve(spawned(move |_, _| {
        let (begin, dropped) = (begin.clone(), Dropped(cancel.clone()));
        async move {
            let _dropped = dropped;
            begin.set(true);
            std::future::pending::<Response>().await
        }
    }));
    ask_and_go(&mut site, || begun.get());
    site.run_until(|_| cancelled.get());
    assert_eq!(site.reactor.task_count(), 0);
}

fn disconnecting_client_makes_the_promise_unwanted(on: On) {
    let kept = Rc::new(Cell::new(None));
    let keep = kept.clone();
    let asked = Rc::new(Cell::new(false));
    let ask = asked.clone();
    let mut site = on.serve(promised(move |reactor, _| {
        let (deferred, promise) = reactor.promise::<Response, ()>();
        keep.set(Some(deferred));
        ask.set(true);
        promise
    }));
    ask_and_go(&mut site, || asked.get());
    let deferred = kept.take().unwrap();
    site.run_until(|_| !deferred.is_wanted());
}

fn disconnecting_client_cancels_deferred_work(on: On) {
    let mut reactor = Reactor::builder()
        .engine(on.0)
        .lane(Lane::Cpu, LaneSettings { threads: 1, ..LaneSettings::CPU })
        .build()
        .unwrap();
    let (release, released) = mpsc::channel::<()>();
    reactor.defer(Lane::Cpu, move || released.recv().is_err(), |_, _| {}).unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let runs = ran.clone();
    let handler = deferred(Lane::Cpu, move |_, _| {
        runs.store(true, Ordering::Relaxed);
        Response::ok()
    });
    let mut site = common::Site::new(reactor, handler, Settings::default());
    let client = site.run(|address| {
        let mut client = common::Client::connect(&address);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client
    });
    site.run_until(|reactor| reactor.stats().lane(Lane::Cpu).waiting == 1);
    client.reset();
    site.run_until(|reactor| reactor.stats().lane(Lane::Cpu).waiting == 0);
    drop(release);
    site.run_until(|reactor| reactor.stats().lane(Lane::Cpu).done == 1);
    assert!(!ran.load(Ordering::Relaxed));
}

fn a_half_close_cancels_nothing(on: On) {
    let handler = spawned(|_, _| async {
        // Long enough for the half-close to arrive.
        task::sleep(Duration::from_millis(20)).await;
        "late\n"
    });
    assert!(on.serve(handler).ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").ends_with("\r\n\r\nlate\n"));
}

fn failures_send_500_and_affect_no_other_request(on: On) {
    let (of_pool, on_pool) = mpsc::channel();
    let report = move |fault: &pelton::ActorFault| of_pool.send(fault.to_string()).unwrap();
    let pool = Pool::builder().workers(1).on_fault(report).build().unwrap();
    fn fail(path: &str) -> &'static str {
        assert!(!path.ends_with("bad"), "on purpose");
        "good\n"
    }
    let kinds: [(&str, Box<dyn Handler>); 4] = [
        ("spawned", Box::new(spawned(|request, _| async move { fail(request.get().path()) }))),
        (
            "promised",
            Box::new(promised(|reactor, request| {
                let (deferred, promise) = reactor.promise();
                let outcome = if request.path() == "/bad" { Err("on purpose") } else { Ok("good\n") };
                deferred.settle(outcome).unwrap();
                promise
            })),
        ),
        ("deferred", Box::new(deferred(Lane::Cpu, |request, _| fail(request.get().path())))),
        ("pooled", Box::new(pooled(&pool, |request, _| fail(request.get().path())))),
    ];
    for (kind, handler) in kinds {
        let mut site = on.serve_catching(handler);
        site.reactor.on_fault(|reactor, fault| reactor.state::<Vec<String>>().push(fault.to_string()));
        let answer = site.ask(post("/bad", "") + &post("/fine", ""));
        assert_eq!(statuses(&answer), [500, 200], "{kind}");
        assert!(answer.ends_with("good\n"), "{kind}: {answer}");
        let faults = site.reactor.take_state::<Vec<String>>().unwrap_or_default().join("\n");
        // Faults in a pool go to the pool's own hook; here only the unanswered request is reported.
        let said = if kind == "pooled" { "request not answered" } else { "on purpose" };
        assert!(faults.contains(said), "{kind}: {faults}");
        // Faults include the location of the handler, so that those of two handlers can be told apart.
        let names_handler = kind != "pooled";
        assert!(!names_handler || faults.contains("tests/later.rs:"), "{kind}: {faults}");
    }
    let fault = on_pool.recv_timeout(DEADLINE).unwrap();
    assert!(fault.contains("on purpose") && fault.contains("tests/later.rs:"), "{fault}");
}

fn full_lanes_and_ended_pools_send_503(on: On) {
    let pool = Pool::builder().workers(1).build().unwrap();
    pool.shutdown(DEADLINE).unwrap();
    let answer = on.serve(pooled(&pool, |_, _| "never\n")).ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(statuses(&answer) == [503] && answer.contains("Retry-After: 1\r\n"), "{answer}");

    let narrow = LaneSettings { threads: 1, waiting: 1, ..LaneSettings::CPU };
    let mut reactor = Reactor::builder().engine(on.0).lane(Lane::Cpu, narrow).build().unwrap();
    let (_release, released) = mpsc::channel::<()>();
    reactor.defer(Lane::Cpu, move || released.recv().is_err(), |_, _| {}).unwrap();
    let begun = std::time::Instant::now();
    while reactor.stats().lane(Lane::Cpu).running == 0 {
        assert!(begun.elapsed() < DEADLINE, "no thread has started");
        reactor.turn(Some(Duration::from_millis(1))).unwrap();
    }
    reactor.defer(Lane::Cpu, || {}, |_, _| {}).unwrap();
    let mut site = common::Site::new(reactor, deferred(Lane::Cpu, |_, _| "never\n"), Settings::default());
    let answer = site.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(statuses(&answer) == [503] && answer.contains("Retry-After: 1\r\n"), "{answer}");
}

fn dropped_remote_responder_sends_500(on: On) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    let handler = move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let (remote, answers) = (responder.remote(reactor), request.path() == "/answered");
        let counter = counter.clone();
        std::thread::spawn(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            if answers {
                remote.respond("from afar\n");
            } else {
                drop::<RemoteResponder>(remote);
            }
        });
    };
    let answer = on.serve(handler).ask(post("/dropped", "") + &post("/answered", ""));
    assert_eq!(statuses(&answer), [500, 200]);
    assert!(answer.ends_with("from afar\n"));
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

fn a_kept_request_has_no_body(on: On) {
    let handler = spawned(|request, _| async move {
        let body = request.get().body().bytes().await;
        format!("{}\n", body.unwrap_err())
    });
    assert!(on.serve(handler).ask(post("/", "water")).contains("the body was already read or discarded\n"));
}
