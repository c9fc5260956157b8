//! Datagrams.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use pelton::net::Datagrams;
use pelton::{Address, Reactor, WaterMarks, task};
use pelton_testing::{On, block_on, localhost, on_every_engine};

use super::off_the_loop;

on_every_engine![
    datagrams_are_answered,
    refused_datagram_is_reported,
    sender_waits_for_room,
    unreceived_datagrams_stay_in_the_kernel,
];

fn datagrams_are_answered(on: On) {
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let echo = Datagrams::bind(&localhost()).unwrap();
        let address = echo.local_address().unwrap();
        task::spawn(async move {
            loop {
                let datagram = echo.receive().await.unwrap();
                echo.send_to(&datagram.from, &datagram.bytes).await.unwrap();
            }
        });
        let client = Datagrams::connect(&address).unwrap();
        for round in 0..100u8 {
            client.send(&[round; 10]).await.unwrap();
            let mut buffer = [0; 4];
            let (count, from) = client.receive_from(&mut buffer).await.unwrap();
            assert_eq!((count, &from, buffer), (4, &address, [round; 4]));
        }
        assert!(task::timeout(Duration::from_millis(1), client.receive()).await.is_err());
    });
}

fn refused_datagram_is_reported(on: On) {
    let mut reactor = on.reactor();
    block_on(&mut reactor, async {
        let gone = Datagrams::bind(&localhost()).unwrap().local_address().unwrap();
        task::sleep(Duration::from_millis(2)).await;
        let client = Datagrams::connect(&gone).unwrap();
        client.send(b"anybody?").await.unwrap();
        assert_eq!(client.receive().await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        client.send(b"still here").await.unwrap();
        // Too large for any network.
        let socket = Datagrams::bind(&localhost()).unwrap();
        socket.send_to(&gone, &[0; 70_000]).await.unwrap();
        let error = socket.receive().await.unwrap_err();
        assert!(error.to_string().contains(&gone.to_string()), "{error}");
    });
}

fn sender_waits_for_room(on: On) {
    const COUNT: usize = 2_000;
    let mut reactor = on.reactor();
    let path = std::env::temp_dir().join(format!("pelton-dgram-{}-{}.sock", reactor.engine_name(), std::process::id()));
    let _ = std::fs::remove_file(&path);
    let theirs = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let address: Address = format!("unix:{}", path.display()).parse().unwrap();
    block_on(&mut reactor, async {
        let ours = Datagrams::connect(&address).unwrap();
        let sending = task::spawn(async move {
            for number in 0..COUNT {
                ours.send(&[number as u8; 1_000]).await.unwrap();
            }
        });
        task::sleep(Duration::from_millis(20)).await;
        assert!(!sending.is_finished());
        let queued = Reactor::with_current(|reactor| reactor.queued()).unwrap();
        assert!(queued < 2 * WaterMarks::default().high, "{queued}");
        let receiving = thread::spawn(move || {
            let mut buffer = [0; 1_000];
            for number in 0..COUNT {
                assert_eq!(theirs.recv(&mut buffer).unwrap(), 1_000);
                assert_eq!(buffer[0], number as u8);
            }
        });
        sending.await.unwrap();
        off_the_loop(move || receiving.join().unwrap()).await;
    });
    std::fs::remove_file(&path).unwrap();
}

fn unreceived_datagrams_stay_in_the_kernel(on: On) {
    const COUNT: usize = 1_000;
    let mut reactor = on.reactor();
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let path = std::env::temp_dir().join(format!("pelton-kept-{}-{}.sock", reactor.engine_name(), std::process::id()));
    drop(ours);
    block_on(&mut reactor, async {
        let ours = Datagrams::bind(&format!("unix:{}", path.display()).parse().unwrap()).unwrap();
        theirs.connect(&path).unwrap();
        let mut sent = 0;
        // Until the kernel's buffer is full, although the loop keeps running.
        let mut refused = 0;
        while sent < COUNT && refused < 5 {
            match theirs.send(&[sent as u8; 1_000]) {
                Ok(_) => sent += 1,
                Err(_) => {
                    refused += 1;
                    task::sleep(Duration::from_millis(2)).await;
                }
            }
        }
        assert!(sent < 200, "{sent} datagrams were buffered");
        for number in 0..sent {
            assert_eq!(ours.receive().await.unwrap().bytes[0], number as u8);
        }
    });
}
