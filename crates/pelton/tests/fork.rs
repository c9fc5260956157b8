//! Reactors and forked children, on every engine.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fork::{Fork, fork, waitpid};
use pelton::{
    Chunk, Connection, ConnectionId, DeferFailure, Error, EventLoop, Interest, Io, Lane, LookupError, Pool, task,
};
use pelton_testing::{Echo, Log, On, activity, on_every_engine, poll, registered, run_until, run_with, watch_and_log};
use signal_hook::consts::SIGUSR1;
use signal_hook::low_level::{exit, raise};

on_every_engine![
    a_child_that_drops_an_inherited_reactor_leaves_the_parents_intact,
    inherited_reactor_refuses_to_work_before_after_fork,
    child_can_use_an_inherited_reactor_after_after_fork,
    a_fork_in_the_middle_of_the_parents_posts_leaves_the_child_a_working_queue,
    pending_look_up_fails_in_the_child_and_new_ones_work,
    tasks_and_promises_continue_in_a_child_after_after_fork,
    deferred_work_fails_in_the_child_and_new_work_runs,
    child_does_not_wait_for_a_pool_of_the_parent,
    watched_paths_continue_in_both_processes,
    a_child_leaves_the_mode_of_shared_descriptors_alone,
    a_pipe_works_in_a_child_that_makes_the_reactor_its_own,
    a_connection_that_a_child_still_has_leaves_the_poller,
];

/// A fork copies the whole process, so these tests run one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `act` in a forked child and fails if it panics there.
fn in_child<T>(act: impl FnOnce() -> T) {
    match fork().unwrap() {
        Fork::Child => {
            // Nothing else of this process may run in the child: neither the test harness nor its exit handlers.
            let outcome = catch_unwind(AssertUnwindSafe(|| drop(act())));
            exit(if outcome.is_ok() { 0 } else { 1 });
        }
        Fork::Parent(child) => {
            let status = waitpid(child).unwrap();
            assert_eq!(status, 0, "the child failed; its panic is printed above");
        }
    }
}

/// A reactor with one of everything, to be checked after the fork.
fn busy_reactor(on: On) -> (EventLoop, UnixStream, UnixStream, Log) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, theirs) = UnixStream::pair().unwrap();
    watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    reactor.on_signal(SIGUSR1, |reactor, _| *reactor.state::<u32>() += 1).unwrap();
    reactor.on_slow_callback(Duration::from_secs(30), |slow| panic!("{slow}")).unwrap();
    (reactor, ours, theirs, log)
}

fn a_child_that_drops_an_inherited_reactor_leaves_the_parents_intact(on: On) {
    let _alone = alone();
    let (mut reactor, _ours, mut theirs, log) = busy_reactor(on);
    let handle = reactor.handle();
    poll(&mut reactor);
    assert!(reactor.next_deadline().is_none(), "no timer may wake the parent");
    let mut moved = Some(reactor);
    // From here on both processes own the reactor; only the child drops it.
    in_child(|| {
        handle.post(|_| {}).unwrap();
        drop(moved.take());
    });
    let mut reactor = moved.unwrap();
    let (turns, _) = activity(&mut reactor, &log);
    assert_eq!(turns, 1, "the child's post did not wake the parent");
    theirs.write_all(b"x").unwrap();
    run_until(&mut reactor, |_| !log.is_empty());
    raise(SIGUSR1).unwrap();
    run_until(&mut reactor, |reactor| *reactor.state::<u32>() == 1);
    let other = std::thread::spawn(move || handle.post_with_reply(|_| 7).wait());
    run_until(&mut reactor, |_| other.is_finished());
    assert_eq!(other.join().unwrap(), Ok(7));
}

fn inherited_reactor_refuses_to_work_before_after_fork(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let log = Log::default();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let watch = watch_and_log(&mut reactor, &ours, Interest::READABLE, &log);
    in_child(|| {
        assert!(matches!(reactor.turn(Some(Duration::ZERO)), Err(Error::Forked)));
        assert!(reactor.turn(None).unwrap_err().to_string().contains("after_fork()"));
        assert!(matches!(reactor.run(), Err(Error::Forked)));
        assert!(matches!(reactor.watch(&theirs, Interest::READABLE, |_, _| {}), Err(Error::Forked)));
        assert!(matches!(reactor.set_interest(watch, Interest::NONE), Err(Error::Forked)));
        // Ending a watch is allowed and affects only the child.
        assert!(reactor.end(watch));
    });
    theirs.write_all(b"x").unwrap();
    poll(&mut reactor);
    assert_eq!(log.take(), ["r"]);
}

fn child_can_use_an_inherited_reactor_after_after_fork(on: On) {
    let _alone = alone();
    let (mut reactor, _ours, mut theirs, log) = busy_reactor(on);
    let handle = reactor.handle();
    handle.post(|reactor| *reactor.state::<u64>() += 1).unwrap();
    reactor.after(Duration::from_millis(1), |reactor| *reactor.state::<u64>() += 10);
    in_child(|| {
        reactor.after_fork().unwrap();
        run_until(&mut reactor, |reactor| *reactor.state::<u64>() == 11);
        theirs.write_all(b"x").unwrap();
        run_until(&mut reactor, |_| !log.is_empty());
        raise(SIGUSR1).unwrap();
        run_until(&mut reactor, |reactor| *reactor.state::<u32>() == 1);
        // An old handle reaches and wakes the child's own loop.
        let handle = handle.clone();
        assert!(handle.is_loop_thread());
        let other = std::thread::spawn(move || handle.post_with_reply(|_| 7).wait());
        run_until(&mut reactor, |_| other.is_finished());
        assert_eq!(other.join().unwrap(), Ok(7));
        reactor.stop();
        reactor.shutdown().unwrap();
    });
    // The child wrote to the shared socket, but did not touch the parent's watch.
    run_until(&mut reactor, |reactor| *reactor.state::<u64>() == 11);
    run_until(&mut reactor, |_| !log.is_empty());
    assert_eq!(*reactor.state::<u32>(), 0, "the child's signal must not reach the parent");
    reactor.after_fork().unwrap();
    poll(&mut reactor);
}

fn a_fork_in_the_middle_of_the_parents_posts_leaves_the_child_a_working_queue(on: On) {
    let _alone = alone();
    let mut reactor = on.build(on.builder().post_bound(1_000));
    let handle = reactor.handle();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let posting = {
        let handle = handle.clone();
        std::thread::spawn(move || {
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                if handle.try_post(|_| {}).is_err() {
                    std::thread::yield_now();
                }
            }
        })
    };
    for _ in 0..5 {
        in_child(|| {
            reactor.after_fork().unwrap();
            handle.post(|reactor| *reactor.state::<u32>() = 5).unwrap();
            run_until(&mut reactor, |reactor| *reactor.state::<u32>() == 5);
        });
        poll(&mut reactor);
    }
    drop(stop);
    posting.join().unwrap();
}

fn pending_look_up_fails_in_the_child_and_new_ones_work(on: On) {
    let _alone = alone();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let builder = on.builder().resolver(move |host: &str, port: u16| {
        if host == "slow" {
            let _ = released.lock().unwrap().recv();
        }
        Ok(vec![([127, 0, 0, 1], port).into()])
    });
    let mut reactor = on.build(builder);
    let log = Log::default();
    let look_up = |reactor: &mut EventLoop, host: &str| {
        let log = log.clone();
        let told = move |found: Result<Vec<_>, LookupError>| match found {
            Ok(addresses) => log.add(format!("{addresses:?}")),
            Err(error) => log.add(error.to_string()),
        };
        reactor.resolve(host, 1, move |_, found| told(found))
    };
    look_up(&mut reactor, "slow").unwrap();
    in_child(|| {
        assert!(matches!(look_up(&mut reactor, "fast"), Err(Error::Forked)));
        reactor.after_fork().unwrap();
        run_until(&mut reactor, |_| log.len() == 1);
        assert_eq!(log.take(), ["look up slow: the process was forked during the lookup"]);
        look_up(&mut reactor, "fast").unwrap();
        run_until(&mut reactor, |_| log.len() == 1);
        assert_eq!(log.take(), ["[127.0.0.1:1]"]);
    });
    release.send(()).unwrap();
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["[127.0.0.1:1]"], "the parent's look-up continues");
}

fn tasks_and_promises_continue_in_a_child_after_after_fork(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let (deferred, promise) = reactor.promise::<u32, String>();
    let task = reactor.spawn(async move {
        task::sleep(Duration::from_millis(1)).await;
        promise.await
    });
    poll(&mut reactor);
    let finish = |reactor: &mut EventLoop| {
        reactor.next_tick(move |_| deferred.resolve(7).unwrap());
        assert_eq!(reactor.block_on(task).unwrap(), Ok(Ok(7)));
        assert_eq!(reactor.task_count(), 0);
    };
    match fork().unwrap() {
        Fork::Child => {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                reactor.after_fork().unwrap();
                finish(&mut reactor);
            }));
            exit(if outcome.is_ok() { 0 } else { 1 });
        }
        Fork::Parent(child) => {
            finish(&mut reactor);
            assert_eq!(waitpid(child).unwrap(), 0, "the child failed; its panic is printed above");
        }
    }
}

fn watched_paths_continue_in_both_processes(on: On) {
    let _alone = alone();
    let directory = std::env::temp_dir().join(format!("pelton-fork-{}-{}", std::process::id(), on.0.name()));
    std::fs::create_dir_all(&directory).unwrap();
    let mut reactor = on.reactor();
    let log = Log::default();
    let entry = log.clone();
    let show = move |changes: pelton::Changes| {
        for change in changes {
            let name = change.path().and_then(|path| path.file_name()).unwrap_or_default();
            entry.add(format!("{}{}", change.to_string().split(' ').next().unwrap(), name.display()));
        }
    };
    let id = reactor.watch_path(&directory, move |_, changes| show(changes)).unwrap();
    in_child(|| {
        assert!(matches!(reactor.watch_path("/", |_, _| {}), Err(Error::Forked)));
        reactor.after_fork().unwrap();
        // The child has a queue of its own, and may have missed something.
        run_until(&mut reactor, |_| !log.is_empty());
        assert_eq!(log.take(), ["overflow"]);
        std::fs::write(directory.join("one"), "").unwrap();
        run_until(&mut reactor, |_| !log.is_empty());
        assert_eq!(log.take(), ["createdone"]);
        assert!(reactor.end(id));
    });
    // The child took nothing out of the parent's queue, and ended none of its watches.
    std::fs::write(directory.join("two"), "").unwrap();
    run_until(&mut reactor, |_| log.len() == 2);
    assert_eq!(log.take(), ["createdone", "createdtwo"]);
    std::fs::remove_dir_all(&directory).unwrap();
}

fn deferred_work_fails_in_the_child_and_new_work_runs(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let (release, released) = mpsc::channel::<()>();
    let log = Log::default();
    let entry = log.clone();
    let tell = move |_: &mut pelton::Reactor, outcome: Result<_, DeferFailure>| entry.add(format!("{outcome:?}"));
    reactor.defer(Lane::Cpu, move || released.recv().is_err(), tell).unwrap();
    in_child(|| {
        reactor.after_fork().unwrap();
        run_until(&mut reactor, |_| log.len() == 1);
        assert_eq!(log.take(), ["Err(Forked)"]);
        let again = reactor.defer_promise(Lane::Cpu, || 7).unwrap();
        assert_eq!(reactor.block_on(again).unwrap(), Ok(7));
    });
    drop(release);
    run_until(&mut reactor, |_| log.len() == 1);
    assert_eq!(log.take(), ["Ok(true)"]);
}

fn child_does_not_wait_for_a_pool_of_the_parent(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let pool = Pool::builder().workers(1).build().unwrap();
    let (sender, received) = mpsc::channel();
    let actor = pool.spawn_fn(move |number: u32, _| sender.send(number).unwrap());
    reactor.shut_down_at_end(&pool, Duration::from_secs(3600));
    in_child(|| {
        reactor.after_fork().unwrap();
        reactor.stop();
        reactor.run().unwrap();
        let another = Pool::builder().workers(1).build().unwrap();
        another.spawn_fn(|(), _| {}).send(()).unwrap();
        another.shutdown(Duration::from_secs(20)).unwrap();
    });
    actor.send(7).unwrap();
    assert_eq!(received.recv_timeout(Duration::from_secs(20)).unwrap(), 7);
}

/// A terminal's other side cannot be opened again, so the reactor has set its mode, which both processes share.
fn a_child_leaves_the_mode_of_shared_descriptors_alone(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let terminal = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
    let shared = terminal.try_clone().unwrap();
    let is_blocking = || !rustix::fs::fcntl_getfl(&shared).unwrap().contains(rustix::fs::OFlags::NONBLOCK);
    assert!(is_blocking());
    reactor.adopt(terminal, Echo).unwrap();
    assert!(!is_blocking());
    let mut moved = Some(reactor);
    in_child(|| drop(moved.take()));
    assert!(!is_blocking(), "the parent still uses it");
    drop(moved);
    assert!(is_blocking());
}

fn a_pipe_works_in_a_child_that_makes_the_reactor_its_own(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (mut result, answer) = std::io::pipe().unwrap();
    let to = reactor.adopt(answer, Echo).unwrap();
    struct Forward(ConnectionId);
    impl Connection for Forward {
        fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
            let to = self.0;
            io.reactor().connection(to).unwrap().send_chunk(chunk).unwrap();
        }
    }
    reactor.adopt(reader, Forward(to)).unwrap();
    poll(&mut reactor);
    let mut moved = Some(reactor);
    in_child(|| {
        let mut reactor = moved.take().unwrap();
        reactor.after_fork().unwrap();
        writer.write_all(b"in the child").unwrap();
        let mut received = [0; 12];
        run_with(&mut reactor, move || {
            result.read_exact(&mut received).unwrap();
            assert_eq!(&received, b"in the child");
        });
    });
}

fn a_connection_that_a_child_still_has_leaves_the_poller(on: On) {
    let _alone = alone();
    let mut reactor = on.reactor();
    let listener = reactor.listen("127.0.0.1:0", |_| Echo).unwrap();
    let address = reactor.listening_on(listener).unwrap().to_string();
    let before = registered(&reactor);
    let client = std::net::TcpStream::connect(address).unwrap();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 1);
    let (mut release, wait) = UnixStream::pair().unwrap();
    let child = match fork().unwrap() {
        Fork::Child => {
            drop(release);
            let _ = (&wait).read(&mut [0]);
            exit(0);
        }
        Fork::Parent(child) => child,
    };
    // Closing it would not end the connection: the child has a duplicate of it, too.
    client.shutdown(std::net::Shutdown::Both).unwrap();
    run_until(&mut reactor, |reactor| reactor.connection_count() == 0);
    assert_eq!(registered(&reactor), before, "the child's duplicate keeps the connection in the poller");
    release.write_all(b"x").unwrap();
    waitpid(child).unwrap();
}
