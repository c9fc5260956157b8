//! A web server in Rust whose handler awaits a Python coroutine.
//!
//! ```text
//! $ cargo run -p pelton-python --features embed --example http
//! http://127.0.0.1:43175/
//! $ curl http://127.0.0.1:43175/ann
//! hello, ann: this is visit 1
//! ```
//!
//! With `--demo` it sends requests to itself and exits. If a client disconnects, the server drops the handler's
//! future and with it the reply, which cancels the waiting coroutine.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use pelton::Reactor;
use pelton_http::{Response, Router, Server, spawned};
use pelton_python::host::{Config, Host};

const APPLICATION: &str = "
import asyncio

visits = 0

async def greet(name):
    global visits
    visits += 1
    number = visits
    await asyncio.sleep(0.01)   # a database, say
    return f'hello, {name}: this is visit {number}\\n'
";

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::start(Config::new())?;
    let application = host.namespace();
    application.exec(APPLICATION)?.wait()?;

    let greet = spawned(move |request, _| {
        let name = request.get().path().trim_start_matches('/').to_owned();
        let greeting = application.create_task("__main__", "greet", (name,), ());
        async move {
            match greeting {
                Ok(reply) => match reply.cancel_on_drop().await {
                    Ok(text) => Response::text(text.as_str().unwrap_or_default().to_owned()),
                    Err(error) => {
                        eprintln!("{error}");
                        Response::plain_status(500)
                    }
                },
                // The queue is full: the client should try again later.
                Err(_) => Response::plain_status(503),
            }
        }
    });
    let server = Server::new(Router::new().get("/{name}", greet));
    let mut reactor = Reactor::new()?;
    let listener = server.listen(&mut reactor, "127.0.0.1:0")?;
    let address = reactor.listening_on(listener).expect("the listener was just created").to_string();
    println!("http://{address}/");
    if std::env::args().any(|argument| argument == "--demo") {
        let handle = reactor.handle();
        let client = std::thread::spawn(move || {
            let asked = ask_all(&address);
            handle.stop();
            asked.map_err(|error| error.to_string())
        });
        reactor.run()?;
        client.join().expect("the thread does not panic")?;
    } else {
        reactor.run()?;
    }
    drop(reactor);
    host.shutdown(Duration::from_secs(5));
    Ok(())
}

/// Sends some requests, one after the other.
fn ask_all(address: &str) -> std::io::Result<()> {
    for name in ["ann", "bob"] {
        print!("{}", ask(address, name)?);
    }
    Ok(())
}

fn request(address: &str, name: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /{name} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    Ok(stream)
}

/// Returns the body of a response.
fn ask(address: &str, name: &str) -> std::io::Result<String> {
    let mut stream = request(address, name)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map_or(answer.clone(), |(_, body)| body.to_owned()))
}
