//! Very many streams at once. In a process of its own, because `select` supports only the lowest descriptors, which other tests
//! need too.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::{AsyncReadExt, AsyncWriteExt};
use pelton::net::{Listener, Stream};
use pelton::task::{self, TaskError};
use pelton_testing::{On, on_every_engine};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

on_every_engine![a_thousand_connections_are_echoed];

static TURN: Mutex<()> = Mutex::new(());

fn a_thousand_connections_are_echoed(on: On) {
    let _one_at_a_time = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let mut reactor = on.reactor();
    // Both ends are in this process, and select supports 1,024 descriptors.
    let count = if reactor.engine_name() == "select" { 400 } else { 1_000 };
    reactor.after(Duration::from_secs(60), |reactor| reactor.stop());
    let echoed = reactor.block_on(async move {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_address().unwrap();
        let serving = task::spawn(async move {
            loop {
                let mut stream = listener.accept().await.unwrap();
                task::spawn(async move {
                    let mut buffer = [0; 512];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        stream.write_all(&buffer[..count]).await.unwrap();
                    }
                });
            }
        });
        let all_connected = Rc::new(RefCell::new(0));
        let clients: Vec<_> = (0..count)
            .map(|number: usize| {
                let (address, connected) = (address.clone(), all_connected.clone());
                task::spawn(async move {
                    let mut stream = Stream::connect(&address).await.unwrap();
                    *connected.borrow_mut() += 1;
                    while *connected.borrow() < count {
                        task::sleep(Duration::from_millis(1)).await;
                    }
                    for round in 0..5 {
                        let message = format!("{number} says {round}");
                        stream.write_all(message.as_bytes()).await.unwrap();
                        let mut back = vec![0; message.len()];
                        stream.read_exact(&mut back).await.unwrap();
                        assert_eq!(back, message.as_bytes());
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        assert_eq!(serving.cancel_and_wait().await, Err(TaskError::Cancelled));
    });
    echoed.expect("timed out");
}
