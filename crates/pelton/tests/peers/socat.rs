//! `socat`.

use pelton::Address;
use pelton_testing::{Log, On, on_every_engine, run_until};

use crate::process::{Input, Program};
use crate::{Client, Echo, Finishes, Sum, ends, listen, pattern, socket_path, sum};

on_every_engine![
    socat_is_echoed_over_tcp,
    socat_is_echoed_over_a_unix_path,
    socat_is_echoed_over_an_abstract_name,
    half_closed_socat_is_still_answered,
    client_is_echoed_by_socat_and_cat,
    a_client_reaches_socat_over_a_unix_path,
];

const MEGABYTES: usize = 5_000_000;

/// Runs socat to send its input to `address` and print the answer. When one direction has ended, it waits for the other for
/// this long; the default is half a second.
fn socat(address: &str) -> Program {
    Program::start("socat", &["-t", "20", "-b", "7001", "-", address])
}

fn echoes(on: On, address: &str, named: &str) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let (address, entries): (Address, _) = (address.parse().unwrap(), log.clone());
    let listener = reactor.listen(&address, move |_| Echo(entries.clone())).unwrap();
    let named = match reactor.listening_on(listener) {
        Some(Address::Tcp(address)) => format!("{named}:{address}"),
        _ => named.to_owned(),
    };
    let data = pattern(MEGABYTES);
    let back = socat(&named).run(&mut reactor, Input::These(data.clone())).output();
    assert!(back == data, "{} of {} bytes came back, or they differ", back.len(), data.len());
    assert_eq!(ends(&mut reactor, &log), ["finished by the other side"]);
    reactor.end(listener);
}

fn socat_is_echoed_over_tcp(on: On) {
    echoes(on, "127.0.0.1:0", "TCP");
}

fn socat_is_echoed_over_a_unix_path(on: On) {
    let path = socket_path(on, "socat");
    echoes(on, &format!("unix:{}", path.display()), &format!("UNIX-CONNECT:{}", path.display()));
    assert!(!path.exists());
}

fn socat_is_echoed_over_an_abstract_name(on: On) {
    let name = format!("pelton-{}-socat-{}", std::process::id(), on.0);
    echoes(on, &format!("unix:@{name}"), &format!("ABSTRACT-CONNECT:{name}"));
}

fn half_closed_socat_is_still_answered(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let port = listen(&mut reactor, move |_| Sum::new(entries.clone()));
    let data = pattern(1_234_567);
    let answer = socat(&format!("TCP:127.0.0.1:{port}")).run(&mut reactor, Input::These(data.clone())).text();
    assert_eq!(answer, format!("1234567 {}\n", sum(&data)));
    assert_eq!(ends(&mut reactor, &log), ["finished by the other side"]);
}

fn client_is_echoed_by_socat_and_cat(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let mut server = Program::start("socat", &["-d", "-d", "-t", "20", "TCP-LISTEN:0,bind=127.0.0.1", "EXEC:cat"]);
    let address: Address = server.says("listening on AF=2 ").parse().unwrap();
    reactor.connect(&address, Client::new(log.clone(), pattern(MEGABYTES), Finishes::First)).unwrap();
    assert_eq!(ends(&mut reactor, &log), ["everything came back; finished by the other side"]);
}

fn a_client_reaches_socat_over_a_unix_path(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let path = socket_path(on, "socat-server");
    let listening = format!("UNIX-LISTEN:{},unlink-close", path.display());
    let mut server = Program::start("socat", &["-d", "-d", "-t", "20", &listening, "EXEC:cat"]);
    server.says("listening on AF=1 ");
    reactor
        .connect(&Address::Unix(path.clone()), Client::new(log.clone(), pattern(1_000_000), Finishes::First))
        .unwrap();
    assert_eq!(ends(&mut reactor, &log), ["everything came back; finished by the other side"]);
    // It removes the file when it is done.
    let waiting = reactor.every(std::time::Duration::from_millis(1), |_, _| {});
    run_until(&mut reactor, |_| !path.exists());
    reactor.cancel(waiting);
}
