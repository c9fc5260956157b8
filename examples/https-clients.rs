//! An HTTPS server that knows its clients by their certificates, and a client, on one loop.
//!
//! ```text
//! $ cargo run -p pelton-examples --bin https-clients
//! HTTP/1.1 200 OK
//! hello, alice.example
//! ```
//!
//! Both certificates are made here. With an authority, the server would trust that instead of the client's certificate.
//! `pelton serve --tls-client-ca` does this for files.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::{Chunk, Connection, Io, Reactor, Reason};
use pelton_http::{Request, Responder, Response, Server};
use pelton_tls::{Client, ClientCertificates};

/// Greets the client by the name in its certificate.
fn hello(reactor: &mut Reactor, _: Request<'_>, responder: Responder) {
    let mut connection = responder.connection().and_then(|id| reactor.connection(id));
    let info = connection.as_mut().and_then(pelton_tls::info);
    let names = info.map(|info| info.peer_names().join(", ")).unwrap_or_default();
    responder.respond(reactor, Response::text(format!("hello, {names}\n")));
}

#[derive(Default)]
struct Asks {
    response: Vec<u8>,
}

impl Connection for Asks {
    fn opened(&mut self, io: &mut Io<'_>) {
        io.send(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok();
    }

    fn received(&mut self, _: &mut Io<'_>, chunk: Chunk) {
        self.response.extend_from_slice(&chunk);
    }

    fn closed(&mut self, reactor: &mut Reactor, reason: Reason) {
        let response = String::from_utf8_lossy(&self.response);
        let mut lines = response.lines();
        println!("{}", lines.next().unwrap_or(&reason.to_string()));
        println!("{}", lines.next_back().unwrap_or_default());
        reactor.stop();
    }
}

/// Makes a certificate that only those trust who know it. Returns it with its key, as PEM.
fn certificate(name: &str) -> Result<(Vec<u8>, Vec<u8>), rcgen::Error> {
    let made = rcgen::generate_simple_self_signed([name.to_owned()])?;
    Ok((made.cert.pem().into_bytes(), made.signing_key.serialize_pem().into_bytes()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let ((chain, key), (alice, key_of_alice)) = (certificate("localhost")?, certificate("alice.example")?);
    let tls = pelton_tls::Server::builder()
        .certificate(chain, key)
        .client_certificates(alice.clone(), ClientCertificates::Required)
        .alpn("http/1.1")
        .tolerate_truncation()
        .build()?;
    let own = Client::builder().certificate(alice, key_of_alice);
    let client = own.pin(tls.certificates()[0].key).only_pins().build()?;

    let mut reactor = Reactor::new()?;
    let http = Server::new(hello);
    let listener = reactor.listen("127.0.0.1:0", move |_| tls.wrap(http.connection()))?;
    let address = reactor.listening_on(listener).ok_or("not listening")?.clone();
    reactor.connect(&address, client.wrap("localhost", Asks::default())?)?;
    reactor.run()?;
    Ok(())
}
