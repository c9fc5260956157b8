"""Support code of the host in Python: ``pelton._host``, which exists only in programs that host Python."""

import asyncio
import logging
import os
import site
import sys
import traceback

import pelton

logger = logging.getLogger("pelton")


class Interrupted(BaseException):
    """Raised in a running task when the host interrupts it."""


pelton.Interrupted = Interrupted


def prepare(paths, arguments):
    """Set ``sys.argv``, and insert directories at the start of ``sys.path``."""
    sys.argv[:] = arguments
    sys.path[:0] = [path for path in paths if path not in sys.path]


def activate(environment):
    """Use the packages of a virtual environment. Return what is wrong with it, or None."""
    try:
        with open(os.path.join(environment, "pyvenv.cfg"), encoding="utf-8") as file:
            settings = dict(
                (key.strip().lower(), value.strip()) for key, found, value in (line.partition("=") for line in file) if found
            )
    except OSError as error:
        return f"not a virtual environment: {error.strerror} ({error.filename})"
    ours = "{}.{}".format(*sys.version_info)
    theirs = settings.get("version") or settings.get("version_info") or ours
    if theirs.split(".")[:2] != ours.split("."):
        return f"made for Python {theirs}, but this is {ours}"
    packages = os.path.join(environment, "lib", f"python{ours}", "site-packages")
    if not os.path.isdir(packages):
        return f"{packages} does not exist"
    before = list(sys.path)
    if settings.get("include-system-site-packages", "false").lower() != "true":
        shared = {os.path.realpath(path) for path in (*site.getsitepackages(), site.getusersitepackages())}
        before = [path for path in before if os.path.realpath(path) not in shared]
    sys.path[:] = before
    site.addsitedir(packages)
    added = [path for path in sys.path if path not in before]
    # Packages of the environment come before those of the system, and after paths that the program added.
    place = next((at for at, path in enumerate(before) if path.endswith("-packages")), len(before))
    sys.path[:] = [*before[:place], *added, *before[place:]]
    sys.prefix = sys.exec_prefix = environment
    sys.executable = os.path.join(environment, "bin", "python")
    os.environ["VIRTUAL_ENV"] = environment
    return None


def _plain(text):
    """Replace lone surrogates, which are not valid Unicode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def describe(exception):
    """Return the name of an exception's class, its message, and its traceback."""
    kind = type(exception)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(exception)
    except BaseException as error:  # noqa: B036
        message = f"<no message: {type(error).__name__}>"
    try:
        text = "".join(traceback.format_exception(exception))
    except BaseException as error:  # noqa: B036
        text = f"<no traceback: {type(error).__name__}>\n"
    return _plain(name), _plain(message), _plain(text)


async def wait_for(awaitable):
    """Await an object that is not a coroutine: a task can only be created from a coroutine."""
    return await awaitable


async def stream(source, sink):
    """Send the items of a generator, with flow control."""
    if hasattr(source, "__await__"):
        source = await source
    try:
        if hasattr(source, "__anext__") or hasattr(source, "__aiter__"):
            async for item in source:
                if not sink.put(item):
                    await sink.room()
        else:
            for item in source:
                if not sink.put(item):
                    await sink.room()
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
        else:
            close = getattr(source, "close", None)
            if close is not None:
                close()


def complete(awaitable):
    """Run an awaitable to its end, on a thread without a loop."""
    if asyncio._get_running_loop() is not None:
        close = getattr(awaitable, "close", None)
        if close is not None:
            close()
        raise RuntimeError("an awaitable cannot be awaited in a call that is made while its loop waits")
    with asyncio.Runner(loop_factory=pelton.new_event_loop) as runner:
        return runner.run(wait_for(awaitable))


def run(loop):
    """Run a loop until it is told to stop, whatever exceptions escape from it."""
    asyncio.set_event_loop(loop)
    while True:
        try:
            loop.run_forever()
            return
        except BaseException as error:  # noqa: B036
            # In asyncio, a task that raises SystemExit or KeyboardInterrupt ends the run. The waiter gets the
            # exception, and the loop keeps running for everyone else.
            logger.debug("a task raised %r, the loop keeps running", error)


def finish(loop, seconds):
    """Cancel the remaining tasks of a loop and close it. Return the number of tasks that did not end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()

    async def end():
        left = 0
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=seconds)
            left = len(pending)
        await loop.shutdown_asyncgens()
        executor = loop._default_executor
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
        return left

    left = 0
    try:
        left = loop.run_until_complete(end())
    except BaseException as error:  # noqa: B036
        logger.warning("the loop failed to shut down: %r", error)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    return left


def stack_of(thread):
    """Return the stack of a thread, as Python prints it."""
    frame = sys._current_frames().get(thread)
    return "" if frame is None else _plain("".join(traceback.format_stack(frame)))
