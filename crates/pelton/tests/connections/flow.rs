//! Flow control: water marks, limits and the byte budget.

use std::cell::Cell;
use std::io::{IoSlice, Write};
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use pelton::{Io, SendError, WaterMarks};
use pelton_testing::{Log, activity, on_every_network, run_until};

use super::{Network, Scripted, listen, pattern, with_peer};

on_every_network![
    a_connection_sets_its_own_water_marks,
    a_vectored_send_past_the_limit_sends_none_of_it,
    over_the_byte_budget_reading_and_accepting_stop_and_recover,
    clients_that_read_are_served_over_the_budget_if_enabled,
    held_input_is_delivered_when_a_closed_connection_frees_the_budget,
    queued_bytes_are_counted_until_they_are_sent,
    writable_is_called_after_a_full_queue_was_seen_even_if_it_is_sent_at_once,
];

/// A forwarder pauses its other side when it sees a full queue, and relies on `writable` to resume it.
fn writable_is_called_after_a_full_queue_was_seen_even_if_it_is_sent_at_once(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let id = Rc::new(Cell::new(None));
    let opened = id.clone();
    let address = listen(&mut reactor, move |_| {
        let opened = opened.clone();
        let open = move |io: &mut Io<'_>| {
            io.set_water_marks(WaterMarks { low: 10, high: 100, ..WaterMarks::default() });
            opened.set(Some(io.id()));
        };
        Scripted { opened: Some(Box::new(open)), ..Scripted::logging(&entries) }
    });
    let _peer = on.connect_peer(&address);
    run_until(&mut reactor, |_| id.get().is_some());
    log.take();
    for rounds in 1..3 {
        let mut io = reactor.connection(id.get().unwrap()).unwrap();
        io.send(&[0; 1_000]).unwrap();
        assert!(io.queued() > io.water_marks().high);
        // Written by an event or by the flush, before a flush has compared the queue with the mark.
        run_until(&mut reactor, |_| log.len() == rounds);
    }
    assert_eq!(log.take(), ["writable", "writable"]);
}

fn a_connection_sets_its_own_water_marks(on: impl Network) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let answer = pattern(on.more_than_fits());
    let sent = answer.clone();
    let address = listen(&mut reactor, move |_| {
        let sent = sent.clone();
        let opened = move |io: &mut Io<'_>| {
            let marks = WaterMarks { low: 1_000, high: 5_000, most: 2 * sent.len() };
            io.set_water_marks(marks);
            assert_eq!(io.water_marks(), marks);
            io.send_bytes(sent.clone()).unwrap();
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::logging(&entries) }
    });
    let mut peer = on.connect_peer(&address);
    run_until(&mut reactor, |_| log.len() == 1);
    peer.write_all(b"hello").unwrap();
    let (_, calls) = activity(&mut reactor, &log);
    assert_eq!(calls, 0, "nothing is read above the high-water mark: {:?}", log.take());
    let reading = thread::spawn(move || peer.read_some(answer.len()) == answer);
    run_until(&mut reactor, |_| log.len() == 4);
    assert_eq!(log.take(), ["writable", "received hello", "peer finished", "closed: finished by the other side"]);
    assert!(reading.join().unwrap());
}

fn a_vectored_send_past_the_limit_sends_none_of_it(on: impl Network) {
    let mut reactor = on.reactor();
    let address = listen(&mut reactor, |_| Scripted {
        opened: Some(Box::new(|io| {
            io.set_water_marks(WaterMarks { most: 10, ..WaterMarks::default() });
            let parts = ["one ", "two ", "three "].map(|part| IoSlice::new(part.as_bytes()));
            let error = io.send_vectored(&parts).unwrap_err();
            assert_eq!(error, SendError::Full { bytes: 14, queued: 0, most: 10 });
            io.send_vectored(&parts[..2]).unwrap();
            assert_eq!(io.queued(), 8);
            assert!(io.send(b"123").is_err());
            io.send(b"12").unwrap();
            io.close_after_writing();
        })),
        ..Scripted::default()
    });
    assert_eq!(with_peer(&mut reactor, on, &address, |mut peer| peer.read_all().unwrap()), b"one two 12");
    assert_eq!(reactor.stats().panics, 0);
}

fn over_the_byte_budget_reading_and_accepting_stop_and_recover(on: impl Network) {
    let most = on.more_than_fits();
    let marks = WaterMarks { low: most, high: 2 * most, most: 2 * most };
    let mut reactor = on.build(on.builder().byte_budget(most / 10).water_marks(marks));
    let log = Log::default();
    let entries = log.clone();
    // On request, it sends far more than there is room for.
    let address = listen(&mut reactor, move |_| {
        let told = entries.clone();
        let received = move |io: &mut Io<'_>, chunk: pelton::Chunk| {
            told.received(&chunk);
            if chunk.contains(&b'!') {
                io.send_bytes(vec![b'x'; most]).unwrap();
            }
        };
        Scripted { received: Some(Box::new(received)), ..Scripted::logging(&entries) }
    });
    let (mut greedy, mut modest) = (on.connect_peer(&address), on.connect_peer(&address));
    run_until(&mut reactor, |_| log.len() == 2);
    greedy.write_all(b"!").unwrap();
    run_until(&mut reactor, |_| log.len() == 3);
    log.take();
    // The budget is checked after a connection is read.
    modest.write_all(b"a").unwrap();
    run_until(&mut reactor, |_| log.take().contains(&"received a".to_owned()));
    assert!(reactor.queued() > most / 10);
    modest.write_all(b"b").unwrap();
    greedy.write_all(b"c").unwrap();
    let newcomer = on.connect_peer(&address);
    let (_, calls) = activity(&mut reactor, &log);
    assert_eq!(calls, 0, "nothing is read or accepted: {:?}", log.take());
    let reading = thread::spawn(move || greedy.read_some(most));
    let mut told = Vec::new();
    run_until(&mut reactor, |_| {
        told.append(&mut log.take());
        // In any order.
        ["opened", "b", "c"].iter().all(|wanted| told.iter().any(|entry| entry.contains(wanted)))
    });
    run_until(&mut reactor, |reactor| reactor.queued() == 0);
    assert_eq!(reading.join().unwrap().len(), most);
    drop((modest, newcomer));
}

fn clients_that_read_are_served_over_the_budget_if_enabled(on: impl Network) {
    let most = on.more_than_fits();
    let marks = WaterMarks { low: most, high: 2 * most, most: 2 * most };
    let mut reactor = on.build(on.builder().byte_budget(most / 10).water_marks(marks).serve_over_budget(true));
    let log = Log::default();
    let entries = log.clone();
    let address = listen(&mut reactor, move |_| {
        let told = entries.clone();
        let received = move |io: &mut Io<'_>, chunk: pelton::Chunk| {
            told.received(&chunk);
            io.send_bytes(if chunk.contains(&b'!') { vec![b'x'; most] } else { b"ok".to_vec() }).unwrap();
        };
        Scripted { received: Some(Box::new(received)), ..Scripted::logging(&entries) }
    });
    let (mut greedy, mut modest) = (on.connect_peer(&address), on.connect_peer(&address));
    run_until(&mut reactor, |_| log.len() == 2);
    greedy.write_all(b"!").unwrap();
    run_until(&mut reactor, |_| log.len() == 3);
    log.take();
    greedy.write_all(b"!").unwrap();
    for asked in ["received a", "received b", "received c"] {
        modest.write_all(&asked.as_bytes()[asked.len() - 1..]).unwrap();
        run_until(&mut reactor, |_| log.take().contains(&asked.to_owned()));
        assert!(reactor.queued() > most / 10);
        // Its answer is sent before it asks again.
        run_until(&mut reactor, |reactor| reactor.queued() <= most);
    }
    let newcomer = on.connect_peer(&address);
    run_until(&mut reactor, |_| log.take().contains(&"opened".to_owned()));
    let (_, calls) = activity(&mut reactor, &log);
    assert_eq!(calls, 0, "a client that does not read its answer is not read: {:?}", log.take());
    drop((greedy, modest, newcomer));
}

fn held_input_is_delivered_when_a_closed_connection_frees_the_budget(on: impl Network) {
    let most = on.more_than_fits();
    let mut reactor = on.build(on.builder().byte_budget(most / 10));
    let (greedy, text) = (Rc::new(Cell::new(None)), Log::default());
    let (known, told) = (greedy.clone(), text.clone());
    let address = listen(&mut reactor, move |_| {
        let (known, told) = (known.clone(), told.clone());
        let opened = move |io: &mut Io<'_>| known.set(known.get().or(Some(io.id())));
        let received = move |_: &mut Io<'_>, chunk: pelton::Chunk| told.received(&chunk);
        Scripted { opened: Some(Box::new(opened)), received: Some(Box::new(received)), ..Scripted::default() }
    });
    let (_reads_nothing, mut modest) = (on.connect_peer(&address), on.connect_peer(&address));
    run_until(&mut reactor, |reactor| reactor.connection_count() == 2);
    let greedy = greedy.get().unwrap();
    reactor.connection(greedy).unwrap().send_bytes(vec![b'x'; most]).unwrap();
    modest.write_all(b"some data").unwrap();
    run_until(&mut reactor, |_| text.len() == 1);
    // Data in flight arrives meanwhile.
    activity(&mut reactor, &Log::default());
    reactor.connection(greedy).unwrap().close();
    let start = reactor.clock();
    run_until(&mut reactor, |_| text.entries() == ["received some data"]);
    assert!(reactor.clock() - start < Duration::from_secs(10), "the loop was woken only by something else");
}

fn queued_bytes_are_counted_until_they_are_sent(on: impl Network) {
    let mut reactor = on.reactor();
    let most = on.more_than_fits();
    let id = Rc::new(Cell::new(None));
    let known = id.clone();
    let address = listen(&mut reactor, move |_| {
        let known = known.clone();
        let opened = move |io: &mut Io<'_>| {
            known.set(Some(io.id()));
            io.send_bytes(vec![b'x'; most]).unwrap();
        };
        Scripted { opened: Some(Box::new(opened)), ..Scripted::default() }
    });
    let mut peer = on.connect_peer(&address);
    run_until(&mut reactor, |_| id.get().is_some());
    // Nobody reads it, so it cannot all be sent.
    activity(&mut reactor, &Log::default());
    let id = id.get().unwrap();
    assert!(reactor.connection(id).unwrap().queued() > 0);
    assert_eq!(reactor.connection(id).unwrap().queued(), reactor.queued());
    let late = Duration::from_millis(50);
    let reading = thread::spawn(move || {
        // Late enough to tell the time of sending from the time of queueing.
        thread::sleep(late);
        peer.read_some(most);
        peer
    });
    run_until(&mut reactor, |reactor| reactor.queued() == 0);
    let mut io = reactor.connection(id).unwrap();
    assert_eq!(io.queued(), 0);
    assert!(io.idle_time() < late, "data was sent just now");
    drop(reading.join().unwrap());
}
