"""One function in several processes that can talk to each other, and what each of them returns.

Each process is a *rank*: it has a number from 0 to p − 1, its own memory, one thread for computing, and, on
NVIDIA GPUs, its own GPU. ``torch.distributed`` joins them into a group. Under ``torchrun``, which has started
the processes already (on one machine or on many), :func:`launch` starts none and joins their group instead,
so that one script serves both.
"""

import faulthandler
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context, parent_process
from pathlib import Path

from ed_lib import arrays

BACKENDS = ("gloo", "nccl")
GRACE = 0.5  # seconds for the other ranks to report, once one has failed: the first failure is the cause
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
    payload = _pickled(fn, args)
    deadline = time.monotonic() + max(timeout - GRACE, timeout / 2)
    with tempfile.TemporaryDirectory(prefix="ed_lib-") as folder:
        ranks = []
        try:
            for number in range(world_size):
                ranks.append(_start(payload, number, world_size, backend, folder, timeout))
            results = _collect(ranks, deadline, timeout)
            for rank in ranks:
                rank.process.join(GRACE)  # they have only to leave
            return results
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.join()
                rank.channel.close()


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
        except EOFError:  # it ended without one
            pass

    @property
    def is_done(self):
        return self.report is not None and self.report[0] == "done"

    @property
    def has_failed(self):
        return not self.is_done and (self.report is not None or not self.process.is_alive())


def _start(payload, number, world_size, backend, folder, timeout):
    context = get_context("spawn")  # a fork would inherit threads and locks of OpenMP and CUDA, and hang
    ours, theirs = context.Pipe(duplex=False)
    arguments = payload, number, world_size, backend, folder, timeout, theirs
    process = context.Process(target=_run, args=arguments, name=f"rank {number}")
    process.start()
    theirs.close()  # so that ours ends when the process does
    return _Rank(number, process, ours, _trace(folder, number))


def _trace(folder, number):
    return Path(folder) / f"trace-{number}"


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
            raise _cause(waiting)
    return [rank.report[1] for rank in ranks]


def _cause(ranks):
    """The error of the rank that failed first. Others often fail just after, because it is gone."""
    time.sleep(GRACE)
    for rank in ranks:
        if rank.report is None:
            rank.take_report()
    for rank in ranks:
        if rank.report is None and not rank.process.is_alive():
            return RankError(rank.number, f"rank {rank.number} {_ending(rank.process.exitcode)}")
    raised = [rank for rank in ranks if rank.report is not None and not rank.is_done]
    first = min(raised, key=lambda rank: rank.report[1][0])
    return RankError(first.number, f"rank {first.number} raised an error:\n{first.report[1][1]}")


def _ending(code):
    if code < 0:
        return f"was ended by the signal {signal.Signals(-code).name}, without a result"
    hint = "; in a script, launch stands under `if __name__ == '__main__':`" if code == 1 else ""
    return f"exited with code {code}, without a result{hint}"


def _too_late(ranks, timeout):
    """The error of ranks that did not end: those that hang by themselves before those that wait for them."""
    texts = {}
    for rank in ranks:
        if rank.trace.exists():  # it has got as far as listening to the signal
            os.kill(rank.process.pid, signal.SIGUSR1)
    time.sleep(GRACE)
    for rank in ranks:
        texts[rank.number] = rank.trace.read_text() if rank.trace.exists() else "It was still starting.\n"
    numbers = sorted(texts, key=lambda number: (WAITING in texts[number], number))
    where = "\n".join(f"rank {number} was here:\n{texts[number]}" for number in numbers)
    names = ", ".join(f"rank {number}" for number in numbers)
    return RankError(numbers[0], f"{names} did not end within {timeout:g} s\n{where}")


def _run(payload, number, world_size, backend, folder, timeout, channel):
    """What a started process does."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    trace = open(_trace(folder, number), "w")  # noqa: SIM115  open as long as the process is
    faulthandler.register(signal.SIGUSR1, file=trace, all_threads=False)
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=str(world_size))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    try:
        import torch.distributed as dist

        _prepare(backend)
        fn, args = pickle.loads(payload)
        where = {"init_method": f"file://{folder}/rendezvous", "rank": number, "world_size": world_size}
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **where)
        result = fn(*args)
        dist.barrier()  # none leaves while another still waits for what it has sent
        report = pickle.dumps(("done", result))
    except BaseException as error:  # SystemExit as well: a rank that leaves early leaves the others waiting
        report = pickle.dumps(("raised", (time.monotonic(), _traceback(error))))
    channel.send_bytes(report)  # before the group is destroyed, which makes errors in the others
    if dist.is_initialized():
        dist.destroy_process_group()


def _prepare(backend):
    """One thread for computing, and the GPU of this rank."""
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)  # NumPy's products
    if backend == "nccl":
        torch.cuda.set_device(local_rank())


def _traceback(error):
    """Its traceback as text, from the function that was launched on."""
    where = error.__traceback__
    while where.tb_next and where.tb_frame.f_code.co_filename == __file__:
        where = where.tb_next
    return "".join(traceback.format_exception(type(error), error, where))


def _end_with_parent():
    parent_process().join()
    os._exit(1)


def _join(fn, world_size, args, backend, timeout):
    """The same where torchrun has started the processes: every one of them gets the list of results."""
    import torch.distributed as dist

    started = int(os.environ["WORLD_SIZE"])
    if world_size != started:
        raise ValueError(f"world_size is {world_size}; wanted {started}, which torchrun has started")
    _prepare(backend)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        results = [None] * world_size
        dist.all_gather_object(results, fn(*args))
        return results
    finally:
        dist.destroy_process_group()


def _check_backend(backend, world_size):
    import torch
    import torch.distributed as dist

    arrays.check_choice("backend", backend, BACKENDS)
    if not (dist.is_available() and dist.is_backend_available(backend)):
        raise ValueError(f"backend is {backend!r}, which this PyTorch was built without; it has {_built()}")
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size)) if under_torchrun() else world_size
    if backend == "nccl" and here > (gpus := torch.cuda.device_count()):
        wanted = "one for each rank, since NCCL refuses two ranks on one GPU"
        raise ValueError(f"backend is 'nccl' with {here} rank(s) and {gpus} GPU(s); wanted {wanted}")


def _built():
    import torch.distributed as dist

    names = [name for name in BACKENDS if dist.is_available() and dist.is_backend_available(name)]
    return " and ".join(map(repr, names)) or "none"


def _pickled(fn, args):
    """The call as bytes. ValueError for a function that cannot be imported, TypeError for the rest."""
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
