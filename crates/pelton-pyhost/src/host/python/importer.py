"""Imports the package ``pelton`` from the program that hosts Python, so that it need not be installed.

This code is run, not imported, with ``SOURCES`` (the source of each module by name) and ``NATIVE`` (creates ``pelton._pelton``).
"""

import sys
from importlib.machinery import ModuleSpec


class Importer:
    def __init__(self, sources, native):
        self._sources = sources
        self._native = native

    def find_spec(self, name, path=None, target=None):
        if name in self._sources:
            return ModuleSpec(name, self, origin="embedded", is_package=name == "pelton")
        if name == "pelton._pelton":
            return ModuleSpec(name, self, origin="embedded")
        return None

    def create_module(self, spec):
        return self._native() if spec.name == "pelton._pelton" else None

    def exec_module(self, module):
        name = module.__spec__.name
        if name in self._sources:
            exec(compile(self._sources[name], f"<embedded {name}>", "exec"), module.__dict__)

    def get_source(self, name):
        """Return the source, so that tracebacks can show its lines."""
        return self._sources.get(name)


# First, because an installed package may be of another version.
if not any(type(finder).__qualname__ == "Importer" for finder in sys.meta_path):
    sys.meta_path.insert(0, Importer(SOURCES, NATIVE))  # noqa: F821
