"""Run a program with asyncio's loops replaced by Pelton's: ``python -m pelton script.py`` or ``-m module``."""

import builtins
import importlib.machinery
import importlib.util
import io
import os
import sys
import types

import pelton

USAGE = """\
usage: python -m pelton script.py [ARGUMENT]...
       python -m pelton -m MODULE [ARGUMENT]...

Runs a Python program as python itself would, but every event loop that asyncio creates in it is a pelton.Loop.
"""


class CannotRun(Exception):
    """The program cannot be run. ``status`` is the exit status that Python would use."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


def look_in(directory):
    """Search modules there first, instead of in the directory of this one, unless Python was told to search neither."""
    if not sys.flags.safe_path:
        sys.path[0] = directory


def code_of(spec, name):
    code = spec.loader.get_code(spec.name) if spec is not None and hasattr(spec.loader, "get_code") else None
    if code is None:
        raise CannotRun(f"No code object available for {name}" if spec else f"No module named {name}", 1)
    return code


def known_by(spec):
    """Return the special module attributes for a module that is run."""
    return {
        "__spec__": spec,
        "__file__": spec.origin,
        "__package__": spec.parent,
        "__loader__": spec.loader,
        "__cached__": spec.cached,
    }


def module(name):
    """Return the code of a module to run by its name, and its special attributes."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise CannotRun(f"Error while finding module specification for {name!r} ({type(error).__name__}: {error})", 1)
    return code_of(spec, name), known_by(spec)


def script(path):
    """Return the code of a file, or of the __main__ module of a directory or archive, and its special attributes."""
    path = os.path.join(os.getcwd(), path)
    if not os.path.exists(path):
        raise CannotRun(f"can't open file {path!r}: [Errno 2] No such file or directory", 2)
    spec = importlib.machinery.PathFinder.find_spec("__main__", [path])
    if spec is not None:
        # Even if Python was told not to search the script's directory, because the module is inside it.
        sys.path[:0 if sys.flags.safe_path else 1] = [path]
        return code_of(spec, path), known_by(spec)
    if os.path.isdir(path):
        raise CannotRun(f"can't find '__main__' module in {path!r}", 1)
    look_in(os.path.dirname(os.path.realpath(path)))
    if path.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        with io.open_code(path) as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    return code, {"__spec__": None, "__file__": path, "__package__": None, "__loader__": loader, "__cached__": None}


def leave_us_out(hidden_first):
    """Remove our frames from the traceback of the exception being raised, as if Python itself had run the program."""
    report = sys.excepthook

    def without_us(kind, error, traceback):
        before, rest = None, traceback
        # A module is run by frames of runpy, which come before ours.
        while rest is not None and rest.tb_frame.f_code.co_filename != __file__:
            before, rest = rest, rest.tb_next
        while rest is not None and rest.tb_frame.f_code.co_filename == __file__:
            rest = rest.tb_next
        if not hidden_first and before is not None:
            before.tb_next = rest
            rest = traceback
        error.__traceback__ = rest
        report(kind, error, rest)

    sys.excepthook = without_us


def run(code, known, by_name):
    """Run code as the main module. It stays in sys.modules, because threads and exit handlers may still use it."""
    main = types.ModuleType("__main__")
    main.__dict__.update(known, __annotations__={}, __builtins__=builtins)
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)
    except SystemExit:
        raise
    except BaseException:
        leave_us_out(hidden_first=not by_name)
        raise


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        (sys.stdout if arguments else sys.stderr).write(USAGE)
        return 0 if arguments else 2
    by_name = arguments[0] == "-m"
    if by_name and len(arguments) < 2:
        sys.stderr.write("python -m pelton: -m requires a module name\n" + USAGE)
        return 2
    if not by_name and arguments[0].startswith("-"):
        sys.stderr.write(f"python -m pelton: no such option: {arguments[0]}\n" + USAGE)
        return 2
    pelton.install()
    sys.argv = arguments[1:] if by_name else arguments
    try:
        if by_name:
            look_in(os.getcwd())
            code, known = module(sys.argv[0])
            sys.argv[0] = known["__file__"]
        else:
            code, known = script(sys.argv[0])
    except CannotRun as error:
        sys.stderr.write(f"python -m pelton: {error}\n")
        return error.status
    except SyntaxError:
        # Like Python, without a traceback.
        leave_us_out(hidden_first=True)
        raise
    run(code, known, by_name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
