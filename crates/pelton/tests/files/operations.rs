//! Operations in every form, many at once, on a full lane, and while draining.

use std::cell::Cell;
use std::future::{Future, IntoFuture};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};

use pelton::fs::{self, File};
use pelton::{Error, Exit, Lane, LaneSettings, Reactor, Rejected};
use pelton_testing::{DEADLINE, On, on_every_engine, run, run_until};

use super::{Scratch, done};

on_every_engine![
    an_operation_has_the_same_outcome_in_every_form,
    many_files_are_read_together,
    error_of_a_full_lane_names_the_operation,
    draining_waits_for_a_file_to_be_written,
];

fn an_operation_has_the_same_outcome_in_every_form(on: On) {
    let scratch = Scratch::new();
    let path = scratch.file("one", "water");
    let mut reactor = on.reactor();
    assert_eq!(done(&mut reactor, fs::read(&path)), b"water");
    assert_eq!(fs::read(&path).now().unwrap(), b"water");
    let error = fs::read("/nonexistent/file").now().unwrap_err();
    assert!(error.to_string().starts_with("read /nonexistent/file: No such file"), "{error}");
    assert_eq!(fs::read(&path).reply(&reactor).wait().unwrap().unwrap(), b"water");
    let handle = reactor.handle();
    let (other, elsewhere) = (path.clone(), handle.clone());
    let other = std::thread::spawn(move || fs::read(other).reply_by(&elsewhere).wait());
    assert_eq!(other.join().unwrap().unwrap().unwrap(), b"water");

    let reading = async {
        let file = File::open(&path).await?;
        let text = file.read_to_string().await?;
        let error = fs::read("/nonexistent/file").await.unwrap_err();
        Ok::<_, io::Error>((text, error.to_string()))
    };
    let (text, error) = reactor.block_on(reading).unwrap().unwrap();
    assert_eq!(text, "water");
    assert!(error.starts_with("read /nonexistent/file: No such file"), "{error}");

    let promised = fs::read_to_string(&path).promise(&mut reactor).map(|text| text.len());
    assert_eq!(reactor.block_on(promised).unwrap().unwrap(), 5);
    let promised = fs::read("/nonexistent/file").promise(&mut reactor);
    let Err(Rejected::Failed(error)) = reactor.block_on(promised).unwrap() else { panic!("the file must not exist") };
    assert_eq!(error.kind(), io::ErrorKind::NotFound);

    let mut context = Context::from_waker(Waker::noop());
    let mut nowhere = pin!(fs::read(&path).into_future());
    let Poll::Ready(Err(error)) = nowhere.as_mut().poll(&mut context) else {
        panic!("expected an error without a reactor")
    };
    assert_eq!(error.to_string(), format!("read {}: there is no current reactor to run it", path.display()));
    drop(reactor);
    let error = fs::read(&path).reply_by(&handle).wait().unwrap().unwrap_err();
    assert_eq!(error.to_string(), format!("read {}: the reactor has stopped", path.display()));
}

fn many_files_are_read_together(on: On) {
    const COUNT: usize = 1_000;
    let scratch = Scratch::new();
    for number in 0..COUNT {
        scratch.file(&number.to_string(), format!("file {number}"));
    }
    let mut reactor = on.reactor();
    let read = Rc::new(Cell::new(0));
    for number in 0..COUNT {
        let read = read.clone();
        let then = move |_: &mut Reactor, text: io::Result<String>| {
            assert_eq!(text.unwrap(), format!("file {number}"));
            read.set(read.get() + 1);
        };
        fs::read_to_string(scratch.path(&number.to_string())).then(&mut reactor, then).unwrap();
    }
    run_until(&mut reactor, |_| read.get() == COUNT);
    assert_eq!(reactor.stats().lane(Lane::Files).done, COUNT as u64);
}

fn error_of_a_full_lane_names_the_operation(on: On) {
    let settings = LaneSettings { threads: 1, waiting: 1, ..LaneSettings::FILES };
    let mut reactor = on.build(on.builder().lane(Lane::Files, settings));
    let (release, released) = channel::<()>();
    let (begin, begun) = channel();
    let stuck = move || {
        begin.send(()).unwrap();
        let _ = released.recv_timeout(DEADLINE);
    };
    reactor.defer(Lane::Files, stuck, |_, _| {}).unwrap();
    begun.recv_timeout(DEADLINE).unwrap();
    fs::exists("/").then(&mut reactor, |reactor, _| reactor.stop()).unwrap();
    let error = fs::read("/etc/hosts").then(&mut reactor, |_, _| {}).unwrap_err();
    let text = "read /etc/hosts: the lane is full, with 1 waiting for a thread";
    assert!(matches!(error, Error::LaneFull { waiting: 1, .. }) && error.to_string() == text, "{error}");
    let error = fs::read("/etc/hosts").reply(&reactor).wait().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::ResourceBusy, text.into()));
    drop(release);
    run(&mut reactor);
}

fn draining_waits_for_a_file_to_be_written(on: On) {
    let scratch = Scratch::new();
    let mut reactor = on.reactor();
    let path = scratch.path("one");
    fs::write(&path, vec![b'x'; 1 << 20]).then(&mut reactor, |_, outcome| outcome.unwrap()).unwrap();
    reactor.drain(DEADLINE);
    assert_eq!(run(&mut reactor), Exit::Drained);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
}
