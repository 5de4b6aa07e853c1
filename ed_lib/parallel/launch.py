"""One function in several processes that can talk to each other, and what each of them returns.

Each process is a *rank*: it has a number from 0 to p − 1, its own memory, one thread for computing, and, on
NVIDIA GPUs, its own GPU. ``torch.distributed`` joins them into a group. Under ``torchrun``, which has started
the processes already (on one machine or on many), :func:`launch` starts none and joins their group instead,
so that one script serves both.
"""

import faulthandler
import functools
import itertools
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path

from ed_lib import arrays
from ed_lib.parallel import processes
from ed_lib.parallel.processes import GRACE

BACKENDS = ("gloo", "nccl")
JOINED = itertools.count()  # numbers the groups that were joined under torchrun
WAITING = "torch/distributed"  # what the stack of a rank shows that waits for another


class RankError(RuntimeError):
    """A rank that failed: ``rank`` is its number; the message holds its traceback, or how it ended."""

    def __init__(self, rank, message):
        super().__init__(message)
        self.rank = rank


def launch(fn, world_size, *args, backend="gloo", timeout=60.0):
    """``fn(*args)`` in ``world_size`` processes → the list of what each rank returned, by rank.

    fn: a function that another process can import; args and results: anything that pickle knows, copied, so
    that ranks share no memory. backend: "gloo" (CPU) or "nccl" (one NVIDIA GPU for each rank). timeout:
    seconds for all of it, the start included.

    :class:`RankError`, within the timeout, if a rank raises, ends without a result, or does not end; no
    process is left then either. Before anything starts: TypeError or ValueError for a function or an argument
    that cannot be sent, a world_size below 1, a backend that is unknown, missing, or lacks GPUs. Under
    torchrun: ValueError unless ``world_size`` is what torchrun started.
    """
    world_size = arrays.check_count("world_size", world_size)
    timeout = arrays.check_positive("timeout", timeout)
    _check_backend(backend, world_size)
    if under_torchrun():
        return _join(fn, world_size, args, backend, timeout)
    payload = processes.pickled(fn, args)
    deadline = time.monotonic() + max(timeout - GRACE, timeout / 2)
    with tempfile.TemporaryDirectory(prefix="ed_lib-") as folder:
        _call(folder).write_bytes(payload)
        ranks = []
        watchdog = threading.Timer(timeout, lambda: [rank.process.kill() for rank in ranks])
        watchdog.start()  # for a rank that stops in the middle of its result
        try:
            for number in range(world_size):
                ranks.append(_start(number, world_size, backend, folder, timeout))
            results = _collect(ranks, deadline, timeout)
            for rank in ranks:
                rank.process.join(GRACE)  # they have only to leave
            return results
        finally:
            watchdog.cancel()
            for rank in ranks:
                processes.stop(rank.process, rank.channel)


def device():
    """Where this rank computes: its own GPU under "nccl", else the CPU."""
    import torch
    import torch.distributed as dist

    return torch.device("cuda", local_rank()) if dist.get_backend() == "nccl" else torch.device("cpu")


def local_rank():
    """The number of this rank on its machine."""
    return int(os.environ["LOCAL_RANK"])


def under_torchrun():
    """True in a process that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


@dataclass
class _Rank:
    """A process as the parent sees it."""

    number: int
    process: object
    channel: object  # what it reports through
    trace: Path  # where it writes its stack when told to
    report: tuple | None = None  # ("done", result) or ("raised", (time, traceback))

    def take_report(self):
        try:
            if self.channel.poll():
                self.report = pickle.loads(self.channel.recv_bytes())
        except (EOFError, OSError):  # it ended without one, or in the middle of it
            pass

    @property
    def is_done(self):
        return self.report is not None and self.report[0] == "done"

    @property
    def has_failed(self):
        return not self.is_done and (self.report is not None or not self.process.is_alive())


def _start(number, world_size, backend, folder, timeout):
    arguments = number, world_size, backend, folder, timeout
    process, channel = processes.start(_run, *arguments, name=f"rank {number}")
    return _Rank(number, process, channel, _trace(folder, number))


def _trace(folder, number):
    return Path(folder) / f"trace-{number}"


def _call(folder):
    """The file that holds fn and its arguments: a pipe would block on a process that never reads it."""
    return Path(folder) / "call"


def _collect(ranks, deadline, timeout):
    """The results, once all have reported; RankError for the first that failed, or at the deadline."""
    while waiting := [rank for rank in ranks if not rank.is_done]:
        sources = {rank.channel: rank for rank in waiting} | {rank.process.sentinel: rank for rank in waiting}
        ready = connection.wait(sources, max(0, deadline - time.monotonic()))
        if not ready:
            raise _too_late(waiting, timeout)
        for rank in {id(sources[source]): sources[source] for source in ready}.values():
            rank.take_report()
        if any(rank.has_failed for rank in waiting):
            raise _cause(waiting) if time.monotonic() < deadline else _too_late(waiting, timeout)
    return [rank.report[1] for rank in ranks]


def _cause(ranks):
    """The error of the rank that failed first. Others often fail just after, because it is gone."""
    time.sleep(GRACE)
    for rank in ranks:
        if rank.report is None:
            rank.take_report()
    for rank in ranks:
        if rank.report is None and not rank.process.is_alive():
            return RankError(rank.number, f"rank {rank.number} {processes.ending(rank.process.exitcode)}")
    raised = [rank for rank in ranks if rank.report is not None and not rank.is_done]
    first = min(raised, key=lambda rank: rank.report[1][0])
    return RankError(first.number, f"rank {first.number} raised an error:\n{first.report[1][1]}")


def _too_late(ranks, timeout):
    """The error of ranks that did not end: those that hang by themselves before those that wait for them."""
    texts = {}
    for rank in ranks:
        if rank.trace.exists() and rank.process.is_alive():  # it has got as far as listening to the signal
            os.kill(rank.process.pid, signal.SIGUSR1)
    time.sleep(GRACE)
    for rank in ranks:
        texts[rank.number] = rank.trace.read_text() if rank.trace.exists() else "It was still starting.\n"
    numbers = sorted(texts, key=lambda number: (WAITING in texts[number], number))
    where = "\n".join(f"rank {number} was here:\n{texts[number]}" for number in numbers)
    names = ", ".join(f"rank {number}" for number in numbers)
    return RankError(numbers[0], f"{names} did not end within {timeout:g} s\n{where}")


def _run(channel, number, world_size, backend, folder, timeout):
    """What a started process does."""
    trace = open(_trace(folder, number), "w")  # noqa: SIM115  open as long as the process is
    faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(world_size))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    try:
        import torch.distributed as dist

        _prepare(backend)
        fn, args = pickle.loads(_call(folder).read_bytes())
        where = {"init_method": f"file://{folder}/rendezvous", "rank": number, "world_size": world_size}
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **where)
        result = fn(*args)
        dist.barrier()  # none leaves while another still waits for what it has sent
        report = pickle.dumps(("done", result))
    except BaseException as error:  # SystemExit as well: a rank that leaves early leaves the others waiting
        report = pickle.dumps(("raised", (time.monotonic(), processes.error_text(error, __file__))))
    channel.send_bytes(report)  # before the group is destroyed, which makes errors in the others
    if dist.is_initialized():
        dist.destroy_process_group()


def _prepare(backend):
    processes.one_thread()
    if backend == "nccl":
        import torch

        torch.cuda.set_device(local_rank())


def _join(fn, world_size, args, backend, timeout):
    """The same where torchrun has started the processes: every one of them gets the list of results."""
    import torch.distributed as dist

    started = int(os.environ["WORLD_SIZE"])
    if world_size != started:
        raise ValueError(f"world_size is {world_size}; wanted {started}, which torchrun has started")
    _prepare(backend)
    store = dist.PrefixStore(f"launch {next(JOINED)}", _store())  # it keeps what earlier groups wrote in it
    store.set_timeout(timedelta(seconds=timeout))
    where = {"store": store, "rank": int(os.environ["RANK"]), "world_size": world_size}
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **where)
    try:
        results = [None] * world_size
        dist.all_gather_object(results, fn(*args))
        return results
    finally:
        dist.destroy_process_group()


@functools.cache
def _store():
    """Where torchrun's processes find each other."""
    import torch.distributed as dist

    store, _, _ = next(dist.rendezvous("env://"))
    return store


def _check_backend(backend, world_size):
    import torch
    import torch.distributed as dist

    arrays.check_choice("backend", backend, BACKENDS)
    built = [name for name in BACKENDS if dist.is_available() and dist.is_backend_available(name)]
    if backend not in built:
        raise ValueError(f"backend is {backend!r}, which this PyTorch was built without; it has {built}")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) if under_torchrun() else world_size
    if backend == "nccl" and here > (gpus := torch.cuda.device_count()):
        wanted = "one for each rank, since NCCL refuses two ranks on one GPU"
        raise ValueError(f"backend is 'nccl' with {here} rank(s) and {gpus} GPU(s); wanted {wanted}")
