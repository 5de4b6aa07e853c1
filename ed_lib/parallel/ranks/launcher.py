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
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ed_lib import check
from ed_lib.parallel.ranks import processes

BACKENDS = ("gloo", "nccl")
MARGIN = 0.5  # seconds before the timeout when ranks are asked where they are
JOINED = itertools.count()  # numbers the groups that were joined under torchrun
WAITING = "torch/distributed"  # what the stack of a rank shows that waits for another


class RankError(RuntimeError):
    """A rank that failed: ``rank`` is its number; the message holds its traceback, or how it ended."""

    def __init__(self, rank: int, message: str):
        super().__init__(message)
        self.rank = rank


def launch(
    fn: Callable, world_size: int, *args: Any, backend: str = "gloo", timeout: float = 60.0
) -> list[Any]:
    """``fn(*args)`` in ``world_size`` processes → the list of what each rank returned, by rank.

    fn: a function that another process can import; args and results: anything that pickle knows, copied, so
    that ranks share no memory. backend: "gloo" (CPU) or "nccl" (one NVIDIA GPU for each rank). timeout:
    seconds for all of it, the start included.

    :class:`RankError`, within the timeout, if a rank raises, ends without a result, or does not end; no
    process is left then either. Under torchrun ``world_size`` has to be what torchrun started.
    """
    start = time.monotonic()
    world_size = check.count("world_size", world_size)
    timeout = check.positive("timeout", timeout)
    _check_backend(backend, world_size)
    if under_torchrun():
        return _join(fn, world_size, args, backend, timeout)
    payload, store = processes.pickled(fn, args), _store_here()
    end = start + max(timeout - MARGIN, timeout / 2)
    call = [(number, world_size, backend, store.port, timeout, end) for number in range(world_size)]
    with processes.team("rank", _run, call, start + timeout) as ranks:
        for rank in ranks:
            rank.send(payload)
        return _collect(ranks, end, timeout)


def device() -> torch.device:
    """Where this rank computes: its own GPU under "nccl", else the CPU."""
    return torch.device("cuda", local_rank()) if dist.get_backend() == "nccl" else torch.device("cpu")


def local_rank() -> int:
    """The number of this rank on its machine."""
    return int(os.environ["LOCAL_RANK"])


def under_torchrun() -> bool:
    """True in a process that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _store_here():
    """Where the ranks find each other: in this process, and for this machine only."""
    server = socket.create_server(("127.0.0.1", 0))  # any port that is free
    host, port = server.getsockname()
    return dist.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=server.detach())


def _collect(ranks, end, timeout):
    """The results, once all have reported; RankError for the first that failed, or at the end."""
    results, failures, waiting, until = {}, [], list(ranks), end
    while waiting and time.monotonic() < until:
        since = time.monotonic()
        for rank in processes.ready(waiting, until):
            kind, value = rank.receive() or ("ended", None)
            if time.monotonic() >= end:
                break
            waiting.remove(rank)
            if kind == "done":
                results[rank.number] = value
            elif kind == "raised":
                failures.append((value[0], rank.number, f"raised an error:\n{value[1]}"))
            else:  # dated before the errors of others, which it causes
                failures.append((since, rank.number, rank.ending()))
        if failures and until == end:  # one that failed before may be slower to say so
            until = min(end, time.monotonic() + processes.GRACE)
    if failures:
        _, number, text = min(failures)
        raise RankError(number, f"rank {number} {text}")
    if waiting:
        raise _too_late(waiting, timeout)
    return [results[rank.number] for rank in ranks]


def _too_late(ranks, timeout):
    """The error of ranks that did not end: those that hang by themselves before those that wait for them."""
    time.sleep(MARGIN / 2)  # they say where they are
    texts = {}
    for rank in ranks:
        _, _, where = rank.rest().decode(errors="replace").partition(")!\n")  # after faulthandler's headline
        texts[rank.number] = where or "It was still starting, or stopped.\n"
    numbers = sorted(texts, key=lambda number: (WAITING in texts[number], number))
    where = "\n".join(f"rank {number} was here:\n{texts[number]}" for number in numbers)
    names = ", ".join(f"rank {number}" for number in numbers)
    return RankError(numbers[0], f"{names} did not end within {timeout:g} s\n{where}")


def _run(channel, number, world_size, backend, port, timeout, end):
    """What a started process does. At ``end`` the parent takes no more reports: it says where it is."""
    wait = max(end + MARGIN / 5 - time.monotonic(), 0.001)
    faulthandler.dump_traceback_later(wait, file=channel.fileno())
    report = processes.attempt(_result, channel.recv_bytes(), number, world_size, backend, port, timeout)
    faulthandler.cancel_dump_traceback_later()
    channel.send_bytes(report)  # before the group is destroyed, which makes errors in the others
    if dist.is_initialized():
        dist.destroy_process_group()


def _result(payload, number, world_size, backend, port, timeout):
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(world_size))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    fn, args = pickle.loads(payload)
    _enter(dist.TCPStore("127.0.0.1", port), backend, timeout)
    result = fn(*args)
    dist.barrier()  # none leaves while another still waits for what it has sent
    return result


def _enter(store, backend, timeout):
    """Makes this process the rank that its environment says, in the group that meets in this store."""
    processes.one_thread()
    if backend == "nccl":
        torch.cuda.set_device(local_rank())
    limit = timedelta(seconds=timeout)
    store.set_timeout(limit)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)


def _join(fn, world_size, args, backend, timeout):
    """The same where torchrun has started the processes: every one of them gets the list of results."""
    started = int(os.environ["WORLD_SIZE"])
    if world_size != started:
        raise ValueError(f"world_size is {world_size}; wanted {started}, which torchrun has started")
    store = dist.PrefixStore(f"launch {next(JOINED)}", _store())  # it keeps what earlier groups wrote in it
    _enter(store, backend, timeout)
    try:
        results = [None] * world_size
        dist.all_gather_object(results, fn(*args))
        return results
    finally:
        dist.destroy_process_group()


@functools.cache
def _store():
    """Where torchrun's processes find each other."""
    store, _, _ = next(dist.rendezvous("env://"))
    return store


def _check_backend(backend, world_size):
    check.choice("backend", backend, BACKENDS)
    built = [name for name in BACKENDS if dist.is_available() and dist.is_backend_available(name)]
    if backend not in built:
        raise ValueError(f"backend is {backend!r}, which this PyTorch was built without; it has {built}")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) if under_torchrun() else world_size
    if backend == "nccl" and here > (gpus := torch.cuda.device_count()):
        wanted = "one for each rank, since NCCL refuses two ranks on one GPU"
        raise ValueError(f"backend is 'nccl' with {here} rank(s) and {gpus} GPU(s); wanted {wanted}")
