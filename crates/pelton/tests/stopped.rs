//! What a reactor does once it was told to stop, until it is dropped: it takes nothing on, says so, and nobody waits for it.
//! `docs/turn.md` states the rule; each entry has its line here.

use std::cell::{Cell, RefCell};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pelton::codec::Lines;
use pelton::task::TaskError;
use pelton::{
    AcquireError, Address, Channel, Chunk, Connection, Datagram, DatagramIo, Datagrams, DeferFailure, Detached, Each,
    Endpoint, Error, EventLoop, Exit, Handle, Interest, Io, Lane, Lost, MoveError, PostError, Protocol, PublishError,
    PushError, Queue, Reactor, Reason, Reconnect, Refusal, Rejected, Replies, Reply, ReplySlot, ResourcePool, fs, net,
    serve, task,
};
use pelton_testing::{DEADLINE, Network, on_every_network};

on_every_network![
    posts_are_refused_and_given_back,
    replies_that_wait_are_lost,
    what_was_posted_is_dropped_on_the_loops_thread,
    tasks_that_other_threads_wait_for_are_cancelled,
    a_thread_that_asks_a_loop_that_stops_at_any_moment_never_hangs,
    a_shutdown_hook_can_wait_for_a_thread_that_waits_for_an_answer,
    a_loop_that_was_turned_by_hand_refuses_as_soon_as_it_is_told_to_stop,
    connections_and_listeners_are_refused,
    a_connection_on_its_way_there_is_closed,
    callbacks_are_dropped_without_having_run,
    promises_are_abandoned,
    subscribers_hold_up_nobody,
    items_stay_in_their_queue_and_resources_in_their_pool,
    deferred_work_is_refused_and_given_back,
    tasks_are_dropped_and_net_is_refused,
    peers_are_told_that_the_connection_is_over,
    running_again_is_refused;
    with_a_kernel:
    watches_signals_and_datagrams_are_refused,
    // The engine in memory needs a turn to close what it has let go of.
    a_connection_that_comes_in_after_stop_is_closed,
    a_connection_is_not_moved_there_and_stays,
    a_connection_that_leaves_goes_in_the_last_turn_or_is_closed,
];

/// A loop that has run, and is still there.
fn stopped(on: impl Network) -> EventLoop {
    let mut reactor = on.reactor();
    reactor.next_tick(|reactor| reactor.stop());
    assert_eq!(reactor.run().unwrap(), Exit::Stopped);
    reactor
}

fn within_deadline<T: std::fmt::Debug>(reply: Reply<T>) -> Result<T, Lost> {
    reply.wait_timeout(DEADLINE).expect("the reply neither comes nor is lost")
}

/// Awaits a future on a thread of its own, where it must be ready before the deadline.
fn outcome<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (done, ready) = channel();
    thread::spawn(move || done.send(futures::executor::block_on(future)));
    match ready.recv_timeout(DEADLINE) {
        Ok(value) => value,
        Err(error) => panic!("the future is not ready: {error}"),
    }
}

/// Counts how often it was dropped, and where.
#[derive(Clone)]
struct Dropped(Arc<AtomicUsize>, ThreadId);

impl Dropped {
    fn here() -> Dropped {
        Dropped(Arc::default(), thread::current().id())
    }

    /// Something that tells when it is dropped.
    fn tells(&self) -> impl Send + 'static {
        struct Tells(Dropped);
        impl Drop for Tells {
            fn drop(&mut self) {
                assert_eq!(thread::current().id(), self.0.1, "dropped on another thread than the loop's");
                self.0.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        Tells(self.clone())
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

struct Mute;

impl Connection for Mute {
    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

struct Deaf;

impl Datagrams for Deaf {
    fn received(&mut self, _: &mut DatagramIo<'_>, _: Datagram) {}
}

fn loopback() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

fn posts_are_refused_and_given_back(on: impl Network) {
    let mut reactor = stopped(on);
    let handle = reactor.handle();
    let value = String::from("mine");
    let refused = handle.post(move |_| drop(value)).unwrap_err();
    assert!(matches!(refused, PostError::Gone(_)));
    assert_eq!(refused.to_string(), "post to the loop: it has stopped");
    assert!(matches!(handle.try_post(|_| {}), Err(PostError::Gone(_))));
    assert!(matches!(handle.schedule(|_| {}), Err(PostError::Gone(_))));
    let lent = reactor.enter(|| handle.schedule(|_| panic!("it ran")));
    assert!(matches!(lent, Err(PostError::Gone(_))), "where it would run at once, too");
    assert!(handle.has_stopped());
    assert_eq!(handle.pending_posts(), 0, "refused posts do not wait");
    // These have no error to give, and must do no harm.
    handle.stop();
    handle.drain(DEADLINE);
    drop(handle.hold());
}

fn replies_that_wait_are_lost(on: impl Network) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    // Queued behind the stop, in the same turn: runs. In a later one: never does.
    reactor.next_tick(|reactor| reactor.stop());
    let early = handle.post_with_reply(|_| "in the last turn");
    reactor.run().unwrap();
    assert_eq!(within_deadline(early), Ok("in the last turn"));
    assert_eq!(within_deadline(handle.post_with_reply(|_| "never")), Err(Lost));

    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let late = handle.post_with_reply(|_| "never");
    reactor.stop();
    reactor.run().unwrap();
    assert_eq!(within_deadline(late), Err(Lost));
}

fn what_was_posted_is_dropped_on_the_loops_thread(on: impl Network) {
    let mut reactor = on.reactor();
    let (handle, dropped) = (reactor.handle(), Dropped::here());
    let owned = dropped.tells();
    thread::spawn(move || handle.post(move |_| drop(owned)).is_ok()).join().unwrap();
    reactor.stop();
    assert_eq!(dropped.count(), 0);
    reactor.run().unwrap();
    assert_eq!(dropped.count(), 1, "when it stops, not when it is dropped");
}

fn tasks_that_other_threads_wait_for_are_cancelled(on: impl Network) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let running = handle.spawn(|| async {
        let not_send = Rc::new(());
        std::future::pending::<()>().await;
        drop(not_send);
    });
    let waiting = handle.spawn(|| async { task::sleep(DEADLINE).await });
    reactor.after(Duration::from_millis(1), |reactor| reactor.stop());
    reactor.run().unwrap();
    assert_eq!(outcome(running), Err(TaskError::Cancelled));
    assert_eq!(outcome(waiting), Err(TaskError::Cancelled));
    assert_eq!(outcome(handle.spawn(|| async { 1 })), Err(TaskError::Cancelled));
}

fn a_thread_that_asks_a_loop_that_stops_at_any_moment_never_hangs(on: impl Network) {
    for _ in 0..20 {
        let mut reactor = on.reactor();
        let handle = reactor.handle();
        let asking = thread::spawn(move || {
            let mut answers = 0;
            while within_deadline(handle.post_with_reply(|_| ())).is_ok() {
                answers += 1;
                if answers == 10 {
                    handle.stop();
                }
            }
            outcome(handle.spawn(|| async {}))
        });
        assert_eq!(reactor.run().unwrap(), Exit::Stopped);
        assert_eq!(asking.join().unwrap(), Err(TaskError::Cancelled));
    }
}

fn a_shutdown_hook_can_wait_for_a_thread_that_waits_for_an_answer(on: impl Network) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let answer = handle.post_with_reply(|_| "never");
    let asking =
        thread::spawn(move || (within_deadline(answer), within_deadline(handle.post_with_reply(|_| "nor this"))));
    let answers = Rc::new(Cell::new(None));
    let given = answers.clone();
    reactor.on_shutdown(move |_| given.set(asking.join().ok()));
    reactor.stop();
    reactor.run().unwrap();
    assert_eq!(answers.take(), Some((Err(Lost), Err(Lost))));
}

fn a_loop_that_was_turned_by_hand_refuses_as_soon_as_it_is_told_to_stop(on: impl Network) {
    let mut reactor = on.reactor();
    let handle = reactor.handle();
    let answer = Rc::new(RefCell::new(None));
    let (given, asked) = (answer.clone(), handle.clone());
    reactor.next_tick(move |reactor| {
        reactor.stop();
        *given.borrow_mut() = Some(asked.post_with_reply(|_| ()));
    });
    reactor.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(within_deadline(answer.take().unwrap()), Err(Lost));
    assert!(matches!(reactor.run_until(|_| false), Err(Error::Stopped)));
    // Told between two turns, with something in the queue.
    let mut reactor = on.reactor();
    let answer = reactor.handle().post_with_reply(|_| ());
    reactor.stop();
    assert!(matches!(reactor.turn(None), Err(Error::Stopped)));
    assert_eq!(within_deadline(answer), Err(Lost));
}

fn connections_and_listeners_are_refused(on: impl Network) {
    // Both when it was told to stop, and when it has.
    let mut told = on.reactor();
    told.stop();
    for mut reactor in [told, stopped(on)] {
        let peers = on.listen_peer();
        let refused = [
            reactor.listen(loopback(), |_| Mute).err(),
            reactor.listen_with(&loopback(), &Default::default(), |_| Mute).err(),
            reactor.listen_for_sockets(&loopback(), &Default::default(), |_, _| {}).err(),
            reactor.adopt_listener(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), |_| Mute).err(),
            reactor.connect(&peers.address(), Mute).err(),
            reactor.connect_with(&peers.address(), &Default::default(), Mute).err(),
            reactor.connect_to("localhost:1", Mute).err(),
            reactor.connect_to("127.0.0.1:1", Mute).err(),
            reactor.connect_to_with("localhost:1", &Default::default(), Mute).err(),
            reactor.resolve("localhost", 1, |_, _| panic!("called")).err(),
            reactor.on_slow_callback(DEADLINE, |_| panic!("called")).err(),
        ];
        for (index, error) in refused.iter().enumerate() {
            assert!(matches!(error, Some(Error::Stopped)), "entry {index}: {error:?}");
        }
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert!(matches!(reactor.adopt(ours, Mute), Err(Error::Stopped)));
        theirs.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "a socket that was handed over is closed");
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let detached = Detached { socket: ours.into(), unread: b"unread".to_vec() };
        assert!(matches!(reactor.adopt_detached(detached, Mute), Err(Error::Stopped)));
        theirs.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "nor is one that had been detached kept");
        assert_eq!(reactor.connection_count(), 0);
    }
}

fn a_connection_that_comes_in_after_stop_is_closed(on: impl Network) {
    let mut reactor = on.reactor();
    let served = Rc::new(Cell::new(0));
    let count = served.clone();
    let listener = reactor.listen(loopback(), move |reactor: &mut Reactor| {
        count.set(count.get() + 1);
        reactor.stop();
        Mute
    });
    let address = reactor.listening_on(listener.unwrap()).unwrap().clone();
    let peers = [on.connect_peer(&address), on.connect_peer(&address)];
    let peers = thread::spawn(move || peers.map(|mut peer| peer.read_all().unwrap_or_default().len()));
    reactor.run().unwrap();
    assert_eq!(peers.join().unwrap(), [0, 0]);
    assert_eq!(served.get(), 1, "no handler is made for the second");
}

/// Tries to move its connection, then greets.
struct Moving(Handle, Moves);

type Moves = Rc<RefCell<Vec<Result<(), MoveError>>>>;

impl Connection for Moving {
    fn opened(&mut self, io: &mut Io<'_>) {
        let moved = io.move_to(&self.0, |_| Mute);
        if moved.is_err() {
            io.send(b"still here").unwrap();
            io.close_after_writing();
        }
        self.1.borrow_mut().push(moved);
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn closed(&mut self, reactor: &mut Reactor, _: Reason) {
        // What follows on the detaching comes after this.
        reactor.next_tick(|reactor| reactor.stop());
    }
}

fn a_connection_is_not_moved_there_and_stays(on: impl Network) {
    let there = stopped(on);
    let mut reactor = on.reactor();
    let (handle, moves) = (there.handle(), Moves::default());
    let list = moves.clone();
    let listener = reactor.listen(loopback(), move |_| Moving(handle.clone(), list.clone())).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    let peer = thread::spawn(move || on.connect_peer(&address).read_all().unwrap());
    pelton_testing::run(&mut reactor);
    assert_eq!(peer.join().unwrap(), b"still here");
    assert_eq!(*moves.borrow(), [Err(MoveError::Stopped)]);
}

/// Stops its loop and leaves it, with so many bytes to be sent before.
struct Leaving(usize, Rc<RefCell<Vec<String>>>);

impl Connection for Leaving {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(&vec![0; self.0]).unwrap();
        io.reactor().stop();
        let told = self.1.clone();
        io.detach(move |_, _| told.borrow_mut().push("detached".into())).unwrap();
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        self.1.borrow_mut().push(format!("closed: {reason:?}"));
    }
}

fn a_connection_that_leaves_goes_in_the_last_turn_or_is_closed(on: pelton_testing::On) {
    // The second is more than the kernel takes for a peer that does not read.
    for (bytes, expected) in [(5, &["closed: Detached", "detached"][..]), (15 << 20, &["closed: Local"])] {
        let (mut reactor, told) = (on.reactor(), Rc::<RefCell<Vec<String>>>::default());
        let list = told.clone();
        let listener = reactor.listen(loopback(), move |_| Leaving(bytes, list.clone())).unwrap();
        let _peer = on.connect_peer(reactor.listening_on(listener).unwrap());
        assert_eq!(reactor.run().unwrap(), Exit::Stopped);
        assert_eq!(*told.borrow(), expected);
    }
}

fn a_connection_on_its_way_there_is_closed(on: impl Network) {
    // It takes the connection into its queue, and stops instead of taking it out.
    let mut there = on.reactor();
    let mut reactor = on.reactor();
    let (handle, moves) = (there.handle(), Moves::default());
    let list = moves.clone();
    let listener = reactor.listen(loopback(), move |_| Moving(handle.clone(), list.clone())).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    let peer = thread::spawn(move || on.connect_peer(&address).read_all().unwrap_or_default());
    pelton_testing::run(&mut reactor);
    assert_eq!(*moves.borrow(), [Ok(())]);
    assert_eq!(there.handle().pending_posts(), 1);
    there.stop();
    there.run().unwrap();
    assert_eq!(peer.join().unwrap(), b"");
}

fn callbacks_are_dropped_without_having_run(on: impl Network) {
    let mut reactor = stopped(on);
    let dropped = Dropped::here();
    let own = || {
        let owned = dropped.tells();
        move || panic!("run, with {}", std::mem::size_of_val(&owned))
    };
    let mut expected = 0;
    let mut one_more = || {
        expected += 1;
        assert_eq!(dropped.count(), expected, "it is dropped at once");
    };
    let f = own();
    reactor.next_tick(move |_| f());
    one_more();
    let f = own();
    let timer = reactor.after(Duration::ZERO, move |_| f());
    one_more();
    assert!(!reactor.cancel(timer) && !reactor.reset(timer, Duration::ZERO));
    let (f, now) = (own(), reactor.now());
    let timer = reactor.at(now, move |_| f());
    one_more();
    assert_eq!(reactor.deadline(timer), None);
    let f = own();
    let timer = reactor.every(Duration::from_millis(1), move |_, _| f());
    one_more();
    assert!(!reactor.cancel(timer));
    let f = own();
    let idle = reactor.when_idle(move |_| f());
    one_more();
    assert!(!reactor.cancel_idle(idle));
    let f = own();
    let idle = reactor.whenever_idle(move |_| f());
    one_more();
    assert!(!reactor.cancel_idle(idle));
    let f = own();
    let idle = reactor.idle_every(Duration::from_millis(1), move |_| f());
    one_more();
    assert!(!reactor.cancel_idle(idle));
    let f = own();
    reactor.on_drain(move |_| f());
    one_more();
    let f = own();
    reactor.on_shutdown(move |_| f());
    one_more();
    let f = own();
    let kept = Reconnect::to("localhost:1".parse::<Endpoint>().unwrap()).run(&mut reactor, move |_, _| {
        f();
        Mute
    });
    one_more();
    assert!(!reactor.stop_reconnecting(kept));
    assert_eq!((reactor.timer_count(), reactor.task_count()), (0, 0));
    reactor.stop();
    reactor.drain(DEADLINE);
}

fn promises_are_abandoned(on: impl Network) {
    let mut reactor = stopped(on);
    let mut other = on.reactor();
    let handle = reactor.handle();
    let (_, looped) = reactor.tick_loop(|_| std::ops::ControlFlow::<()>::Continue(()));
    let each = Each::of([1, 2]).for_each(&mut reactor, |_, _| -> Result<(), ()> { panic!("called") });
    let reply = handle.post_with_reply(|_| ()).into_promise(&mut reactor);
    let queue = Queue::<u32>::bounded(1);
    let popped = queue.pop(&mut reactor);
    let within = queue.pop_within(&mut reactor, DEADLINE);
    let pool = ResourcePool::<u32>::of(&reactor, [1]);
    let lent = pool.acquire(&mut reactor);
    let read = fs::read("/").promise(&mut reactor);
    let outcomes = async {
        assert_eq!(looped.await, Err(Rejected::Abandoned));
        assert_eq!(each.await, Err(Rejected::Abandoned));
        assert_eq!(reply.await, Err(Rejected::Abandoned));
        assert_eq!(popped.await, Err(Rejected::Abandoned));
        assert_eq!(within.await, Err(Rejected::Abandoned));
        assert!(matches!(lent.await, Err(Rejected::Abandoned)));
        assert!(matches!(read.await, Err(Rejected::Failed(_))));
    };
    let late = other.after(DEADLINE, |reactor| reactor.stop());
    other.block_on(outcomes).unwrap();
    other.cancel(late);
}

fn subscribers_hold_up_nobody(on: impl Network) {
    let channel = Channel::new();
    // One that was there before, and one that comes after.
    let mut reactor = on.reactor();
    let options = pelton::SubscribeOptions { capacity: 1, ..Default::default() };
    let early = channel.subscribe_with(&mut reactor, options, |_, _| {});
    reactor.stop();
    assert_eq!(channel.publish(1), Ok(0), "told to stop, it takes nothing");
    reactor.run().unwrap();
    let late = channel.subscribe_with(&mut reactor, options, |_, _| panic!("called"));
    assert_eq!([channel.publish(2), channel.publish(3)], [Ok(0), Ok(0)]);
    assert!(!early.is_active() && !late.is_active());
    assert_eq!(channel.stats().subscribers, 0);
    channel.close();
    assert_eq!(channel.publish(4), Err(PublishError::Closed(4)));
}

fn items_stay_in_their_queue_and_resources_in_their_pool(on: impl Network) {
    let queue = Queue::bounded(10);
    let mut reactor = on.reactor();
    // Somebody waits when the loop stops, and gets an item that it does not come to.
    queue.pop_then(&mut reactor, |_, _| panic!("called"));
    reactor.stop();
    queue.push(1).unwrap();
    reactor.run().unwrap();
    assert_eq!(queue.len(), 1, "it is back");
    let dropped = Dropped::here();
    let owned = dropped.tells();
    queue.pop_then(&mut reactor, move |_, _| drop(owned));
    assert_eq!(dropped.count(), 1);
    drop(queue.pop(&mut reactor));
    assert_eq!((queue.len(), queue.stats().waiting), (1, 0));
    assert_eq!(queue.try_pop(), Some(1));

    let made = Rc::new(Cell::new(0));
    let count = made.clone();
    let pool = ResourcePool::<u32, ()>::new(&reactor, 1, move |_| {
        count.set(count.get() + 1);
        Ok::<_, ()>(count.get())
    });
    drop(pool.acquire(&mut reactor));
    let performed = pool.perform::<(), AcquireError<()>>(&mut reactor, |_, _| panic!("called"));
    drop(performed);
    assert_eq!((made.get(), pool.stats().waiting, pool.stats().free), (0, 0, 0));
}

fn deferred_work_is_refused_and_given_back(on: impl Network) {
    let mut told = on.reactor();
    told.stop();
    for mut reactor in [told, stopped(on)] {
        let handle = reactor.handle();
        for lane in Lane::ALL {
            let refused = reactor.defer(lane, || 1, |_, _: Result<i32, DeferFailure>| panic!("called")).unwrap_err();
            assert!(matches!(refused.refusal, Refusal::Stopped));
            assert_eq!((refused.op)(), 1);
            assert!(matches!(reactor.defer_reply(lane, || 1).unwrap_err().refusal, Refusal::Stopped));
            let refused = handle.defer_reply(lane, || 1).unwrap_err();
            assert!(matches!(refused.refusal, Refusal::Stopped));
            assert_eq!((refused.op)(), 1);
            assert!(matches!(reactor.defer_promise(lane, || 1).unwrap_err().refusal, Refusal::Stopped));
        }
        assert!(matches!(fs::exists("/").then(&mut reactor, |_, _| panic!("called")), Err(Error::Stopped)));
        // It would succeed if it were done.
        assert!(within_deadline(fs::exists("/").reply(&reactor)).unwrap().is_err());
        assert!(within_deadline(fs::exists("/").reply_by(&handle)).unwrap().is_err());
        assert_eq!(handle.pending_posts(), 0);
        assert_eq!(reactor.holds(), 0, "nothing that was refused holds up a drain");
    }
    // Work that waits for a thread when the loop stops.
    let settings = pelton::LaneSettings { threads: 1, ..pelton::LaneSettings::CPU };
    let mut reactor = on.build(on.builder().lane(Lane::Cpu, settings));
    let (release, released) = channel::<()>();
    let (begun, begins) = channel();
    let running = reactor.handle().defer_reply(Lane::Cpu, move || {
        begun.send(()).unwrap();
        assert_eq!(released.recv_timeout(DEADLINE), Err(RecvTimeoutError::Disconnected));
    });
    begins.recv_timeout(DEADLINE).unwrap();
    let waiting = reactor.handle().defer_reply(Lane::Cpu, || ()).unwrap();
    reactor.stop();
    reactor.run().unwrap();
    assert_eq!(within_deadline(waiting), Err(Lost));
    drop(release);
    assert_eq!(within_deadline(running.unwrap()), Ok(Ok(())), "what has begun goes on");
}

fn tasks_are_dropped_and_net_is_refused(on: impl Network) {
    let mut reactor = stopped(on);
    let dropped = Dropped::here();
    let owned = dropped.tells();
    let handle = reactor.spawn(async move { drop(owned) });
    assert_eq!(dropped.count(), 1);
    assert_eq!(futures::executor::block_on(handle), Err(TaskError::Cancelled));
    assert!(matches!(reactor.block_on(async {}), Err(Error::Stopped)));
    let is_stopped = |error: std::io::Error| {
        matches!(error.get_ref().and_then(|error| error.downcast_ref::<Error>()), Some(Error::Stopped))
    };
    reactor.enter(|| {
        assert!(is_stopped(net::Listener::bind(&loopback()).unwrap_err()));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(is_stopped(net::Stream::adopt(ours).unwrap_err()));
        assert!(is_stopped(net::Datagrams::bind(&loopback()).unwrap_err()));
        assert!(is_stopped(net::Datagrams::connect(&"127.0.0.1:1".parse().unwrap()).unwrap_err()));
        let connecting = std::pin::pin!(net::Stream::connect_to("127.0.0.1:1"));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match connecting.poll(&mut context) {
            std::task::Poll::Ready(Err(error)) => assert!(is_stopped(error)),
            other => panic!("{other:?}"),
        }
    });
}

/// Gives away how to reach the connection, and a place in line.
struct Introduce(std::sync::mpsc::Sender<(pelton::Peer<String>, ReplySlot<String>)>);

impl Protocol for Introduce {
    type Message = String;

    fn opened(&mut self, peer: &pelton::Peer<String>, replies: &mut Replies<String>) {
        self.0.send((peer.clone(), replies.later())).unwrap();
    }

    fn process(&mut self, _: String, _: &mut Replies<String>) {}
}

fn peers_are_told_that_the_connection_is_over(on: impl Network) {
    let mut reactor = on.reactor();
    let (tell, told) = channel();
    let service = serve(Lines::default, move || Introduce(tell.clone()));
    let listener = reactor.listen(loopback(), service).unwrap();
    let address = reactor.listening_on(listener).unwrap().clone();
    let client = thread::spawn(move || {
        let mut peer = on.connect_peer(&address);
        peer.read_all().unwrap_or_default()
    });
    let mut peer = None;
    pelton_testing::run_until(&mut reactor, |_| {
        peer = told.try_recv().ok().or(peer.take());
        peer.is_some()
    });
    reactor.stop();
    reactor.run().unwrap();
    let (peer, slot) = peer.unwrap();
    assert!(slot.is_gone());
    slot.send("late".into());
    assert_eq!(peer.push("late".into()), Err(PushError("late".into())));
    peer.close();
    peer.close_after_writing();
    // The engine in memory closes late.
    drop(reactor);
    assert_eq!(client.join().unwrap(), b"");
}

fn running_again_is_refused(on: impl Network) {
    let mut reactor = stopped(on);
    assert!(reactor.stopped() && reactor.stopping());
    assert!(matches!(reactor.run(), Err(Error::Stopped)));
    assert!(matches!(reactor.turn(None), Err(Error::Stopped)));
    assert!(matches!(reactor.turn_with(None, |_| panic!("it waits")), Err(Error::Stopped)));
    assert!(matches!(reactor.run_until(|_| false), Err(Error::Stopped)));
    assert!(matches!(reactor.shutdown(), Err(Error::Stopped)));
    assert!(reactor.next_deadline().is_some_and(|deadline| deadline <= reactor.now()), "who waits would wait for ever");
}

fn watches_signals_and_datagrams_are_refused(on: pelton_testing::On) {
    let mut told = on.reactor();
    told.stop();
    for mut reactor in [told, stopped(on)] {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let refused = [
            reactor.watch(&ours, Interest::READABLE, |_, _| panic!("called")).err(),
            reactor.watch_once(&ours, Interest::READABLE, |_, _| panic!("called")).err(),
            reactor.on_signal(signal_hook::consts::SIGUSR2, |_, _| panic!("called")).err(),
            reactor.bind_datagrams(&loopback(), Deaf).err(),
            reactor.connect_datagrams(&socket.local_addr().unwrap().into(), Deaf).err(),
            reactor.bind_datagrams_with(&loopback(), &Default::default(), Deaf).err(),
            reactor.connect_datagrams_with(&socket.local_addr().unwrap().into(), &Default::default(), Deaf).err(),
            reactor.adopt_datagrams(socket, Deaf).err(),
        ];
        for (index, error) in refused.iter().enumerate() {
            assert!(matches!(error, Some(Error::Stopped)), "entry {index}: {error:?}");
        }
        assert_eq!(reactor.watch_count(), 0);
    }
}
