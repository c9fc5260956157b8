//! A web server in Rust on the thread of a Python loop. Its handler awaits a Python coroutine, beside ordinary asyncio tasks: no other
//! thread, no queue in between.
//!
//! ```text
//! $ cargo run -p pelton-python --features embed --example same-thread
//! http://127.0.0.1:43175/
//! $ curl http://127.0.0.1:43175/ann
//! hello, ann: this is visit 1
//! ```
//!
//! With `--demo`, a coroutine of the same loop sends requests, and the program exits. `--plain` answers without Python, and `--bare`
//! runs no Python loop at all: to compare what they cost.

#![forbid(unsafe_code)]

use std::error::Error;

use pelton::Reactor;
use pelton_http::{Response, Router, Server, plain, spawned};
use pelton_python::same_thread::{await_python, prepare, with_reactor};
use pyo3::prelude::*;
use pyo3::types::PyDict;

const APPLICATION: &std::ffi::CStr = c"
import asyncio

visits = 0

async def greet(name):
    global visits
    visits += 1
    number = visits
    await asyncio.sleep(0)
    return f'hello, {name}: this is visit {number}\\n'

async def ask(port, name):
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    writer.write(f'GET /{name} HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n'.encode())
    answer = await reader.read()
    writer.close()
    return answer.decode().rpartition('\\r\\n\\r\\n')[2]

async def demo(port):
    answers = await asyncio.gather(*[ask(port, name) for name in ('ann', 'bob', 'carol')])
    print(*answers, sep='', end='')
    assert sorted(line.rsplit(' ', 1)[1] for line in answers) == ['1\\n', '2\\n', '3\\n']
";

/// Calls a coroutine function of the application and awaits what it returns.
async fn greeting(greet: &Py<PyAny>, name: &str) -> PyResult<String> {
    let greeting = Python::attach(|py| await_python(&greet.bind(py).call1((name,))?))?.await?;
    Python::attach(|py| greeting.extract(py))
}

fn server(greet: Py<PyAny>) -> Server {
    let greet = std::rc::Rc::new(greet);
    Server::new(Router::new().get(
        "/{name}",
        // If the client disconnects, the future is dropped, and that cancels the coroutine.
        spawned(move |request, _| {
            let greet = greet.clone();
            async move {
                let name = request.get().path().trim_start_matches('/').to_owned();
                greeting(&greet, &name).await.map_or_else(
                    |error| {
                        eprintln!("{error}");
                        Response::plain_status(500)
                    },
                    Response::text,
                )
            }
        }),
    ))
}

/// Listens, and prints the address. Returns the port.
fn listen(reactor: &mut Reactor, server: &Server) -> Result<u16, Box<dyn Error>> {
    let listener = server.listen(reactor, "127.0.0.1:0")?;
    let address = reactor.listening_on(listener).expect("the listener was just created").to_string();
    println!("http://{address}/");
    let (_, port) = address.rsplit_once(':').ok_or("the address has no port")?;
    Ok(port.parse()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let has = |option: &str| std::env::args().any(|argument| argument == option);
    let fixed = || Server::new(plain(|_| Response::text("hello, ann: this is visit 1\n")));
    if has("--bare") {
        let mut reactor = Reactor::builder().stats(false).build()?;
        listen(&mut reactor, &fixed())?;
        reactor.run()?;
        return Ok(());
    }
    prepare(&Default::default())?;
    Python::attach(|py| {
        let application = PyDict::new(py);
        py.run(APPLICATION, Some(&application), None)?;
        let get = |name: &str| application.get_item(name).map(|found| found.expect("it is defined above"));
        let its_loop = py.import("pelton")?.call_method0("new_event_loop")?;
        let server = if has("--plain") { fixed() } else { server(get("greet")?.unbind()) };
        let port = with_reactor(&its_loop, |reactor| listen(reactor, &server))??;
        if has("--demo") {
            its_loop.call_method1("run_until_complete", (get("demo")?.call1((port,))?,))?;
        } else {
            its_loop.call_method0("run_forever")?;
        }
        its_loop.call_method0("close")?;
        Ok(())
    })
}
