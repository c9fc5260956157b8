//! A streaming reverse proxy in forty lines: bodies of any size in both directions, with back-pressure and in constant memory.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin streaming-proxy http://127.0.0.1:8080
//! http://127.0.0.1:43175 forwards to http://127.0.0.1:8080
//! ```

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::Reactor;
use pelton_http::{Handler, Request, Responder, ReverseProxy, Server};

/// A handler around the proxy sees every request before it is forwarded, and every response before it is sent.
fn logged(proxy: ReverseProxy) -> impl Handler {
    move |reactor: &mut Reactor, request: Request<'_>, responder: Responder| {
        let line = format!("{} {}", request.method_name(), request.target());
        let responder = responder.before_sending(move |response| eprintln!("{line}: {}", response.status()));
        proxy.handle(reactor, request, responder);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let targets: Vec<String> = std::env::args().skip(1).collect();
    if targets.is_empty() {
        return Err("usage: streaming-proxy URL...".into());
    }
    // Requests go to the target with the fewest in progress. One that fails repeatedly is not used for a while.
    let proxy = ReverseProxy::to(&targets)?.body_limit(u64::MAX);
    let mut reactor = Reactor::new()?;
    let listener = Server::new(logged(proxy)).listen(&mut reactor, "127.0.0.1:0")?;
    let address = reactor.listening_on(listener).expect("the listener was just started");
    println!("http://{address} forwards to {}", targets.join(", "));
    reactor.run()?;
    Ok(())
}
