"""Talks to the server of tests/aiohttp.rs with aiohttp's client: aiohttp_peer.py PORT DIRECTORY SCENARIO...

The server serves the files in the directory. Prints "fine" at the end."""

import asyncio
import gzip
import os
import sys
import time
from contextlib import asynccontextmanager

import aiohttp
import brotli


class Talk:
    """A session, with counts of its connections."""

    def __init__(self, session, counts):
        self.session, self.counts = session, counts

    async def text(self, method, path, expected=200, **more):
        async with self.session.request(method, path, **more) as response:
            text = await response.text()
            assert response.status == expected, (method, path, response.status, text[:200])
            assert 'Date' in response.headers, response.headers
            return text


@asynccontextmanager
async def talk(port, connections=100, **more):
    counts = {'made': 0, 'used_again': 0}

    async def made(*_):
        counts['made'] += 1

    async def used_again(*_):
        counts['used_again'] += 1

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(made)
    trace.on_connection_reuseconn.append(used_again)
    async with aiohttp.ClientSession(
        f'http://127.0.0.1:{port}',
        connector=aiohttp.TCPConnector(limit=connections),
        timeout=aiohttp.ClientTimeout(total=15),
        trace_configs=[trace],
        trust_env=False,
        **more,
    ) as session:
        yield Talk(session, counts)


async def keep_alive(port):
    async with talk(port) as it:
        for number in range(20):
            assert await it.text('GET', f'/users/{number}') == f'{number}\n'
            assert await it.text('POST', '/measure', data=b'abc') == '3 294\n'
        async with it.session.head('/users/anna') as response:
            assert response.status == 200 and response.headers['Content-Length'] == '5'
            assert await response.read() == b''
        assert await it.text('DELETE', '/users/7', expected=204) == ''
        assert await it.text('GET', '/nothing', expected=404)
        assert await it.text('PUT', '/users/7', expected=405)
        assert await it.text('GET', '/old') == 'new\n', 'the redirection is followed'
        assert it.counts == {'made': 1, 'used_again': 45}, it.counts
        assert await it.text('GET', '/users/8', headers={'Connection': 'close'}) == '8\n'
        assert await it.text('GET', '/users/9') == '9\n'
        assert it.counts['made'] == 2, it.counts


async def uploads(port):
    async def pieces():
        for number in range(1000):
            yield bytes([number % 251]) * (number * 7 % 3000 + 1)

    whole = b''.join([piece async for piece in pieces()])
    expected = f'{len(whole)} {sum(whole)}\n'
    async with talk(port) as it:
        for data in [pieces(), whole]:
            assert await it.text('POST', '/measure', data=data) == expected
        # The body is sent only after 100 Continue.
        for data in [pieces(), whole]:
            assert await it.text('POST', '/measure', data=data, expect100=True) == expected
        assert it.counts['made'] == 1, it.counts
        # A handler that does not read the body prevents it from being sent.
        async with it.session.post('/forbidden', data=whole, expect100=True) as response:
            assert response.status == 403 and response.headers['Connection'] == 'close'
        assert await it.text('POST', '/little', expected=413, data=whole)
        assert await it.text('GET', '/users/1') == '1\n'


async def streams(port):
    async with talk(port) as it:
        async with it.session.get('/steps') as response:
            assert response.headers['Transfer-Encoding'] == 'chunked'
            for number in range(5):
                # Each step is requested after the previous one was read: nothing may be buffered.
                assert await it.text('POST', '/step', data=str(number)) == 'sent\n'
                assert await response.content.readline() == b'step %d\n' % number
            assert await it.text('POST', '/end') == 'sent\n'
            assert await response.content.read() == b''
        async with it.session.get('/count') as response:
            numbers = [int(line) async for line in response.content]
            assert numbers == list(range(200_000)), len(numbers)
        assert it.counts['made'] == 2, it.counts
        try:
            await it.text('GET', '/cut')
        except aiohttp.ClientPayloadError:
            pass
        else:
            raise AssertionError('it was not noticed that the end is missing')


async def events(port):
    async with talk(port) as it:
        async with it.session.get('/events', headers={'Accept': 'text/event-stream', 'Last-Event-ID': '6'}) as response:
            assert response.content_type == 'text/event-stream', response.headers
            seen, event = [], {}
            async for line in response.content:
                line = line.decode().rstrip('\n')
                if not line:
                    if event:
                        seen.append(event)
                    event = {}
                elif not line.startswith(':'):
                    name, _, value = line.partition(': ')
                    event[name] = event[name] + '\n' + value if name in event else value
                if len(seen) == 3:
                    # Leaving the block ends the stream.
                    break
        assert seen == [
            {'id': '7', 'event': 'news', 'data': 'two\nlines'},
            {'id': '8', 'event': 'news', 'data': 'two\nlines'},
            {'id': '9', 'event': 'news', 'data': 'two\nlines'},
        ], seen
        async with asyncio.timeout(15):
            while await it.text('GET', '/listeners') != '0\n':
                await asyncio.sleep(0.01)


TEXT = ''.join(f'line {number}\n' for number in range(100_000))


async def files(port):
    async with talk(port) as it:
        assert await it.text('GET', '/files/text.txt') == TEXT
        async with it.session.head('/files/text.txt') as response:
            assert int(response.headers['Content-Length']) == len(TEXT)
            tag = response.headers['ETag']
        for wanted, expected in [('0-6', TEXT[:7]), ('-9', TEXT[-9:]), ('600000-600099', TEXT[600000:600100])]:
            async with it.session.get('/files/text.txt', headers={'Range': f'bytes={wanted}'}) as response:
                assert response.status == 206 and await response.text() == expected, wanted
                assert response.headers['Content-Range'].endswith(f'/{len(TEXT)}')
        async with it.session.get('/files/text.txt', headers={'Range': 'bytes=0-6,700000-700008,-9'}) as response:
            assert response.status == 206 and response.content_type == 'multipart/byteranges'
            parts = []
            async for part in aiohttp.MultipartReader.from_response(response):
                parts.append((part.headers['Content-Range'], (await part.read()).decode()))
            size = len(TEXT)
            assert parts == [
                (f'bytes 0-6/{size}', TEXT[:7]),
                (f'bytes 700000-700008/{size}', TEXT[700000:700009]),
                (f'bytes {size - 9}-{size - 1}/{size}', TEXT[-9:]),
            ], parts
        assert await it.text('GET', '/files/text.txt', expected=416, headers={'Range': f'bytes={len(TEXT)}-'})
        assert await it.text('GET', '/files/text.txt', expected=304, headers={'If-None-Match': tag}) == ''
        other = {'Range': 'bytes=0-6', 'If-Range': '"other"'}
        assert await it.text('GET', '/files/text.txt', headers=other) == TEXT
        same = {'Range': 'bytes=0-6', 'If-Range': tag}
        assert await it.text('GET', '/files/text.txt', expected=206, headers=same) == TEXT[:7]
        assert it.counts['made'] == 1, it.counts


async def compressed(port):
    async with talk(port) as it:
        for coding, name in [('gzip', 'page.gz'), ('br', 'page.br')]:
            async with it.session.get('/files/page', headers={'Accept-Encoding': coding}) as response:
                assert response.headers['Content-Encoding'] == coding, response.headers
                assert response.headers['Vary'] == 'Accept-Encoding', response.headers
                assert await response.text() == TEXT, coding
        # aiohttp's default Accept-Encoding, then an explicit one.
        async with it.session.get('/files/page') as response:
            assert response.headers['Content-Encoding'] in ('gzip', 'br') and await response.text() == TEXT
        async with it.session.get('/files/page', headers={'Accept-Encoding': 'identity'}) as response:
            assert 'Content-Encoding' not in response.headers and await response.text() == TEXT
        assert it.counts['made'] == 1, it.counts
    async with talk(port, auto_decompress=False) as it:
        async with it.session.get('/files/page', headers={'Accept-Encoding': 'gzip'}) as response:
            assert gzip.decompress(await response.read()).decode() == TEXT
        async with it.session.get('/files/page', headers={'Accept-Encoding': 'br'}) as response:
            assert brotli.decompress(await response.read()).decode() == TEXT


async def parallel(port):
    async with talk(port, connections=50) as it:

        async def one(number):
            match number % 4:
                case 0:
                    assert await it.text('GET', f'/users/{number}') == f'{number}\n'
                case 1:
                    body = bytes([number % 256]) * number
                    assert await it.text('POST', '/measure', data=body) == f'{number} {sum(body)}\n'
                case 2:
                    headers = {'Range': f'bytes={number}-{number + 9}'}
                    expected = TEXT[number : number + 10]
                    assert await it.text('GET', '/files/text.txt', expected=206, headers=headers) == expected
                case 3:
                    assert await it.text('GET', f'/later/{number}') == f'{number}\n'

        await asyncio.gather(*(one(number) for number in range(2000)))
        assert it.counts['made'] <= 50, it.counts


def prepare(directory):
    """Writes the served files, dated an hour ago: newer ones have no validators."""
    os.mkdir(f'{directory}/files')
    then = time.time() - 3600
    for name, content in [
        ('text.txt', TEXT.encode()),
        ('page', TEXT.encode()),
        ('page.gz', gzip.compress(TEXT.encode(), compresslevel=1)),
        ('page.br', brotli.compress(TEXT.encode(), quality=1)),
    ]:
        with open(f'{directory}/files/{name}', 'wb') as file:
            file.write(content)
        os.utime(f'{directory}/files/{name}', (then, then))


SCENARIOS = {each.__name__: each for each in [keep_alive, uploads, streams, events, files, compressed, parallel]}


async def main(port, directory, *scenarios):
    prepare(directory)
    for scenario in scenarios:
        await SCENARIOS[scenario](port)
    print('fine')


asyncio.run(main(*sys.argv[1:]))
