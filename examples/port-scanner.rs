//! Looks for open ports on this machine, many at a time.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin port-scanner
//! 127.0.0.1:34817 is open, and says "220 one of ours"
//! 127.0.0.1:34777 is open
//! 2 of 100 ports are open, 98 are not; it took 502.3ms
//! $ cargo run -p pelton-examples --bin port-scanner -- example.org 80 90
//! ```
//!
//! Without arguments it opens two ports first, so that there is something to find, and scans around them.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use pelton::{Address, Chunk, Connection, Endpoint, EventLoop, Io, Limit, Reactor, Reason, Time};

/// A port that neither accepts nor refuses within this time is behind a firewall.
const PATIENCE: Duration = Duration::from_millis(500);

/// The number of concurrent connects: well below the usual descriptor limit of a process.
const AT_ONCE: usize = 50;

/// How long an open port has to send a greeting.
const GREETING_TIME: Duration = Duration::from_millis(500);

/// The state that all probes share, stored in the reactor.
#[derive(Default)]
struct Scan {
    host: String,
    left: std::ops::Range<u32>,
    open: usize,
    closed: usize,
    begun_at: Time,
}

/// One connection, to probe one port.
struct Probe {
    port: u32,
    open: bool,
    greeting: Option<String>,
}

impl Connection for Probe {
    fn opened(&mut self, io: &mut Io<'_>) {
        self.open = true;
        // Long enough for a greeting, such as that of a mail server; most servers wait for us to begin.
        io.set_limit(Limit::Inactivity, Some(GREETING_TIME));
    }

    fn received(&mut self, io: &mut Io<'_>, chunk: Chunk) {
        let text = String::from_utf8_lossy(&chunk);
        self.greeting = text.lines().next().map(str::to_owned);
        io.close();
    }

    fn closed(&mut self, reactor: &mut Reactor, _: Reason) {
        let scan = reactor.state::<Scan>();
        if self.open {
            scan.open += 1;
            let says = self.greeting.as_ref().map_or_else(String::new, |text| format!(", and says {text:?}"));
            println!("{}:{} is open{says}", scan.host, self.port);
        } else {
            scan.closed += 1;
        }
        // When one probe ends, the next begins.
        probe_next(reactor);
    }
}

fn probe_next(reactor: &mut Reactor) {
    while let Some(port) = reactor.state::<Scan>().left.next() {
        let host = reactor.state::<Scan>().host.clone();
        // Names are looked up off the loop; addresses, as here without arguments, need no look-up.
        let target = format!("{host}:{port}");
        match reactor.connect_to(&target, Probe { port, open: false, greeting: None }) {
            Ok(_) => return,
            Err(error) => {
                eprintln!("{error}");
                reactor.state::<Scan>().closed += 1;
            }
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // One limit for everything up to an established connection.
    let mut reactor = Reactor::builder().limit(Limit::Connect, Some(PATIENCE)).build()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (host, ports) = match &arguments[..] {
        [] => ("127.0.0.1".to_owned(), around(open_two_ports(&mut reactor)?)),
        [host, first, last] => (host.clone(), first.parse::<u16>()?.into()..u32::from(last.parse::<u16>()?) + 1),
        _ => return Err("usage: port-scanner [HOST FIRST LAST]".into()),
    };
    format!("{host}:1").parse::<Endpoint>()?;
    let (count, begun_at) = (ports.len(), reactor.clock());
    reactor.put_state(Scan { host, left: ports, open: 0, closed: 0, begun_at });
    for _ in 0..AT_ONCE {
        probe_next(&mut reactor);
    }
    reactor.run_until(|reactor| {
        let scan = reactor.state::<Scan>();
        scan.open + scan.closed == count
    })?;
    let took = reactor.clock() - reactor.state::<Scan>().begun_at;
    let Scan { open, closed, .. } = reactor.state::<Scan>();
    println!("{open} of {count} ports are open, {closed} are not; it took {took:.1?}");
    Ok(())
}

/// Sends a greeting, or nothing.
struct Host(Option<&'static str>);

impl Connection for Host {
    fn opened(&mut self, io: &mut Io<'_>) {
        if let Some(greeting) = self.0 {
            // If the send fails, the scanner still finds an open port.
            io.send(greeting.as_bytes()).ok();
        }
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {}
}

/// Opens a free port, and another one just below it.
fn open_two_ports(reactor: &mut EventLoop) -> Result<u16, Box<dyn Error>> {
    let listener = reactor.listen("127.0.0.1:0", |_| Host(Some("220 one of ours\r\n")))?;
    let Some(Address::Tcp(first)) = reactor.listening_on(listener).cloned() else {
        return Err("a listener on TCP has an address".into());
    };
    for port in first.port().saturating_sub(40)..first.port() {
        if reactor.listen(Address::Tcp((first.ip(), port).into()), |_| Host(None)).is_ok() {
            return Ok(first.port());
        }
    }
    Err("all ports nearby are taken".into())
}

/// A hundred ports, with this one in the middle.
fn around(port: u16) -> std::ops::Range<u32> {
    let first = u32::from(port).saturating_sub(50);
    first..(first + 100).min(65_536)
}
