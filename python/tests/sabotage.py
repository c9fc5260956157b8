"""Loops with one fault each, to check that the runner of CPython's tests detects it: `conformance.py --sabotage`.

Each comes with a test of CPython that must fail, and, for crashes and hangs, with text that the report must contain. On a
correct loop the same tests must pass.
"""

import ctypes
import os

import pelton


class TimersFireAtOnce(pelton.Loop):
    def call_at(self, when, callback, *args, context=None):
        return super().call_at(0, callback, *args, context=context)

    def call_later(self, delay, callback, *args, context=None):
        return super().call_later(0, callback, *args, context=context)


class TimersNeverFire(pelton.Loop):
    def call_at(self, when, callback, *args, context=None):
        return super().call_at(when + 1e6, callback, *args, context=context)

    def call_later(self, delay, callback, *args, context=None):
        return super().call_later(delay + 1e6, callback, *args, context=context)


class ContextsAreForgotten(pelton.Loop):
    def call_soon(self, callback, *args, context=None):
        return super().call_soon(callback, *args)


class ErrorsAreSwallowed(pelton.Loop):
    def call_exception_handler(self, context):
        pass


class DebugModeIsOff(pelton.Loop):
    def set_debug(self, enabled):
        super().set_debug(False)


class ThreadsDoNotWakeIt(pelton.Loop):
    def call_soon_threadsafe(self, callback, *args, context=None):
        self.call_later(1e6, callback, *args)


class ReceivingLosesAByte(pelton.Loop):
    async def sock_recv(self, sock, n):
        return (await super().sock_recv(sock, n))[1:]


class ServersStartAtOnce(pelton.Loop):
    async def create_server(self, *args, **options):
        options.pop("start_serving", None)
        return await super().create_server(*args, **options)


class NamesOfServersAreNotChecked(pelton.Loop):
    async def create_connection(self, *args, **options):
        if getattr(options.get("ssl"), "check_hostname", False):
            options["ssl"].check_hostname = False
        return await super().create_connection(*args, **options)


class SignalsAreIgnored(pelton.Loop):
    def add_signal_handler(self, signal, callback, *args):
        super().add_signal_handler(signal, int)


class ItStaysOpen(pelton.Loop):
    def is_closed(self):
        return False


class ItCrashes(pelton.Loop):
    async def create_server(self, *args, **options):
        os.abort()


class HandlesAreReleasedTwice(pelton.Loop):
    """Only for the generator of hostile programs: which test detects it is a matter of chance."""

    def call_soon(self, callback, *args, context=None):
        handle = super().call_soon(callback, *args, context=context)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(handle))
        return handle


class Sabotage:
    def __init__(self, loop, test, says=""):
        self.loop, self.test, self.says = loop, test, says


SABOTAGES = {
    sabotage.loop.__name__: sabotage
    for sabotage in (
        Sabotage(TimersFireAtOnce, "test_timeouts.TimeoutTests.test_timeout_not_called"),
        Sabotage(TimersNeverFire, "test_events.SelectEventLoopTests.test_call_later", "no result within"),
        Sabotage(ContextsAreForgotten, "test_tasks.CTask_CFuture_SubclassTests.test_context_1"),
        Sabotage(ErrorsAreSwallowed, "test_streams.StreamTests.test_unhandled_exceptions"),
        Sabotage(DebugModeIsOff, "test_events.HandleTests.test_handle_source_traceback"),
        Sabotage(ThreadsDoNotWakeIt, "test_events.SelectEventLoopTests.test_run_in_executor", "no result within"),
        Sabotage(ReceivingLosesAByte, "test_sock_lowlevel.SelectEventLoopTests.test_sock_client_ops"),
        Sabotage(ServersStartAtOnce, "test_server.SelectorStartServerTests.test_start_server_1"),
        Sabotage(NamesOfServersAreNotChecked, "test_events.SelectEventLoopTests.test_create_server_ssl_match_failed"),
        Sabotage(SignalsAreIgnored, "test_events.SelectEventLoopTests.test_add_signal_handler"),
        Sabotage(ItStaysOpen, "test_events.SelectEventLoopTests.test_close"),
        Sabotage(ItCrashes, "test_server.SelectorStartServerTests.test_start_server_1", "exit status -6"),
    )
}
