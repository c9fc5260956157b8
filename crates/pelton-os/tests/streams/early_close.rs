//! Borrowed descriptors whose owner closes them early.
//!
//! These tests are about descriptor *numbers*, so they take turns, and nothing else in this process opens descriptors.

use std::io::{Read, Write, pipe};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, MutexGuard};

use pelton_os::engine::EngineKind;
use pelton_os::{DescriptorOwner, Event, Intake, Outbox, Sending, Socket};

use crate::{idle_turns, on_every_engine, token, turn};

/// An owner like the socket object of another language: it may close its descriptor at any time.
#[derive(Clone)]
struct Object(Arc<AtomicI32>);

impl Object {
    fn new(fd: impl Into<OwnedFd>) -> Object {
        Object(Arc::new(fd.into().into_raw_fd().into()))
    }

    fn number(&self) -> RawFd {
        self.0.load(Ordering::SeqCst)
    }

    fn close(&self) {
        let number = self.0.swap(-1, Ordering::SeqCst);
        assert!(number >= 0);
        // SAFETY: the number came out of an `OwnedFd` and is taken out only once.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
}

impl DescriptorOwner for Object {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let number = self.number();
        // SAFETY: the tests close an object on the thread that uses the engine, never during a call of the engine.
        (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })
    }
}

fn alone() -> MutexGuard<'static, ()> {
    crate::sigpipe::ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn outbox(bytes: &[u8]) -> Outbox {
    let mut outbox = Outbox::default();
    outbox.push_copy(bytes);
    outbox
}

#[test]
fn a_send_after_the_owner_has_closed_fails_and_touches_no_other_file() {
    let _alone = alone();
    on_every_engine(|kind, engine| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let object = Object::new(ours);
        let number = object.number();
        engine.adopt(token(1), Socket::borrowed(object.clone())).unwrap();
        engine.receive(token(1), Intake::On).unwrap();
        assert_eq!(engine.send(token(1), &mut outbox(b"x")).unwrap(), Sending::Idle);
        object.close();
        // The number belongs to another file now.
        let (other, mut reads_other) = UnixStream::pair().unwrap();
        assert_eq!(other.as_raw_fd(), number);
        let error = engine.send(token(1), &mut outbox(b"secret")).unwrap_err();
        assert!(error.to_string().contains("the owner of the descriptor has closed it"), "{kind}: {error}");
        assert!(engine.finish(token(1)).is_err());
        assert!(engine.descriptor(token(1)).is_none());
        let _ = engine.forget(token(1));
        drop(other);
        let mut received = Vec::new();
        reads_other.read_to_end(&mut received).unwrap();
        assert!(received.is_empty(), "{kind}: another file was written to");
    });
}

#[test]
fn input_of_another_file_with_the_same_number_is_not_read() {
    let _alone = alone();
    on_every_engine(|kind, engine| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let object = Object::new(ours);
        engine.adopt(token(1), Socket::borrowed(object.clone())).unwrap();
        engine.receive(token(1), Intake::On).unwrap();
        assert!(turn(engine, 0).is_empty());
        let number = object.number();
        object.close();
        drop(theirs);
        let (mut other, mut writes_other) = UnixStream::pair().unwrap();
        // A new socket pair takes the lowest numbers.
        assert_eq!(other.as_raw_fd(), number);
        writes_other.write_all(b"not yours").unwrap();
        let events = turn(engine, 0);
        // Pollers that keep a list of their own report the number. Others have forgotten it.
        match kind {
            EngineKind::Poll | EngineKind::Select => {
                assert!(matches!(events[..], [Event::Ended(_, Err(_))]), "{events:?}")
            }
            _ => assert!(events.is_empty(), "{events:?}"),
        }
        assert!(idle_turns(engine) <= 3, "{kind}");
        let mut received = [0; 9];
        other.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"not yours");
        let _ = engine.forget(token(1));
    });
}

#[test]
fn a_closed_descriptor_that_is_not_reused_ends_or_is_silent() {
    let _alone = alone();
    on_every_engine(|kind, engine| {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let object = Object::new(ours);
        engine.adopt(token(1), Socket::borrowed(object.clone())).unwrap();
        engine.receive(token(1), Intake::On).unwrap();
        assert!(turn(engine, 0).is_empty());
        object.close();
        let events = turn(engine, 0);
        match kind {
            EngineKind::Poll | EngineKind::Select => {
                let [Event::Ended(ended, Err(error))] = &events[..] else { panic!("{kind}: {events:?}") };
                assert_eq!(*ended, token(1));
                assert!(error.to_string().contains("owner"), "{error}");
            }
            _ => assert!(events.is_empty(), "{events:?}"),
        }
        assert!(idle_turns(engine) <= 3, "{kind}");
        let _ = engine.forget(token(1));
    });
}

#[test]
fn the_number_can_be_adopted_again_while_the_old_stream_is_still_there() {
    let _alone = alone();
    on_every_engine(|kind, engine| {
        for intake in [Intake::On, Intake::Off] {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let object = Object::new(ours);
            let number = object.number();
            engine.adopt(token(1), Socket::borrowed(object.clone())).unwrap();
            engine.receive(token(1), Intake::On).unwrap();
            engine.receive(token(1), intake).unwrap();
            object.close();
            let (new, mut theirs) = UnixStream::pair().unwrap();
            let new = Object::new(new);
            assert_eq!(new.number(), number);
            engine.adopt(token(2), Socket::borrowed(new.clone())).unwrap();
            engine.receive(token(2), Intake::On).unwrap();
            theirs.write_all(b"new").unwrap();
            let events = turn(engine, 100);
            assert!(
                matches!(&events[..], [Event::Received(at, chunk)] if *at == token(2) && &**chunk == b"new"),
                "{kind}: {events:?}"
            );
            // The old one leaves without taking the new one out of the poller.
            let _ = engine.forget(token(1));
            theirs.write_all(b"more").unwrap();
            let events = turn(engine, 100);
            assert!(matches!(&events[..], [Event::Received(at, _)] if *at == token(2)), "{kind}: {events:?}");
            let _ = engine.forget(token(2));
            new.close();
        }
    });
}

/// epoll keeps reporting a closed descriptor while a duplicate is open, and cannot be told to stop.
#[test]
fn a_duplicate_of_a_closed_descriptor_does_not_haunt_the_loop() {
    let _alone = alone();
    on_every_engine(|kind, engine| {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let _duplicate = ours.try_clone().unwrap();
        let object = Object::new(ours);
        engine.adopt(token(1), Socket::borrowed(object.clone())).unwrap();
        engine.receive(token(1), Intake::On).unwrap();
        assert!(turn(engine, 0).is_empty());
        object.close();
        theirs.write_all(b"for nobody").unwrap();
        // The first turn may end the stream. The next two find out that it is reported again and again.
        let ended: Vec<Event> = (0..3).flat_map(|_| turn(engine, 0)).collect();
        assert!(matches!(ended[..], [] | [Event::Ended(_, Err(_))]), "{kind}: {ended:?}");
        assert!(idle_turns(engine) <= 3, "{kind} spins");
        let _ = engine.forget(token(1));
    });
}

/// The engine reads a pipe through a description of its own, which its owner cannot close.
#[test]
fn a_borrowed_pipe_ends_when_its_owner_closes_it() {
    let _alone = alone();
    on_every_engine(|kind, engine| {
        let (reader, mut writer) = pipe().unwrap();
        let object = Object::new(reader);
        engine.adopt(token(1), Socket::borrowed(object.clone())).unwrap();
        engine.receive(token(1), Intake::On).unwrap();
        writer.write_all(b"x").unwrap();
        object.close();
        let events = turn(engine, 0);
        assert!(matches!(events[..], [] | [Event::Ended(_, Err(_))]), "{kind}: {events:?}");
        assert!(idle_turns(engine) <= 3, "{kind}");
        let _ = engine.forget(token(1));
    });
}

#[test]
fn a_descriptor_that_is_closed_before_it_is_adopted_is_refused() {
    let _alone = alone();
    on_every_engine(|_, engine| {
        let object = Object::new(UnixStream::pair().unwrap().0);
        object.close();
        assert!(engine.adopt(token(1), Socket::borrowed(object)).is_err());
    });
}

#[test]
fn a_listener_that_its_owner_has_closed_accepts_nothing_and_ends() {
    let _alone = alone();
    on_every_engine(|kind, engine| {
        let ours = UnixListener::bind(scratch("closed")).unwrap();
        let object = Object::new(ours);
        engine.adopt_listener(token(1), Socket::borrowed(object.clone())).unwrap();
        engine.accept_manually(token(1)).unwrap();
        assert!(turn(engine, 0).is_empty());
        let number = object.number();
        object.close();
        // The number belongs to another listener now.
        let path = scratch("other");
        let other = UnixListener::bind(&path).unwrap();
        assert_eq!(other.as_raw_fd(), number);
        let _peer = UnixStream::connect(&path).unwrap();
        let error = engine.accept_one(token(1)).unwrap_err();
        assert!(error.to_string().contains("the owner of the descriptor has closed it"), "{kind}: {error}");
        let reported = turn(engine, 0);
        assert!(reported.len() <= 1, "{kind}: {reported:?}");
        let _ = engine.forget(token(1));
        // The new listener can be used, and its connection was not taken.
        engine.adopt_listener(token(2), Socket::borrowed(other)).unwrap();
        let found = turn(engine, 1);
        assert!(matches!(found[..], [Event::Accepted(..)]), "{kind}: {found:?}");
        let _ = engine.forget(token(2));
        std::fs::remove_file(&path).unwrap();
    });
    std::fs::remove_file(path_of("closed")).unwrap();
}

#[test]
fn datagrams_are_neither_sent_nor_received_after_the_owner_has_closed() {
    let _alone = alone();
    on_every_engine(|kind, engine| {
        let (ours, _theirs) = UnixDatagram::pair().unwrap();
        let object = Object::new(ours);
        engine.adopt_datagrams(token(1), Socket::borrowed(object.clone())).unwrap();
        engine.receive_datagrams_manually(token(1)).unwrap();
        let number = object.number();
        object.close();
        let (other, reads_other) = UnixDatagram::pair().unwrap();
        assert_eq!(other.as_raw_fd(), number);
        reads_other.send(b"for another").unwrap();
        let error = engine.send_datagram_now(token(1), None, b"secret").unwrap_err();
        assert!(error.to_string().contains("the owner of the descriptor has closed it"), "{kind}: {error}");
        let mut memory = [0; 20];
        let mut space = pelton_os::Space::from(&mut memory[..]);
        assert!(engine.receive_datagram_into(token(1), &mut space).is_err());
        let _ = engine.forget(token(1));
        assert_eq!(other.recv(&mut memory).unwrap(), 11, "{kind}: it was not taken");
    });
}

fn path_of(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("pelton-early-close-{}-{name}", std::process::id()))
}

fn scratch(name: &str) -> std::path::PathBuf {
    let path = path_of(name);
    let _ = std::fs::remove_file(&path);
    path
}
