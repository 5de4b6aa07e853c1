"""A machine's ceilings: how fast it moves bytes and multiplies matrices at best. The floor that a
computation cannot beat follows from them (``timing.floor``). The roofline model of S. Williams, A.
Waterman and D. Patterson, Communications of the ACM 52 (4), 2009.
"""

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ed_lib import check, machine, timing
from ed_lib.timing import three_digits

DTYPES = ("float64", "float32", "bfloat16", "float16")
MATRIX_SIZES = {  # n of the products of n × n matrices
    "cpu": (512, 1024, 2048),
    "cuda": (2048, 4096, 8192),
}
GIGA = 1e9
LARGEST = 2**29  # bytes of the arrays that are moved: no cache holds them
LEAST_RUNS = 3  # of which the fastest is taken


@dataclass(frozen=True)
class Ceilings:
    """The best that was seen of a device: bytes/s to and from its memory, by any access and by
    ``reading`` alone; FLOP/s of products of ``dtype``, by a ``library``. TypeError or ValueError
    for what is no text and no such number.
    """

    device: str
    dtype: str
    bandwidth: float
    rate: float
    reading: float = 0.0
    library: str = ""

    def __post_init__(self):
        for name in ("device", "dtype", "library"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise TypeError(f"{name} is {value!r}; wanted a text")
        check.positive("bandwidth", self.bandwidth)
        check.positive("rate", self.rate)
        check.amount("reading", self.reading)

    def __str__(self):
        bandwidth = three_digits(self.bandwidth / GIGA)
        reading = three_digits(self.reading / GIGA)
        rate = three_digits(self.rate / GIGA)
        memory = f"{bandwidth} GB/s ({reading} reading)"
        return f"{memory}, {rate} GFLOP/s in {self.dtype} by {self.library}: {self.device}"

    def floor(self, bytes: float, flops: float) -> float:
        """Seconds that moving ``bytes`` and doing ``flops`` take here at the least, by
        :func:`timing.floor <ed_lib.timing.floor>`, whose errors these are.
        """
        return timing.floor(bytes, flops, bandwidth=self.bandwidth, rate=self.rate)


def ceilings(
    device: str = "cpu", dtype: str = "float32", *, threads: int | None = None
) -> Ceilings:
    """The :class:`Ceilings` of "cpu" or "cuda:1", measured once, so that all pages print the same,
    and kept in the user's cache or in the file that ED_CEILINGS names. ``dtype``: one of DTYPES;
    ``threads``: of the processor, None for all. ValueError for another dtype, and for a device that
    is not there.
    """
    kept = _kept().get(_key(device, dtype, threads))
    return kept or raised(device, dtype, threads=threads)


def raised(
    device: str = "cpu",
    dtype: str = "float32",
    *,
    seconds: float = 4.0,
    threads: int | None = None,
) -> Ceilings:
    """Measures a device once more, for about ``seconds``, and keeps the highest ever seen. Errors
    as :func:`ceilings`'.
    """
    key = _key(device, dtype, threads)
    found = probe(device, dtype, seconds=seconds, threads=threads)
    # Read after the measurement: another process may have written meanwhile.
    kept = _kept()
    old = kept.get(key, found)
    # Each ceiling is the highest by itself; a library's name belongs to its rate.
    highest = replace(
        max(old, found, key=lambda one: one.rate),
        bandwidth=max(old.bandwidth, found.bandwidth),
        reading=max(old.reading, found.reading),
    )
    kept[key] = highest
    _keep(kept)
    return highest


def probe(
    device: str = "cpu",
    dtype: str = "float32",
    *,
    seconds: float = 2.0,
    threads: int | None = None,
) -> Ceilings:
    """The :class:`Ceilings` of "cpu", with so many threads or all, or of "cuda:1", measured in
    about ``seconds``: of the fastest run, since a ceiling is what has been reached.

    Bandwidth: of a copy, a scaling in place and a sum of large arrays; bytes read and written, as
    STREAM has it. Rate: of square products by PyTorch (MKL, oneDNN for 16 bits), NumPy (OpenBLAS),
    packed oneDNN.
    """
    import torch
    from threadpoolctl import threadpool_limits

    check.choice("dtype", dtype, DTYPES)
    # Three ways to move bytes get a share each, and the products as much as all three.
    share = check.positive("seconds", seconds) / 6
    name = machine.name(device)
    before = torch.get_num_threads()
    threads = threads or machine.threads()
    with true_float32(), torch.no_grad(), threadpool_limits(threads, "blas"):
        torch.set_num_threads(threads)
        try:
            bandwidth, reading = _bandwidth(device, share)
            rate, library = _rate(device, dtype, 3 * share)
        finally:
            torch.set_num_threads(before)
    return Ceilings(name, dtype, bandwidth, rate, reading, library)


def _bandwidth(device, seconds):
    """Bytes/s of the best access, and of reading alone, each way tried for so many seconds."""
    import torch

    size = min(LARGEST, machine.memory(device) / 8)
    # Of ones: a system may give a page of zeros no memory before it is written.
    x = torch.ones(int(size) // 4, device=device)
    y = torch.empty_like(x)
    copying = fastest(lambda: y.copy_(x), seconds, device)
    scaling = fastest(lambda: x.mul_(-1), seconds, device)
    reading = x.nbytes / fastest(x.sum, seconds, device)
    # A copy and a scaling each read x and write as much.
    both = 2 * x.nbytes / min(copying, scaling)
    return max(both, reading), reading


def _key(device, dtype, threads):
    key = f"{machine.slug(device)}, {dtype}"
    # On a GPU the processor's threads change nothing.
    fewer = device == "cpu" and threads not in (None, machine.threads())
    return f"{key}, {threads} of them" if fewer else key


def _kept():
    """{"device, dtype": Ceilings} of the file; one that is malformed is as good as none."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        entries = json.loads(_file().read_text())
        return {key: Ceilings(**values) for key, values in entries.items()}
    return {}


def _keep(all_ceilings):
    """Writes the file, whole or not at all; where it cannot, a line says so."""
    values = {key: asdict(one) for key, one in all_ceilings.items()}
    text = json.dumps(values, indent=1, sort_keys=True) + "\n"
    file = _file()
    # Each process has a file of its own beside, until it takes the name.
    beside = file.with_suffix(f".{os.getpid()}")
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text)
        beside.replace(file)
    # A home that is read-only, say.
    except OSError as error:
        print(f"This machine's ceilings are not kept: {error}")


def _file():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ED_CEILINGS") or Path(cache, "ed_lib", "ceilings.json"))


def _rate(device, dtype, seconds):
    """FLOP/s of the fastest square product, and its library; without sizes that would take too
    long.
    """
    sizes = MATRIX_SIZES[device.partition(":")[0]]
    best = (0.0, "")
    for n in sizes:
        flops = 2 * n**3
        products = _products(n, device, dtype)
        share = seconds / len(sizes) / len(products)
        # The best rate so far tells how long a larger product will take.
        if best[0] and flops / best[0] > share:
            continue
        for library, product in products.items():
            best = max(best, (flops / fastest(product, share, device), library))
    return best


def _products(n, device, dtype):
    """{library: a function that multiplies with it two n × n matrices of numbers drawn at
    random}.
    """
    import torch

    random = torch.Generator(device).manual_seed(0)
    like: dict = {"device": device, "dtype": getattr(torch, dtype)}
    # Zeros would be faster, since they take less power.
    a = torch.rand(n, n, generator=random, **like)
    b = torch.rand(n, n, generator=random, **like)
    c = torch.empty(n, n, **like)
    found = {"PyTorch": lambda: torch.mm(a, b, out=c)}
    if device == "cpu" and dtype in ("float32", "float64"):
        found["NumPy"] = functools.partial(np.matmul, a.numpy(), b.numpy())
    # Where there is no oneDNN, or it lacks the format, it is left out.
    with contextlib.suppress(RuntimeError, AttributeError):
        packed = torch.ops.mkldnn._reorder_linear_weight(b.T.contiguous(), n)
        by_onednn = functools.partial(
            torch.ops.mkldnn._linear_pointwise, a, packed, None, "none", [], ""
        )
        if by_onednn().dtype == a.dtype:
            found["oneDNN"] = by_onednn
    return found


def fastest(function: Callable, seconds: float, device: str) -> float:
    """Seconds of the fastest of the runs that fit into ``seconds``, at least three; on a GPU by its
    clock.
    """
    found = list[float]()
    end = perf_counter() + seconds
    while len(found) < LEAST_RUNS or perf_counter() < end:
        if device == "cpu":
            start = perf_counter()
            function()
            found.append(perf_counter() - start)
        else:
            found += timing.elapsed(function, blocks=5)
    return min(found)


@contextlib.contextmanager
def true_float32() -> Iterator[None]:
    """Products of float32 in float32, neither TF32 nor bfloat16, for as long as this lasts."""
    import torch

    backends: tuple[Any, Any] = (torch.backends.cuda, torch.backends.mkldnn)
    settings = [backend.matmul for backend in backends]
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, old in zip(settings, before, strict=True):
            each.fp32_precision = old
