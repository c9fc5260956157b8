"""aiohttp as server and client: plain and over TLS, many requests in parallel, large bodies, WebSockets."""

import asyncio
import contextlib

import aiohttp
from aiohttp import web
from on_pelton import OURS, ProgramTestCase, client_tls, loop_name, server_tls

LARGE = bytes(range(256)) * 8192


async def which(_request):
    return web.Response(text=loop_name())


async def upper(request):
    body = bytearray()
    async for chunk in request.content.iter_chunked(65536):
        body += chunk
    return web.Response(body=bytes(body).upper())


async def slowly(request):
    response = web.StreamResponse()
    await response.prepare(request)
    for number in range(100):
        await response.write(f"{number}\n".encode())
        await asyncio.sleep(0)
    return response


async def never(_request):
    await asyncio.Event().wait()


async def websocket(request):
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_str(f"{loop_name()}: {message.data}")
    return socket


@contextlib.asynccontextmanager
async def serving(tls=None):
    application = web.Application(client_max_size=1 << 26)
    application.add_routes(
        [
            web.get("/which", which),
            web.post("/upper", upper),
            web.get("/slowly", slowly),
            web.get("/never", never),
            web.get("/websocket", websocket),
        ]
    )
    runner = web.AppRunner(application, shutdown_timeout=5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    port = runner.addresses[0][1]
    try:
        # The certificate is for that name.
        yield f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


class Aiohttp(ProgramTestCase):
    def test_plain(self):
        self.run_on_pelton(lambda: self.everything(None, None))

    def test_over_tls(self):
        self.run_on_pelton(lambda: self.everything(server_tls(), client_tls()))

    async def everything(self, server, client):
        async with serving(server) as base:
            connector = aiohttp.TCPConnector(ssl=client or True, limit=20, family=2)
            async with aiohttp.ClientSession(base, connector=connector) as session:
                async with session.get("/which") as response:
                    self.assertEqual((response.status, await response.text()), (200, OURS))
                async with session.post("/upper", data=LARGE) as response:
                    self.assertEqual(await response.read(), LARGE.upper())
                async with session.get("/slowly") as response:
                    self.assertEqual((await response.text()).split(), [str(number) for number in range(100)])
                await self.many_at_once(session)
                await self.websockets(session)
                await self.time_out(session)

    async def many_at_once(self, session):
        async def one(number):
            async with session.post("/upper", data=f"request {number}") as response:
                return await response.text()

        answers = await asyncio.gather(*[one(number) for number in range(500)])
        self.assertEqual(answers, [f"REQUEST {number}" for number in range(500)])

    async def websockets(self, session):
        async with session.ws_connect("/websocket") as socket:
            for number in range(50):
                await socket.send_str(str(number))
                self.assertEqual(await socket.receive_str(), f"{OURS}: {number}")

    async def time_out(self, session):
        with self.assertRaises(asyncio.TimeoutError):
            async with session.get("/never", timeout=aiohttp.ClientTimeout(total=0.05)):
                self.fail("the request did not time out")
