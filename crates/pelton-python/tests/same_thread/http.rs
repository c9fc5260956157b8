//! A web server in Rust on the loop's thread, whose handler awaits a coroutine; and a client that coroutines await.

use pelton_http::{Client, Response, Server, spawned};
use pelton_python::same_thread::{await_python, await_rust};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyCFunction;

use crate::{Fixture, with_loop};

const CLIENT: &str = "
import socket, struct
log = []
running = True

async def handle(path):
    if path == '/fails':
        raise ValueError(path)
    try:
        await asyncio.sleep(1000 if path == '/forever' else 0.001)
    except asyncio.CancelledError:
        log.append(f'{path} was cancelled')
        raise
    return path

async def ask(port, path, header=''):
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    writer.write(f'GET {path} HTTP/1.1\\r\\nHost: localhost\\r\\n{header}\\r\\n'.encode())
    return reader, writer

async def get(port, path):
    reader, writer = await ask(port, path, 'Connection: close\\r\\n')
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer.rpartition('\\r\\n\\r\\n')[2]

async def beside():
    count = 0
    while running:
        count += 1
        await asyncio.sleep(0)
    return count
";

/// Serves, and returns the port.
fn serve(fixture: &Fixture<'_>) -> u16 {
    let handle = std::rc::Rc::new(fixture.get("handle").unbind());
    let server = Server::new(spawned(move |request, _| {
        let handle = handle.clone();
        async move {
            let path = request.get().path().to_owned();
            let answered = async {
                let answer = Python::attach(|py| await_python(&handle.bind(py).call1((path,))?))?.await?;
                Python::attach(|py| answer.extract::<String>(py))
            };
            answered.await.map_or_else(|_| Response::plain_status(500), Response::text)
        }
    }));
    fixture.with_reactor(|reactor| {
        let listener = server.listen(reactor, "127.0.0.1:0").unwrap();
        let address = reactor.listening_on(listener).unwrap().to_string();
        address.rsplit_once(':').unwrap().1.parse().unwrap()
    })
}

#[test]
fn requests_are_answered_beside_tasks_of_asyncio() {
    let code = format!(
        "{CLIENT}
async def main(port):
    global running
    other = asyncio.ensure_future(beside())
    answers = await asyncio.gather(*[get(port, f'/{{number}}') for number in range(20)], get(port, '/fails'))
    running = False
    return answers, await other
"
    );
    with_loop(&code, |fixture| {
        let port = serve(fixture);
        let answers = fixture.run_awaitable(&fixture.get("main").call1((port,))?)?;
        let (mut answers, beside): (Vec<(u16, String)>, u64) = answers.extract()?;
        assert_eq!(answers.pop().unwrap().0, 500, "the coroutine has raised");
        let expected: Vec<_> = (0..20).map(|number| (200, format!("/{number}"))).collect();
        assert_eq!(answers, expected);
        assert!(beside > 10, "a task of asyncio has had {beside} turns meanwhile");
        Ok(())
    });
}

#[test]
fn a_client_that_disconnects_cancels_the_coroutine() {
    let code = format!(
        "{CLIENT}
async def main(port):
    _, writer = await ask(port, '/forever')
    await asyncio.sleep(0.02)
    # A reset: after a mere end, the client could still read the answer.
    sock = writer.get_extra_info('socket')
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    writer.transport.abort()
    while not log:
        await asyncio.sleep(0.001)
    return log
"
    );
    with_loop(&code, |fixture| {
        let port = serve(fixture);
        let log = fixture.run_awaitable(&fixture.get("main").call1((port,))?)?;
        assert_eq!(log.extract::<Vec<String>>()?, ["/forever was cancelled"]);
        Ok(())
    });
}

#[test]
fn a_loop_can_be_closed_while_a_request_waits() {
    let code = format!(
        "{CLIENT}
async def main(port):
    await ask(port, '/forever')
    await asyncio.sleep(0.02)
"
    );
    with_loop(&code, |fixture| {
        let port = serve(fixture);
        fixture.run_awaitable(&fixture.get("main").call1((port,))?).map(drop)
    });
}

#[test]
fn a_coroutine_awaits_requests_of_the_client() {
    let code = "
pages = []

async def handle(reader, writer):
    line = await reader.readline()
    while (await reader.readline()).strip():
        pass
    body = line.split()[1]
    writer.write(b'HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s' % (len(body), body))
    writer.close()

async def main():
    server = await asyncio.start_server(handle, '127.0.0.1', 0)
    port = server.sockets[0].getsockname()[1]
    pages = await asyncio.gather(*[fetch(f'http://127.0.0.1:{port}/{number}') for number in range(10)])
    try:
        await fetch('http://127.0.0.1:1/')
    except OSError as error:
        pages.append(str(error))
    # A coroutine that is cancelled cancels its request.
    task = asyncio.ensure_future(fetch(f'http://127.0.0.1:{port}/cancelled'))
    await asyncio.sleep(0)
    task.cancel()
    server.close()
    return pages
";
    with_loop(code, |fixture| {
        let client = Client::new();
        let fetch = PyCFunction::new_closure(fixture.its_loop.py(), None, None, move |arguments, _| {
            let (url,): (String,) = arguments.extract()?;
            let request = client.get(url);
            let fetched = async move {
                let response = request.await.map_err(|error| PyOSError::new_err(error.to_string()))?;
                Ok(response.text().into_owned())
            };
            await_rust(arguments.py(), fetched).map(Bound::unbind)
        })?;
        fixture.names.set_item("awaitable", fetch)?;
        let wrap = c"async def fetch(url): return await awaitable(url)";
        fixture.its_loop.py().run(wrap, Some(&fixture.names), None)?;
        let mut pages: Vec<String> = fixture.run("main")?.extract()?;
        let refused = pages.pop().unwrap();
        assert!(refused.contains("not connected"), "{refused}");
        assert_eq!(pages, (0..10).map(|number| format!("/{number}")).collect::<Vec<_>>());
        Ok(())
    });
}
