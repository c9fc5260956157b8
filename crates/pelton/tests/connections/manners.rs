//! Options for programs that were written for other loops: output that is held back, and closing without lingering.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use pelton::{Io, Limit, Lingering, Reactor};
use pelton_testing::{Log, On, on_every_network, poll, run_until};

use super::{Network, Scripted, listen, with_peer};

on_every_network![
    nothing_is_written_while_sending_is_paused,
    a_paused_connection_is_closed_when_the_rest_is_sent,
    a_paused_connection_does_not_stall;
    // Only a kernel resets a connection that is closed with unread input.
    with_a_kernel: closing_without_lingering_does_not_wait_for_the_peer,
];

fn nothing_is_written_while_sending_is_paused(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| {
        let entries = entries.clone();
        let opened = move |io: &mut Io<'_>| {
            io.pause_sending();
            io.send(b"held back").unwrap();
            assert!(io.is_sending_paused());
        };
        let received = {
            let entries = entries.clone();
            move |io: &mut Io<'_>, _: pelton::Chunk| {
                // Without the pause, it would have been written when `opened` returned.
                entries.add(format!("{} queued", io.queued()));
                io.resume_sending();
                assert!(!io.is_sending_paused());
                io.close_after_writing();
            }
        };
        Scripted { opened: Some(Box::new(opened)), received: Some(Box::new(received)), ..Scripted::logging(&entries) }
    });
    let heard = with_peer(&mut reactor, on, &address, |mut peer| {
        peer.write_all(b"?").unwrap();
        peer.read_all().unwrap()
    });
    assert_eq!(heard, b"held back");
    assert!(log.take().contains(&"9 queued".to_owned()));
}

fn a_paused_connection_is_closed_when_the_rest_is_sent(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| {
        let opened = |io: &mut Io<'_>| {
            io.pause_sending();
            io.send(b"all of it").unwrap();
            io.close_after_writing();
            let id = io.id();
            io.reactor().after(Duration::from_millis(20), move |reactor: &mut Reactor| {
                assert_eq!(reactor.connection_count(), 1);
                reactor.connection(id).unwrap().resume_sending();
            });
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::logging(&entries) }
    });
    let heard = with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap());
    assert_eq!(heard, b"all of it");
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(log.take(), ["opened", "closed: closed by this side"]);
}

fn a_paused_connection_does_not_stall(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (entries, much) = (log.clone(), vec![b'x'; on.more_than_fits()]);
    let total = much.len();
    let (resumed, resumes) = mpsc::channel();
    let address = listen(&mut reactor, move |_| {
        let (much, resumed) = (much.clone(), resumed.clone());
        let opened = move |io: &mut Io<'_>| {
            io.set_limit(Limit::WriteStall, Some(Duration::from_millis(40)));
            io.send(&much).unwrap();
            // Some of it has been written, and the socket is full.
            io.flush();
            io.pause_sending();
            let (id, resumed) = (io.id(), resumed.clone());
            io.reactor().after(Duration::from_millis(200), move |reactor: &mut Reactor| {
                let mut io = reactor.connection(id).expect("it has not been closed");
                io.set_limit(Limit::WriteStall, Some(Duration::from_secs(10)));
                io.resume_sending();
                io.close_after_writing();
                resumed.send(()).unwrap();
            });
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::logging(&entries) }
    });
    let heard = with_peer(&mut reactor, on, &address, move |mut peer| {
        resumes.recv_timeout(Duration::from_secs(10)).unwrap();
        peer.read_all().unwrap()
    });
    assert_eq!(heard.len(), total);
    poll(&mut reactor);
}

fn closing_without_lingering_does_not_wait_for_the_peer(on: On) {
    for (lingering, waits) in [(Lingering::WhilePeerSends, true), (Lingering::Never, false)] {
        let mut reactor = on.reactor();
        let log = Log::default();
        let (entries, id) = (log.clone(), Rc::new(Cell::new(None)));
        let opened_as = id.clone();
        let address = listen(&mut reactor, move |_| {
            let id = opened_as.clone();
            let opened = move |io: &mut Io<'_>| {
                io.set_lingering(lingering);
                io.pause();
                id.set(Some(io.id()));
            };
            Scripted { opened: Some(Box::new(opened)), ..Scripted::logging(&entries) }
        });
        let mut peer = on.connect_peer(&address);
        run_until(&mut reactor, |_| log.len() == 1);
        peer.write_all(b"never read").unwrap();
        reactor.connection(id.get().unwrap()).unwrap().close_after_writing();
        poll(&mut reactor);
        poll(&mut reactor);
        assert_eq!(reactor.connection_count(), usize::from(waits), "{lingering:?}");
    }
}
