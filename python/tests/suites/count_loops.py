"""A pytest plugin that counts the tests that create our loop, and reports failures, as JSON."""

import json
import os

import pytest

import pelton


class Count:
    def __init__(self):
        self.made = 0
        self.with_ours = 0
        self.passed = 0
        self.failed = {}
        make = pelton.EventLoopPolicy._loop_factory

        def counted(*args):
            self.made += 1
            return make(*args)

        pelton.EventLoopPolicy._loop_factory = staticmethod(counted)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self):
        before = self.made
        result = yield
        self.with_ours += self.made > before
        return result

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed[report.nodeid] = True
        elif report.when == "call" and report.passed:
            self.passed += 1

    def pytest_sessionfinish(self):
        said = {"failed": list(self.failed), "passed": self.passed, "with_ours": self.with_ours}
        with open(os.environ["PELTON_SUITE_REPORT"], "w") as file:
            json.dump(said, file)


def pytest_configure(config):
    config.pluginmanager.register(Count())
