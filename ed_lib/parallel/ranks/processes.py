"""Processes that compute for this one: how they start, what they say, and how they end.

:mod:`.launcher` makes ranks of them, ``asynchronous.workers`` the workers of a server.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from multiprocessing import connection, get_context
from typing import Any

import torch
from threadpoolctl import threadpool_limits

# A fork of this process would inherit threads and locks of OpenMP and CUDA, and hang; a new process imports
# PyTorch first, for seconds. So a server imports it once, computes nothing, and is forked. (Under macOS the
# system's own libraries do not bear even that.)
FORKS = sys.platform == "linux" and len(tempfile.gettempdir()) < 70  # where the server's socket fits
CONTEXT: Any = get_context("forkserver" if FORKS else "spawn")
if FORKS:
    CONTEXT.set_forkserver_preload(["torch.distributed", "threadpoolctl", "ed_lib.parallel.ranks.launcher"])
GRACE = 1.0  # seconds that the others have to report, once one has failed, or to leave, once all is done
# Ends the processes that it is told of, once the one that tells it is gone. Their own threads could not: an
# import may keep them from running for seconds.
GUARD = """
import os, signal, sys
for pid in list(sys.stdin):
    try:
        os.kill(int(pid), signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


def pickled(fn: Callable, args: tuple = ()) -> bytes:
    """The call ``fn(*args)`` as bytes, for a process. The errors say what cannot be sent, and what to do."""
    if not callable(fn):
        raise TypeError(f"fn is {fn!r}; wanted a function")
    name, module = getattr(fn, "__qualname__", ""), getattr(fn, "__module__", None)
    if "<" in name:
        raise ValueError(f"fn is {name!r}, which no other process can import; wanted one at a module's top")
    if module == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise ValueError(
            f"fn is {name!r}, defined in a notebook's cell or at the prompt, where no other process can "
            f"import it. Write it into a file, with `%%writefile ranks.py` at the top of the cell, and pass "
            f"`ranks.{name}` after `import ranks`"
        )
    for what, value in {"fn": fn, **{f"argument {n} of fn": arg for n, arg in enumerate(args)}}.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            raise TypeError(f"{what} is {value!r}, which pickle cannot send to a process: {error}") from error
    return pickle.dumps((fn, args))


@contextlib.contextmanager
def team(name: str, target: Callable, arguments: Iterable[tuple], end: float) -> Iterator[list["Child"]]:
    """``target(channel, *args)`` in a process for each args in ``arguments`` → the :class:`Child` of each.

    None of them outlives the block, the time ``end``, or this process, however it ends.
    """
    children: list[Child] = []
    guard: Any = subprocess.Popen(
        [sys.executable, "-ISc", GUARD], stdin=subprocess.PIPE, start_new_session=True
    )
    late = end - time.monotonic()
    watchdog = threading.Timer(late, lambda: [child.process.kill() for child in children])
    try:
        for number, args in enumerate(arguments):
            children.append(Child(number, f"{name} {number}", target, args))
            guard.stdin.write(b"%d\n" % children[-1].process.pid)
            guard.stdin.flush()
        watchdog.start()  # for a child that stops in the middle of a message
        yield children
        for child in children:
            child.process.join(GRACE)  # they have only to leave
    finally:
        watchdog.cancel()
        for child in children:
            child.process.kill()
        for child in children:
            child.process.join()
            child.channel.close()
        guard.kill()
        guard.communicate()


def _in_environment(variables, target, *args):
    """``target(*args)`` with the parent's environment as it is now; the fork server has an older one."""
    os.environ.clear()
    os.environ.update(variables)
    target(*args)


class Child:
    """A process as this one sees it."""

    def __init__(self, number: int, name: str, target: Callable, args: tuple):
        self.number, self.is_alive = number, True
        self.channel, theirs = CONTEXT.Pipe()
        call = dict(os.environ), target, theirs, *args
        self.process = CONTEXT.Process(target=_in_environment, args=call, name=name)
        self.process.start()
        theirs.close()  # so that ours ends when the process does

    def send(self, message: bytes) -> bool:
        """False if it is gone."""
        try:
            self.channel.send_bytes(message)
        except OSError:
            self.is_alive = False
        return self.is_alive

    def receive(self) -> Any:
        """Its next report, or None if it is gone, before a report or in the middle of one."""
        try:
            return pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):
            self.is_alive = False
            return None

    def rest(self) -> bytes:
        """What it has written that is no report."""
        with contextlib.suppress(OSError):
            return os.read(self.channel.fileno(), 2**16) if self.channel.poll() else b""
        return b""

    def ending(self) -> str:
        """How it ended, as words."""
        self.process.join(GRACE)
        code = self.process.exitcode
        if code is None:
            return "closed its pipe"
        if code < 0:
            return f"was ended by the signal {signal.Signals(-code).name}, without a result"
        hint = "; in a script, launch stands under `if __name__ == '__main__':`" if code == 1 else ""
        return f"exited with code {code}, without a result{hint}"


def ready(children: Collection[Child], end: float) -> list[Child]:
    """Those from whom something has come, or nothing will; waits for one, until the time ``end``."""
    channels: dict[Any, Child] = {child.channel: child for child in children}
    return [channels[one] for one in connection.wait(channels, max(0, end - time.monotonic()))]


def attempt(function: Callable, *args: Any) -> bytes:
    """The report of a call, for a child to send: ("done", what it returned), or ("raised", (when, text))."""
    try:
        return pickle.dumps(("done", function(*args)))
    except BaseException as error:  # SystemExit as well: who leaves early leaves the others waiting
        when, where, ours = time.monotonic(), error.__traceback__, (__file__, function.__code__.co_filename)
        while where and where.tb_next and where.tb_frame.f_code.co_filename in ours:
            where = where.tb_next
        text = "".join(traceback.format_exception(type(error), error, where))
        return pickle.dumps(("raised", (when, text)))


def one_thread() -> None:
    """Leaves one thread to what computes in this process, so that several do not share the cores."""
    torch.set_num_threads(1)
    threadpool_limits(1)  # NumPy's products
