//! OpenBSD's `nc`.

use pelton::Address;
use pelton_testing::{Log, On, on_every_engine};

use crate::process::{Input, Program};
use crate::{Client, Echo, Finishes, Sum, ends, listen, pattern, socket_path, sum};

on_every_engine![
    nc_gets_back_what_it_sends,
    half_closed_nc_is_still_answered,
    nc_gets_back_what_it_sends_over_a_unix_path,
    a_client_and_nc_as_a_server_send_to_each_other,
];

fn nc_gets_back_what_it_sends(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let port = listen(&mut reactor, move |_| Echo(entries.clone())).to_string();
    let data = pattern(3_000_000);
    // -N: finishes sending when its input ends, and stays until the server closes.
    let back = Program::start("nc", &["-N", "127.0.0.1", &port]).run(&mut reactor, Input::These(data.clone())).output();
    assert!(back == data, "{} of {} bytes came back, or they differ", back.len(), data.len());
    assert_eq!(ends(&mut reactor, &log), ["finished by the other side"]);
}

fn half_closed_nc_is_still_answered(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let port = listen(&mut reactor, move |_| Sum::new(entries.clone())).to_string();
    let data = pattern(54_321);
    let nc = Program::start("nc", &["-N", "127.0.0.1", &port]);
    assert_eq!(nc.run(&mut reactor, Input::These(data.clone())).text(), format!("54321 {}\n", sum(&data)));
    assert_eq!(ends(&mut reactor, &log), ["finished by the other side"]);
}

fn nc_gets_back_what_it_sends_over_a_unix_path(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let path = socket_path(on, "nc");
    let listener = reactor.listen(Address::Unix(path.clone()), move |_| Echo(entries.clone())).unwrap();
    let data = pattern(1_000_000);
    let nc = Program::start("nc", &["-N", "-U", path.to_str().unwrap()]);
    assert!(nc.run(&mut reactor, Input::These(data.clone())).output() == data);
    assert_eq!(ends(&mut reactor, &log), ["finished by the other side"]);
    reactor.end(listener);
}

fn a_client_and_nc_as_a_server_send_to_each_other(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let mut server = Program::start("nc", &["-n", "-l", "-v", "-N", "127.0.0.1", "0"]);
    let address: Address = server.says("Listening on ").replace(' ', ":").parse().unwrap();
    let data = pattern(2_000_000);
    reactor.connect(&address, Client::new(log.clone(), data.clone(), Finishes::Second)).unwrap();
    // Both send the same data independently. nc exits when its input ends, so it finishes first.
    let arrived = server.run(&mut reactor, Input::These(data.clone())).output();
    assert!(arrived == data, "{} of {} bytes arrived, or they differ", arrived.len(), data.len());
    assert_eq!(ends(&mut reactor, &log), ["everything came back; finished by the other side"]);
}
