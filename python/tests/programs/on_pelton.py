"""Shared by the programs: a deadline, a certificate, and a way to check which loop is running."""

import asyncio
import pathlib
import ssl
import unittest

import pelton

DEADLINE = 60

CERTIFICATE = pathlib.Path(__file__).parents[1] / "certificate.pem"


def loop_name():
    """Return the type name of the running loop."""
    kind = type(asyncio.get_running_loop())
    return f"{kind.__module__}.{kind.__qualname__}"


OURS = "pelton.Loop"


def server_tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def client_tls():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(CERTIFICATE)
    return context


class ProgramTestCase(unittest.TestCase):
    def run_on_pelton(self, body):
        """Run a coroutine function on our loop with a deadline, and fail on anything reported to the loop."""
        reported = []

        async def main():
            self.assertEqual(loop_name(), OURS)
            asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
            return await asyncio.wait_for(body(), DEADLINE)

        result = pelton.run(main())
        self.assertEqual(reported, [])
        return result
