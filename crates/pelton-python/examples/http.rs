//! A web server in Rust whose handler awaits a Python coroutine.
//!
//! ```text
//! $ cargo run -p pelton-python --features embed --example http
//! http://127.0.0.1:43175/
//! $ curl http://127.0.0.1:43175/ann
//! hello, ann: this is visit 1
//! ```
//!
//! With `--demo` it asks itself, and ends. If a client goes before its answer is there, the handler's future is dropped, the
//! reply with it, and so the coroutine is cancelled where it waits.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pelton::Reactor;
use pelton_http::{Response, Router, Server, spawned};
use pelton_python::host::{Config, Host, Process};

const APPLICATION: &str = "
import asyncio

visits = 0
gone = []

async def greet(name):
    global visits
    visits += 1
    number = visits
    try:
        await asyncio.sleep(0.01 if name != 'sloth' else 3600)   # a database, say
    except asyncio.CancelledError:
        gone.append(name)
        raise
    return f'hello, {name}: this is visit {number}\\n'
";

fn main() -> Result<(), Box<dyn Error>> {
    let host = Host::start(Config::new())?;
    let application = host.process();
    application.exec(APPLICATION)?.wait()?;

    let demo = application.clone();
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
                // As many wait as may: the client had better come back later.
                Err(_) => Response::plain_status(503),
            }
        }
    });
    let server = Server::new(Router::new().get("/{name}", greet));
    let mut reactor = Reactor::new()?;
    let listener = server.listen(&mut reactor, &"127.0.0.1:0".parse()?)?;
    let address = reactor.listening_on(listener).expect("it was just begun").to_string();
    println!("http://{address}/");
    if std::env::args().any(|argument| argument == "--demo") {
        let handle = reactor.handle();
        let asking = std::thread::spawn(move || {
            let asked = ask_and_go(&address, &demo);
            handle.stop();
            asked.map_err(|error| error.to_string())
        });
        reactor.run()?;
        asking.join().expect("it does not panic")?;
    } else {
        reactor.run()?;
    }
    drop(reactor);
    host.shutdown(Duration::from_secs(5));
    Ok(())
}

/// Some clients that wait for their answers, and one that does not.
fn ask_and_go(address: &str, application: &Process) -> Result<(), Box<dyn Error>> {
    let impatient = request(address, "sloth")?;
    for name in ["ann", "bob"] {
        print!("{}", ask(address, name)?);
    }
    // It has been begun, since others that came later have been answered.
    drop(impatient);
    let given_up = Instant::now() + Duration::from_secs(10);
    while application.eval("'sloth' in gone")?.wait()? != true.into() {
        if Instant::now() > given_up {
            return Err("the client has gone, and its coroutine still waits".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("sloth has gone, and its coroutine was cancelled");
    Ok(())
}

fn request(address: &str, name: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /{name} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    Ok(stream)
}

/// The body of an answer.
fn ask(address: &str, name: &str) -> std::io::Result<String> {
    let mut stream = request(address, name)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map_or(answer.clone(), |(_, body)| body.to_owned()))
}
