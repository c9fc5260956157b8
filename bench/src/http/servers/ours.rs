//! Pelton in its usual configuration: the default engine, limits and timeouts, several routes, statistics on.

use std::net::SocketAddrV4;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pelton::{Address, Reactor};
use pelton_http::{Files, Response, ReverseProxy, Router, Server, Settings, plain};
use rustix::time::{ClockId, clock_gettime};

use super::super::stage::{CHAIN, KEY};
use super::{HELLO, announce};

/// Processor time of a costly response: about that of a page with a template and a few look-ups.
const COST: Duration = Duration::from_millis(1);

pub fn serve(stage: &Path, tls: bool, connections: Option<usize>) -> Result<()> {
    let files = Files::open(stage.join("files")).context("serve files")?;
    let router = Router::new()
        .get("/", plain(|_| "home\n"))
        .get("/hello", plain(|_| HELLO))
        .get("/users/{id}", plain(|request| format!("user {}\n", request.parameter("id").unwrap_or_default())))
        .delete("/users/{id}", plain(|_| Response::new(204)))
        .get("/costly", plain(|_| costly()))
        .fallback(files);
    let defaults = Settings::default();
    let settings = Settings { connections: connections.unwrap_or(defaults.connections), ..defaults };
    let mut reactor = Reactor::new().context("make a reactor")?;
    let server = Server::with_settings(router, settings);
    let listener = if tls {
        // As `pelton serve` has it, except for the limit.
        let tls = pelton_tls::Server::builder()
            .certificate(stage.join(CHAIN), stage.join(KEY))
            .alpn("http/1.1")
            .handshakes_in_flight(usize::MAX)
            .tolerate_truncation()
            .build()?;
        reactor.listen("127.0.0.1:0", move |_| tls.wrap(server.connection()))
    } else {
        server.listen(&mut reactor, "127.0.0.1:0")
    };
    let listener = listener.context("listen on a free port")?;
    let Some(Address::Tcp(address)) = reactor.listening_on(listener) else { bail!("the listener has no TCP address") };
    announce(address.port())?;
    reactor.run()?;
    Ok(())
}

/// Forwards everything to another server.
pub fn forward(target: SocketAddrV4) -> Result<()> {
    let proxy = ReverseProxy::to([format!("http://{target}")]).context("make a proxy")?;
    let mut reactor = Reactor::new().context("make a reactor")?;
    let listener = Server::new(proxy).listen(&mut reactor, "127.0.0.1:0").context("listen on a free port")?;
    let Some(Address::Tcp(address)) = reactor.listening_on(listener) else { bail!("the listener has no TCP address") };
    announce(address.port())?;
    reactor.run()?;
    Ok(())
}

/// Keeps the processor busy for a while, measured in processor time, and then returns the usual response.
fn costly() -> &'static str {
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let until = used() + COST;
    while used() < until {}
    HELLO
}
