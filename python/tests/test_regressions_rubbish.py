"""Private attributes set to wrong values, which once crashed the loop. Each program runs in its own process."""

import unittest

from own_process import RegressionTestCase


class Rubbish(RegressionTestCase):
    """Private attributes of asyncio or of ours, set to wrong values."""

    def test_a_loop_survives_rubbish_in_its_private_attributes(self):
        self.survive(
            """
            class Equal(int):
                def __hash__(self):
                    return 0
                def __eq__(self, other):
                    loop._transports_by_descriptor = {}
                    gc.collect()
                    return False

            # With _run_once or similar methods replaced, the loop never ends.
            def interrupt(*args):
                raise InterruptedError

            signal.signal(signal.SIGALRM, interrupt)
            a, b = socket.socketpair()
            for name in sorted(set(dir(pelton.Loop)) | set(vars(pelton.new_event_loop()))):
                if name.startswith("__") or not name.startswith("_"):
                    continue
                for value in 5, None, [], {}, {Equal(1): 1}, object(), "x", id, "deleted":
                    loop = pelton.new_event_loop()
                    loop.set_exception_handler(lambda loop, context: None)
                    close = loop._close_core
                    try:
                        if value == "deleted":
                            delattr(loop, name)
                        else:
                            setattr(loop, name, value)
                    except (AttributeError, TypeError, ValueError, OverflowError):
                        close()
                        continue
                    for action in (
                        lambda: loop.add_reader(a, print), lambda: loop.add_reader(0, print), lambda: loop.remove_reader(a),
                        lambda: loop.call_soon(print), lambda: loop.call_later(5, print), loop.create_future,
                        lambda: turn(loop), loop.stats, lambda: loop._ready, lambda: loop._scheduled, loop.close,
                    ):
                        try:
                            signal.setitimer(signal.ITIMER_REAL, 0.3)
                            action()
                        except Exception:
                            pass
                        finally:
                            signal.setitimer(signal.ITIMER_REAL, 0)
                    try:
                        close()
                    except Exception:
                        pass
            os._exit(0)
            """
        )

    def test_a_transport_survives_rubbish_in_its_private_attributes(self):
        self.survive(
            """
            class Protocol(asyncio.Protocol):
                pass

            async def main(name, value):
                loop = asyncio.get_running_loop()
                loop.set_exception_handler(lambda loop, context: None)
                a, b = socket.socketpair()
                a.setblocking(False)
                b.setblocking(False)
                transport, _ = await loop.create_connection(Protocol, sock=a)
                try:
                    if value == "deleted":
                        delattr(transport, name)
                    else:
                        setattr(transport, name, value)
                except (AttributeError, TypeError, ValueError, OverflowError):
                    pass
                for action in (
                    lambda: transport.write(b"x"), lambda: transport.writelines([b"x"]),
                    lambda: transport.write(b"x" * 10_000_000), lambda: transport.get_extra_info("socket"),
                    lambda: transport.get_extra_info("peername"), transport.pause_reading, transport.resume_reading,
                    transport._read_ready, transport._write_ready, transport._start_reading, lambda: b.recv(1_000_000),
                    transport._write_ready, lambda: repr(transport), lambda: transport.set_protocol(Protocol()),
                    transport.write_eof, transport.close, transport.abort, lambda: transport._call_connection_lost(None),
                ):
                    try:
                        action()
                    except Exception:
                        pass
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                a.close(), b.close()

            class Evil:
                def __getattr__(self, name):
                    raise ZeroDivisionError
                def fileno(self):
                    return -7

            names = [name for name in dir(pelton.StreamTransport) if name.startswith("_") and not name.startswith("__")]
            for name in names:
                for value in 5, -5, 1 << 40, None, [], {}, Evil(), "x", print, "deleted":
                    try:
                        pelton.run(main(name, value))
                    except Exception:
                        pass
            os._exit(0)
            """,
            "-W", "ignore",
        )

    def test_a_transport_that_was_not_initialised_refuses_to_write(self):
        self.check(
            """
            transport = pelton.StreamTransport.__new__(pelton.StreamTransport)
            a, b = socket.socketpair()
            a.setblocking(False)
            transport._sock = a
            for data in b"x", b"x" * 10_000_000:
                try:
                    transport.write(data)
                except (RuntimeError, AttributeError):
                    pass
            """
        )


if __name__ == "__main__":
    unittest.main()
