"""A machine's ceilings, and the floor that a computation cannot beat: it takes as long as moving
its bytes or doing its operations, which at best overlap. The roofline model of S. Williams, A.
Waterman and D. Patterson, Communications of the ACM 52 (4), 2009.
"""

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from ed_lib import check, machine, timing

DTYPES = ("float64", "float32", "bfloat16", "float16")
MATRIX_SIZES = {
    "cpu": (512, 1024, 2048),
    "cuda": (2048, 4096, 8192),
}  # n of the products of n × n matrices


@dataclass(frozen=True)
class Ceilings:
    """The best that was seen of a device: bytes/s to and from its memory, by any access and by
    ``reading`` alone; FLOP/s of products of ``dtype``, by a ``library``.
    """

    device: str
    dtype: str
    bandwidth: float
    rate: float
    reading: float = 0.0
    library: str = ""

    def __post_init__(self):
        check.positive("bandwidth", self.bandwidth)
        check.positive("rate", self.rate)

    def __str__(self):
        memory = f"{self.bandwidth / 1e9:.3g} GB/s ({self.reading / 1e9:.3g} reading)"
        rate = f"{self.rate / 1e9:.3g} GFLOP/s in {self.dtype}"
        return f"{memory}, {rate} by {self.library}: {self.device}"

    def floor(self, bytes: float, flops: float) -> float:
        """Seconds that moving ``bytes`` and doing ``flops`` takes at the least: the longer of the
        two. Data that stays in a cache between two runs can be faster.
        """
        for name, amount in {"bytes": bytes, "flops": flops}.items():
            check.positive(name, amount or 1)
        return max(float(bytes / self.bandwidth), float(flops / self.rate))


def ceilings(device: str = "cpu", dtype: str = "float32") -> Ceilings:
    """The :class:`Ceilings` of "cpu" or "cuda:1", measured once, so that all pages print the same,
    and kept in the user's cache or in the file that ED_CEILINGS names.
    """
    return _kept().get(f"{machine.slug(device)}, {dtype}") or raised(device, dtype)


def raised(device: str = "cpu", dtype: str = "float32", *, seconds: float = 4.0) -> Ceilings:
    """Measures a device once more, and keeps the highest ever seen."""
    key, found, kept = (
        f"{machine.slug(device)}, {dtype}",
        probe(device, dtype, seconds=seconds),
        _kept(),
    )
    old = kept.get(key, found)
    bandwidth, reading = max(old.bandwidth, found.bandwidth), max(old.reading, found.reading)
    found = replace(max(old, found, key=lambda one: one.rate), bandwidth=bandwidth, reading=reading)
    values = {name: asdict(one) for name, one in (kept | {key: found}).items()}
    beside = _file().with_suffix(f".{os.getpid()}")
    try:
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")
        beside.replace(_file())
    except OSError as error:  # a home that is read-only, say
        print(f"This machine's ceilings are not kept: {error}")
    return found


def probe(device: str = "cpu", dtype: str = "float32", *, seconds: float = 2.0) -> Ceilings:
    """The :class:`Ceilings` of "cpu", with all threads, or "cuda:1", measured in about ``seconds``:
    of the fastest run, since a ceiling is what has been reached.

    Bandwidth: of a copy, a scaling in place and a sum of large arrays; bytes read and written, as
    STREAM has it. Rate: of square products by PyTorch (MKL, oneDNN for 16 bits), NumPy (OpenBLAS),
    packed oneDNN.
    """
    import torch
    from threadpoolctl import threadpool_limits

    check.choice("dtype", dtype, DTYPES)
    share, threads = check.positive("seconds", seconds) / 6, torch.get_num_threads()
    name = machine.name(device)
    with true_float32(), torch.no_grad(), threadpool_limits(machine.threads(), "blas"):
        torch.set_num_threads(machine.threads())
        try:
            x = torch.ones(
                int(min(2**29, machine.memory(device) / 8)) // 4, device=device
            )  # of zeros there
            y = torch.empty_like(x)  # may be no memory
            both = min(
                _best(move, share, device) for move in (lambda: y.copy_(x), lambda: x.mul_(-1))
            )
            reading = x.nbytes / _best(x.sum, share, device)
            rate, library = _rate(device, dtype, 3 * share)
        finally:
            torch.set_num_threads(threads)
    return Ceilings(name, dtype, max(2 * x.nbytes / both, reading), rate, reading, library)


def _kept():
    """{"device, dtype": Ceilings} of the file; one that is malformed is as good as none."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        return {
            name: Ceilings(**values) for name, values in json.loads(_file().read_text()).items()
        }
    return {}


def _file():
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("ED_CEILINGS") or Path(cache, "ed_lib", "ceilings.json"))


def _rate(device, dtype, seconds):
    """FLOP/s of the fastest square product, and its library; without sizes that would take too
    long.
    """
    sizes, best = MATRIX_SIZES[device.partition(":")[0]], (0.0, "")
    for n in sizes:
        products = _products(n, device, dtype)
        share = seconds / len(sizes) / len(products)
        if not best[0] or 2 * n**3 / best[0] <= share:
            found = [
                (2 * n**3 / _best(product, share, device), name)
                for name, product in products.items()
            ]
            best = max(best, *found)
    return best


def _products(n, device, dtype):
    """{library: a function that multiplies with it two n × n matrices of numbers drawn at
    random}.
    """
    import torch

    random, like = (
        torch.Generator(device).manual_seed(0),
        {"device": device, "dtype": getattr(torch, dtype)},
    )
    a, b = (torch.rand(n, n, generator=random, **like) for _ in range(2))  # zeros would be faster
    c = torch.empty(n, n, **like)
    found = {"PyTorch": lambda: torch.mm(a, b, out=c)}
    if device == "cpu" and dtype in ("float32", "float64"):
        found["NumPy"] = functools.partial(np.matmul, a.numpy(), b.numpy())
    with contextlib.suppress(
        RuntimeError, AttributeError
    ):  # where oneDNN is not, or lacks the format
        packed = torch.ops.mkldnn._reorder_linear_weight(b.T.contiguous(), n)
        by_onednn = functools.partial(
            torch.ops.mkldnn._linear_pointwise, a, packed, None, "none", [], ""
        )
        found |= {"oneDNN": by_onednn} if by_onednn().dtype == a.dtype else {}
    return found


def _best(function, seconds, device):
    """Seconds of the fastest of the runs that fit into ``seconds``, at least three; on a GPU by its
    clock.
    """
    found, end = list[float](), perf_counter() + seconds
    while len(found) < 3 or perf_counter() < end:
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

    settings: list = [backend.matmul for backend in (torch.backends.cuda, torch.backends.mkldnn)]  # type: ignore
    before = [each.fp32_precision for each in settings]
    try:
        for each in settings:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, old in zip(settings, before, strict=True):
            each.fp32_precision = old
