//! Python: blocking sockets and asyncio.

use pelton::Address;
use pelton_testing::{Log, On, on_every_engine};

use crate::process::{Input, Program};
use crate::{Client, Echo, Finishes, Sum, ends, listen, pattern, sum};

on_every_engine![
    blocking_sends_of_odd_sizes_come_back,
    reset_from_python_is_reported_after_the_data_before_it,
    peers_that_shut_down_one_direction_are_served,
    fifty_asyncio_streams_are_echoed_at_once,
    many_clients_are_echoed_by_an_asyncio_server,
];

/// Sends pieces of 1, 2, 3, 5, 8, ... bytes, and after each reads back as many bytes, in minimal reads.
const ODD_SIZES: &str = "
import socket, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=20)
a, b, sent, back = 1, 2, b'', b''
while a < 300_000:
    piece = bytes((len(sent) + i) * 31 % 251 for i in range(a))
    s.sendall(piece)
    sent += piece
    while len(back) < len(sent) - 1000:
        back += s.recv(min(4096, len(sent) - len(back)))
    a, b = b, a + b
s.shutdown(socket.SHUT_WR)
while piece := s.recv(1 << 16):
    back += piece
assert back == sent, (len(back), len(sent))
print('all', len(sent))
";

fn blocking_sends_of_odd_sizes_come_back(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let port = listen(&mut reactor, move |_| Echo(entries.clone())).to_string();
    let said = Program::python(ODD_SIZES, &[&port]).run(&mut reactor, Input::Open).text();
    assert_eq!(said, "all 514227\n");
    assert_eq!(ends(&mut reactor, &log), ["finished by the other side"]);
}

/// With a linger time of zero, closing resets the connection.
const RESET: &str = "
import socket, struct, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=20)
s.sendall(b'before')
assert s.recv(6, socket.MSG_WAITALL) == b'before'
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
s.close()
";

fn reset_from_python_is_reported_after_the_data_before_it(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let port = listen(&mut reactor, move |_| Echo(entries.clone())).to_string();
    Program::python(RESET, &[&port]).run(&mut reactor, Input::Open).output();
    assert_eq!(ends(&mut reactor, &log), ["reset by the other side"]);
}

/// First a client that shuts down writing and reads the answer; then one that shuts down reading, and writes.
const SHUTDOWNS: &str = "
import socket, sys
address = '127.0.0.1', int(sys.argv[1])
s = socket.create_connection(address, timeout=20)
s.sendall(b'x' * 1000)
s.shutdown(socket.SHUT_WR)
print(s.makefile().read(), end='')
s = socket.create_connection(address, timeout=20)
s.shutdown(socket.SHUT_RD)
s.sendall(b'y' * 1000)
s.shutdown(socket.SHUT_WR)
try:
    s.recv(100)
except ConnectionResetError:
    pass
";

fn peers_that_shut_down_one_direction_are_served(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let port = listen(&mut reactor, move |_| Sum::new(entries.clone())).to_string();
    let said = Program::python(SHUTDOWNS, &[&port]).run(&mut reactor, Input::Open).text();
    // The answer to a client that does not read is discarded by its kernel, or causes a reset.
    assert_eq!(said, format!("1000 {}\n", sum(&[b'x'; 1000])));
    assert_eq!(ends(&mut reactor, &log), ["finished by the other side"; 2]);
}

const FIFTY_STREAMS: &str = "
import asyncio, sys
async def one(number):
    reader, writer = await asyncio.open_connection('127.0.0.1', int(sys.argv[1]))
    data = bytes((i * 7 + number) % 253 for i in range(100_000))
    async def send():
        for start in range(0, len(data), 9_999):
            writer.write(data[start:start + 9_999])
            await writer.drain()
        writer.write_eof()
    back, _ = await asyncio.gather(reader.read(), send())
    assert back == data, (number, len(back))
    writer.close()
    await writer.wait_closed()
async def main():
    await asyncio.gather(*(one(number) for number in range(50)))
    print('all fifty')
asyncio.run(asyncio.wait_for(main(), 20))
";

fn fifty_asyncio_streams_are_echoed_at_once(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let entries = log.clone();
    let port = listen(&mut reactor, move |_| Echo(entries.clone())).to_string();
    let said = Program::python(FIFTY_STREAMS, &[&port]).run(&mut reactor, Input::Open).text();
    assert_eq!(said, "all fifty\n");
    assert_eq!(ends(&mut reactor, &log), ["finished by the other side"; 50]);
}

const ECHO_SERVER: &str = "
import asyncio, sys
async def echo(reader, writer):
    while piece := await reader.read(5_000):
        writer.write(piece)
        await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(echo, '127.0.0.1', 0)
    print('port:', server.sockets[0].getsockname()[1], file=sys.stderr, flush=True)
    await server.serve_forever()
asyncio.run(main())
";

fn many_clients_are_echoed_by_an_asyncio_server(on: On) {
    let mut reactor = on.reactor();
    let log = Log::default();
    let mut server = Program::python(ECHO_SERVER, &[]);
    let address: Address = format!("127.0.0.1:{}", server.says("port: ")).parse().unwrap();
    for number in 0..30 {
        // From nothing to about a megabyte.
        let data = pattern(number * number * 1_117);
        reactor.connect(&address, Client::new(log.clone(), data, Finishes::First)).unwrap();
    }
    assert_eq!(ends(&mut reactor, &log), ["everything came back; finished by the other side"; 30]);
}
