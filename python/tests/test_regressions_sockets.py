"""Programs with sockets and TLS that once crashed the loop or corrupted data. Each runs in its own process."""

import shutil
import subprocess
import tempfile
import unittest

from own_process import DEADLINE, RegressionTestCase


class Sockets(RegressionTestCase):
    def test_a_protocol_factory_may_close_its_listener_while_connections_are_accepted(self):
        self.check(
            """
            async def main():
                loop = asyncio.get_running_loop()
                made, others = [], []

                class Protocol(asyncio.Protocol):
                    def __init__(self):
                        if not made:
                            server.close()
                            # Another file takes over its number.
                            others.append(socket.create_server(("127.0.0.1", 0)))
                        made.append(self)

                listener = socket.create_server(("127.0.0.1", 0), backlog=10)
                clients = [socket.create_connection(listener.getsockname()) for _ in range(5)]
                server = await loop.create_server(Protocol, sock=listener)
                while len(made) < 5:
                    await asyncio.sleep(0.001)
                for each in clients + others:
                    each.close()

            errors = []
            loop = pelton.new_event_loop()
            loop.set_exception_handler(lambda loop, context: errors.append(context))
            loop.run_until_complete(asyncio.wait_for(main(), 30))
            assert not errors, errors
            """
        )

    def test_a_socket_object_requested_during_its_creation_is_created_once(self):
        self.check(
            """
            async def main():
                loop = asyncio.get_running_loop()
                server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
                transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
                found = []

                def hook(event, arguments):
                    if event == "socket.__new__" and not found:
                        found.append(None)
                        found.append(transport._sock)

                sys.addaudithook(hook)
                sock = transport._sock
                assert found[1] is sock and sock.fileno() >= 0
                fd = sock.fileno()
                gc.collect()
                os.fstat(fd)
                transport.close()
                server.close()

            pelton.run(main())
            """,
            "-W",
            "error::ResourceWarning",
        )


class Tls(RegressionTestCase):
    def test_a_finalizer_that_receives_does_not_change_received_tls_data(self):
        # Before Python 3.12, creating any object may start the garbage collector.
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl program to create a certificate")
        directory = self.enterContext(tempfile.TemporaryDirectory())
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key -out certificate"
        subprocess.run(command.split(), cwd=directory, check=True, capture_output=True, timeout=DEADLINE)
        self.check(
            f"""
            os.chdir({directory!r})
            import ssl
            server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server_context.load_cert_chain("certificate", "key")
            client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            client_context.check_hostname = False
            client_context.verify_mode = ssl.CERT_NONE

            class Cycle:
                def __init__(self):
                    self.me = self
                def __del__(self):
                    if not done:
                        noise.send(b"noise" * 1000)
                        try:
                            loop.sock_recv(quiet, 5000).send(None)
                        except StopIteration:
                            pass
                        Cycle()

            received = bytearray()
            done = False

            class Protocol(asyncio.Protocol):
                def data_received(self, data):
                    received.extend(data)

            async def main():
                global done
                server = await loop.create_server(Protocol, "127.0.0.1", 0, ssl=server_context)
                transport, _ = await loop.create_connection(
                    asyncio.Protocol, *server.sockets[0].getsockname(), ssl=client_context
                )
                gc.set_threshold(1)
                Cycle()
                for _ in range(200):
                    transport.write(b"message")
                    await asyncio.sleep(0)
                while len(received) < 200 * 7:
                    await asyncio.sleep(0.001)
                done = True
                gc.set_threshold(700)
                assert received == b"message" * 200
                transport.close()
                server.close()

            noise, quiet = socket.socketpair()
            quiet.setblocking(False)
            loop = pelton.new_event_loop()
            loop.run_until_complete(asyncio.wait_for(main(), 30))
            """
        )


if __name__ == "__main__":
    unittest.main()
