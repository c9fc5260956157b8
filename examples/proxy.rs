//! A TCP proxy: after the first lines of code, the reactor moves the bytes.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin proxy -- 127.0.0.1:8081 example.org:80
//! proxying 127.0.0.1:8081 to example.org:80
//! $ curl -H 'Host: example.org' http://127.0.0.1:8081/
//! ```
//!
//! Each client gets a connection to the target, and the two are proxied to each other. Neither handler receives a byte. A client
//! that does not read slows the target down, half-closes pass through, and a failure of one side resets the other.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::{Chunk, Connection, Endpoint, Io, Proxied, Proxy, Reactor, Reason};

/// The side of the client.
struct Client {
    target: Endpoint,
}

impl Connection for Client {
    fn opened(&mut self, io: &mut Io<'_>) {
        // The target may still be connecting: bytes from the client wait for it, within bounds.
        let target = match io.reactor().connect_to(self.target.clone(), Target) {
            Ok(target) => target,
            Err(error) => {
                eprintln!("{error}");
                return io.close();
            }
        };
        if let Err(error) = io.proxy_both(target, Proxy::new()) {
            eprintln!("{error}");
            io.close();
        }
    }

    fn received(&mut self, _: &mut Io<'_>, _: Chunk) {
        unreachable!("the connection is proxied from the start");
    }

    fn proxy_finished(&mut self, io: &mut Io<'_>, proxied: &Proxied) {
        println!("{} bytes to the target: {:?}", proxied.bytes, proxied.end);
        Target.proxy_finished(io, proxied);
    }
}

/// The side of the target. Its defaults close or reset the connection when the client is gone.
struct Target;

impl Connection for Target {
    fn received(&mut self, io: &mut Io<'_>, _: Chunk) {
        io.close();
    }

    fn closed(&mut self, _: &mut Reactor, reason: Reason) {
        println!("target: {reason}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let target: Endpoint = arguments.next().unwrap_or_else(|| "example.org:80".to_owned()).parse()?;
    let mut reactor = Reactor::new()?;
    let to = target.clone();
    let listener = reactor.listen(&listen, move |_| Client { target: to.clone() })?;
    if let Some(address) = reactor.listening_on(listener) {
        println!("proxying {address} to {target}");
    }
    reactor.run()?;
    Ok(())
}
