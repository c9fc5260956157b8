"""uvicorn with a Starlette application; httpx and websockets as clients."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import httpx
import uvicorn
import websockets.asyncio.client
from on_pelton import CERTIFICATE, DEADLINE, OURS, ProgramTestCase, client_tls, loop_name
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

PROGRAM = """
import asyncio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def which(request):
    kind = type(asyncio.get_running_loop())
    return PlainTextResponse(kind.__module__ + "." + kind.__qualname__)

application = Starlette(routes=[Route("/", which)])
"""


async def which(_request):
    return PlainTextResponse(loop_name())


async def body(request):
    return PlainTextResponse((await request.body()).upper())


async def streamed(_request):
    async def chunks():
        for number in range(100):
            yield f"{number}\n"
            await asyncio.sleep(0)

    return StreamingResponse(chunks())


async def echo(websocket):
    await websocket.accept()
    async for message in websocket.iter_text():
        await websocket.send_text(f"{loop_name()}: {message}")


def application():
    routes = [
        Route("/which", which),
        Route("/body", body, methods=["POST"]),
        Route("/streamed", streamed),
        WebSocketRoute("/echo", echo),
    ]
    return Starlette(routes=routes)


@contextlib.asynccontextmanager
async def serving(**options):
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application(), log_level="warning", http="h11", lifespan="on", **options)
    server = uvicorn.Server(config)
    # It would take over the signals of the whole process.
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve([listener]))
    while not server.started:
        if task.done():
            await task
        await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


class Uvicorn(ProgramTestCase):
    def test_plain(self):
        async def main():
            async with serving() as port:
                await self.everything(f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}", None)

        self.run_on_pelton(main)

    def test_over_tls(self):
        async def main():
            async with serving(ssl_certfile=CERTIFICATE) as port:
                await self.everything(f"https://localhost:{port}", f"wss://localhost:{port}", client_tls())

        self.run_on_pelton(main)

    async def everything(self, base, websocket_base, tls):
        # Ignore proxies configured on the machine.
        options = {"limits": httpx.Limits(max_connections=20), "timeout": DEADLINE, "trust_env": False}
        async with httpx.AsyncClient(base_url=base, verify=tls or True, **options) as client:
            self.assertEqual((await client.get("/which")).text, OURS)
            large = "payload " * 100_000
            self.assertEqual((await client.post("/body", content=large)).text, large.upper())
            async with client.stream("GET", "/streamed") as response:
                lines = [line async for line in response.aiter_lines()]
            self.assertEqual(lines, [str(number) for number in range(100)])
            answers = await asyncio.gather(*[client.post("/body", content=f"a{number}") for number in range(200)])
            self.assertEqual([answer.text for answer in answers], [f"A{number}" for number in range(200)])
        async with websockets.asyncio.client.connect(f"{websocket_base}/echo", ssl=tls, proxy=None) as connection:
            for number in range(50):
                await connection.send(str(number))
                self.assertEqual(await connection.recv(), f"{OURS}: {number}")

    def test_the_command_line_and_exit_by_a_signal(self):
        with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", 0)) as listener:
            with open(f"{directory}/program.py", "w") as file:
                file.write(PROGRAM)
            words = ["uvicorn", "--loop", "pelton:new_event_loop", "--app-dir", directory, "program:application"]
            process = subprocess.Popen(
                [sys.executable, "-m", *words, "--fd", str(listener.fileno())], pass_fds=[listener.fileno()]
            )
            try:
                port = listener.getsockname()[1]
                end = time.monotonic() + DEADLINE
                # The socket is already listening, so the request only waits until the program has started.
                answer = httpx.get(f"http://127.0.0.1:{port}/", timeout=DEADLINE, trust_env=False)
                self.assertEqual(answer.text, OURS)
                process.send_signal(signal.SIGTERM)
                self.assertIn(process.wait(max(end - time.monotonic(), 1)), (0, -signal.SIGTERM))
            finally:
                process.kill()
                process.wait()
