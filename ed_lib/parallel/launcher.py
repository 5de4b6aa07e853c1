"""One function in several processes that can talk to each other, and what each of them returns.

Each process is a *rank*: it has a number from 0 to p − 1, its own memory, one thread for computing,
and, on NVIDIA GPUs, its own GPU. Under ``torchrun``, which has started the processes already,
:func:`launch` starts none and joins their group instead, so that one script serves both.
"""

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from threadpoolctl import threadpool_limits

from ed_lib import check
from ed_lib.parallel import pickled_call

# A fork of this process would inherit locks of OpenMP and CUDA, and hang; a new process imports
# PyTorch, for seconds. So a server imports it once, computes nothing, and is forked. (macOS does
# not bear even that.) The server's socket lies in the folder of temporary files, and its path has
# to fit into the 108 bytes of a socket's address.
LONGEST_FOLDER = 70
FORKS = sys.platform == "linux" and len(os.path.abspath(tempfile.gettempdir())) < LONGEST_FOLDER
CONTEXT: Any = multiprocessing.get_context("forkserver" if FORKS else "spawn")
if FORKS:
    # Torch's optimizers import dynamo, which takes as long as all the rest.
    CONTEXT.set_forkserver_preload(
        ["torch.distributed", "torch._dynamo", "ed_lib.parallel.launcher"]
    )
GRACE = 1.0  # seconds that the others have to say so, once a rank has failed
# how much earlier a process that dies closes its sockets, at the most, which is what others see
TEARDOWN = 0.5
MARGIN = 0.5  # seconds before the timeout when ranks say where they are
PAUSE = 0.001  # seconds between two looks at a process that is about to end
# The longest that one call may wait, in seconds: the system counts some waits in milliseconds, with
# 32 bits. A timeout beyond is waited for day by day, and of a group is a year.
DAY = 24 * 3600.0
YEAR = 365 * DAY
# What torchrun says to each process that it starts.
TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class RankError(RuntimeError):
    """A rank that failed: ``rank`` is its number; the message holds its traceback, or how it
    ended.
    """

    def __init__(self, rank: int, message: str):
        super().__init__(message)
        self.rank = rank


def launch(
    fn: Callable, world_size: int, *args: Any, backend: str = "gloo", timeout: float = 60.0
) -> list[Any]:
    """``fn(*args)`` in ``world_size`` processes → the list of what each rank returned, by rank.

    fn: a function that another process can import; args and results: anything that pickle knows,
    copied. backend: "gloo" (CPU) or "nccl" (one NVIDIA GPU for each rank). timeout: seconds for all
    of it. :class:`RankError`, within the timeout, if a rank raises, ends without a result, or does
    not end, or if, under torchrun, not all ranks come; no process is left then either.
    """
    end = time.monotonic() + check.positive("timeout", timeout)
    check.count("world_size", world_size)
    here = [name for name in ("gloo", "nccl") if dist.is_backend_available(name)]
    check.choice("backend", backend, here)
    if dist.is_torchelastic_launched():
        return _join(fn, world_size, args, backend, timeout)
    payload = pickled_call.pickled(fn, args)
    processes = []
    # The ranks, and the server that forks them, may work in another folder than this process.
    there = os.path.abspath(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="ed_lib-", dir=there) as folder:
        Path(folder, "call").write_bytes(payload)
        try:
            for rank in range(world_size):
                call = dict(os.environ), folder, rank, world_size, backend, timeout, end
                process = CONTEXT.Process(target=_run, args=call, name=f"rank {rank}")
                processes.append(process)
                process.start()
            return _results(processes, Path(folder), end, timeout)
        finally:
            # None of them outlives this call. All are killed before one is waited for. A start may
            # have failed, or have been interrupted: its process has no number yet, and no kill().
            begun = [process for process in processes if process.pid]
            for process in begun:
                process.kill()
            for process in begun:
                process.join()


def device() -> torch.device:
    """Where this rank computes: its own GPU under "nccl", else the CPU."""
    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


@dataclass(frozen=True, order=True)
class Failure:
    """How a rank failed, in words. The first in time comes first: it causes the others."""

    when: float
    rank: int
    how: str


def _results(processes, folder, end, timeout):
    """What each rank returned. RankError for the first that failed, or for those that do not end in
    time.
    """
    results = {}
    failures = []
    waiting = {process.sentinel: rank for rank, process in enumerate(processes)}
    while waiting and (now := time.monotonic()) < end:
        for sentinel in connection.wait(waiting, min(end - now, DAY)):
            rank = waiting.pop(sentinel)
            failure, result = _report(processes[rank], rank, folder, now)
            if failure:
                failures.append(failure)
                end = min(end, time.monotonic() + GRACE)
            else:
                results[rank] = result
    if failures:
        first = min(failures)
        raise RankError(first.rank, f"rank {first.rank} {first.how}")
    if waiting:
        raise _late(waiting.values(), folder, timeout)
    return [results[rank] for rank in range(len(processes))]


def _report(process, rank, folder, now):
    """What a process left that has ended: (Failure or None, what it returned)."""
    code = _exit_code(process)
    report = folder / f"report {rank}"
    if code == 0 and report.exists():
        return pickle.loads(report.read_bytes())
    started = (folder / f"where {rank}").exists()
    # Dated before the errors of others, which it causes.
    return Failure(now - TEARDOWN, rank, _ending(code, started)), None


def _exit_code(process):
    """Of a process whose sentinel says that it has ended. The sentinel of a spawned one is a pipe,
    which closes a moment before the process can be waited for.
    """
    end = time.monotonic() + GRACE
    while process.exitcode is None and time.monotonic() < end:
        time.sleep(PAUSE)
    return process.exitcode


def _ending(code, started):
    """How a process ended that left no report, as words."""
    if code is None:
        return "closed its pipe to the process that launched it, and has not ended"
    if code < 0:
        return f"was ended by the signal {signal.Signals(-code).name}, without a result"
    # A new process imports the script first: there it must not launch again.
    hint = "" if started else "; in a script, launch stands under `if __name__ == '__main__':`"
    return f"exited with code {code}, without a result{hint}"


def _late(ranks, folder, timeout):
    """The error that names the ranks which did not end in time, and where each of them was."""
    places = {rank: _place(folder / f"where {rank}") for rank in ranks}
    # Last those that wait for others.
    late = sorted(places, key=lambda rank: ("torch/distributed" in places[rank], rank))
    names = ", ".join(f"rank {rank}" for rank in late)
    where = "\n".join(f"rank {rank} was here:\n{places[rank]}" for rank in late)
    return RankError(late[0], f"{names} did not end within {timeout:g} s\n{where}")


def _place(file):
    """Where the main thread was, the last of those in a dump."""
    dump = file.read_text() if file.exists() else ""
    return dump.split("\n\n")[-1] or "It was still starting, or stopped."


def _run(variables, folder, rank, world_size, backend, timeout, end):
    """What a rank's process does, in the environment that its parent has now; the fork server has
    an older one. Shortly before ``end`` it says where its main thread is.
    """

    def end_with_the_parent():
        multiprocessing.parent_process().join()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)

    def result():
        fn, args = pickle.loads(Path(folder, "call").read_bytes())
        _enter(backend, f"file://{folder}/store", timeout)
        returned = fn(*args)
        # No rank leaves while another still waits for what it has sent.
        dist.barrier()
        return returned

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    os.environ.clear()
    os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    with open(f"{folder}/where {rank}", "w") as where:
        left = end - MARGIN - time.monotonic()
        faulthandler.dump_traceback_later(min(max(left, PAUSE), YEAR), file=where)
        try:
            report = pickle.dumps((None, result()))
        except BaseException:
            # SystemExit as well: who leaves early leaves the others waiting.
            how = f"raised an error:\n{traceback.format_exc()}"
            report = pickle.dumps((Failure(time.monotonic(), rank, how), None))
        Path(folder, f"report {rank}").write_bytes(report)
        # fn may have closed it.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        # At once: threads of its own may wait for others, which wait for this one.
        os._exit(0)


def _enter(backend, where, timeout):
    """Makes this process the rank that its environment says, in the group that meets there."""
    # One thread each for PyTorch and for NumPy's products: several ranks share the cores.
    torch.set_num_threads(1)
    threadpool_limits(1)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = int(os.environ["RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    limit = timedelta(seconds=min(timeout, YEAR))
    dist.init_process_group(backend, where, limit, world_size, rank)


def _join(fn, world_size, args, backend, timeout):
    """The same where torchrun has started the processes: every one of them gets the list of
    results. One group, with the first call's timeout, serves all calls.
    """
    if missing := [name for name in TORCHRUN if name not in os.environ]:
        came = f"the environment has TORCHELASTIC_RUN_ID and no {', '.join(missing)}"
        raise ValueError(f"{came}; wanted all that torchrun sets, or none of it")
    rank = int(os.environ["RANK"])
    started = int(os.environ["WORLD_SIZE"])
    if world_size != started:
        raise ValueError(
            f"world_size is {world_size}; wanted {started}, which torchrun has started"
        )
    try:
        if not dist.is_initialized():
            _enter(backend, "env://", timeout)
    except dist.DistError as error:
        said = f"rank {rank} did not meet all {started} ranks within {timeout:g} s: {error}"
        raise RankError(rank, said) from None
    check.choice("backend", backend, [dist.get_backend()])
    results = [None] * world_size
    dist.all_gather_object(results, fn(*args))
    return results
