"""Checks that the generator of hostile programs covers all methods and detects faults."""

import asyncio
import os
import subprocess
import sys
import unittest
from asyncio import base_events, base_subprocess, selector_events, unix_events

import pelton
from torture import servers, streams, tables

DEADLINE = 300


def public(cls):
    return {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))}


class Coverage(unittest.TestCase):
    """Coverage: methods and protocol callbacks that a later version of Python adds must be added here too."""

    CLASSES = {
        "loop": pelton.Loop,
        "handle": pelton.Handle,
        "timer": pelton.TimerHandle,
        "server": base_events.Server,
        "stream": pelton.StreamTransport,
        "datagrams": selector_events._SelectorDatagramTransport,
        "read pipe": unix_events._UnixReadPipeTransport,
        "write pipe": unix_events._UnixWritePipeTransport,
        "process": base_subprocess.BaseSubprocessTransport,
    }

    def test_every_public_method_is_called(self):
        self.assertEqual(set(self.CLASSES), set(tables.TABLES))
        for kind, cls in self.CLASSES.items():
            with self.subTest(kind):
                elsewhere = {name for each, name in tables.ELSEWHERE if each == kind}
                self.assertEqual(public(cls) - set(tables.TABLES[kind]) - elsewhere, set())

    def test_every_callback_of_protocols_is_hostile(self):
        for hostile, protocol in (
            (streams.HostileStream, asyncio.Protocol),
            (streams.HostileBuffer, asyncio.BufferedProtocol),
            (servers.HostileDatagrams, asyncio.DatagramProtocol),
            (tables.HostileProcess, asyncio.SubprocessProtocol),
        ):
            for name in public(protocol):
                with self.subTest(protocol=protocol.__name__, callback=name):
                    self.assertIsNot(getattr(hostile, name), getattr(protocol, name))


class Sabotage(unittest.TestCase):
    """Loops with one fault each, which must be detected."""

    def torture(self, *options, sabotage=""):
        here = os.path.dirname(os.path.abspath(__file__))
        return subprocess.run(
            [sys.executable, "-m", "torture", "--first", "1", *options],
            cwd=here,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([here, *(each for each in sys.path if each)]),
                "PELTON_TORTURE_SABOTAGE": sabotage,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    def test_faults_are_detected(self):
        for sabotage, kind, count in (
            ("ReceivingLosesAByte", "servers", "12"),
            ("ItCrashes", "servers", "6"),
            ("ErrorsAreSwallowed", "handles", "8"),
            ("ContextsAreForgotten", "handles", "16"),
            ("HandlesAreReleasedTwice", "handles", "8"),
        ):
            with self.subTest(sabotage):
                ended = self.torture("--only", kind, "--count", count, sabotage=sabotage)
                self.assertEqual(ended.returncode, 1, ended.stdout[-2000:])
                self.assertIn("FAILED: seed", ended.stdout)
                self.assertIn("replay: ", ended.stdout)


if __name__ == "__main__":
    unittest.main()
