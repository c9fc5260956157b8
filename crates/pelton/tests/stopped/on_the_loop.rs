//! Callbacks, promises, composers, deferred work, tasks and watches.

use std::cell::{Cell, RefCell};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pelton::task::TaskError;
use pelton::{
    AcquireError, Channel, DeferFailure, Each, Endpoint, Error, Interest, Lane, Lost, PublishError, Queue, Reconnect,
    Refusal, Rejected, ResourcePool, fs, net,
};
use pelton_testing::{DEADLINE, Network, on_every_network};

use super::{Deaf, Dropped, Mute, loopback, stopped, within_deadline};

on_every_network![
    manually_turned_loop_refuses_as_soon_as_it_is_stopped,
    callbacks_are_dropped_without_having_run,
    promises_are_abandoned,
    subscribers_block_nobody,
    items_stay_in_their_queue_and_resources_in_their_pool,
    deferred_work_is_refused_and_given_back,
    tasks_are_dropped_and_net_is_refused,
    running_again_is_refused;
    with_a_kernel:
    watches_signals_and_datagrams_are_refused,
];

fn manually_turned_loop_refuses_as_soon_as_it_is_stopped(on: impl Network) {
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
    // Stopped between two turns, with work in the queue.
    let mut reactor = on.reactor();
    let answer = reactor.handle().post_with_reply(|_| ());
    reactor.stop();
    assert!(matches!(reactor.turn(None), Err(Error::Stopped)));
    assert_eq!(within_deadline(answer), Err(Lost));
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
        assert_eq!(dropped.count(), expected, "the callback is dropped at once");
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
    assert!(!reactor.end(idle));
    let f = own();
    let idle = reactor.whenever_idle(move |_| f());
    one_more();
    assert!(!reactor.end(idle));
    let f = own();
    let idle = reactor.idle_every(Duration::from_millis(1), move |_| f());
    one_more();
    assert!(!reactor.end(idle));
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

fn subscribers_block_nobody(on: impl Network) {
    let channel = Channel::new();
    // One subscribed before the stop, and one after.
    let mut reactor = on.reactor();
    let options = pelton::SubscribeOptions { capacity: 1, ..Default::default() };
    let early = channel.subscribe_with(&mut reactor, options, |_, _| {});
    reactor.stop();
    assert_eq!(channel.publish(1), Ok(0), "a stopped loop gets no values");
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
    // A popper waits when the loop stops, and is given an item that it never gets.
    queue.pop_then(&mut reactor, |_, _| panic!("called"));
    reactor.stop();
    queue.push(1).unwrap();
    reactor.run().unwrap();
    assert_eq!(queue.len(), 1, "the item is back");
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
        // It would succeed if it ran.
        assert!(within_deadline(fs::exists("/").reply(&reactor)).unwrap().is_err());
        assert!(within_deadline(fs::exists("/").reply_by(&handle)).unwrap().is_err());
        assert_eq!(handle.pending_posts(), 0);
        assert_eq!(reactor.holds(), 0, "refused work does not delay a drain");
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
    assert_eq!(within_deadline(running.unwrap()), Ok(Ok(())), "running work continues");
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

fn running_again_is_refused(on: impl Network) {
    let mut reactor = stopped(on);
    assert!(reactor.stopped() && reactor.stopping());
    assert!(matches!(reactor.run(), Err(Error::Stopped)));
    assert!(matches!(reactor.turn(None), Err(Error::Stopped)));
    assert!(matches!(reactor.run_until(|_| false), Err(Error::Stopped)));
    assert!(matches!(reactor.shutdown(), Err(Error::Stopped)));
    assert!(reactor.next_deadline().is_some_and(|deadline| deadline <= reactor.now()), "a foreign loop must not wait");
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
