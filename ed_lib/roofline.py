"""A machine's ceilings, and the floor that a computation cannot beat.

A computation that moves so many bytes to and from the memory, and does so many floating-point operations,
takes at least as long as the slower of the two, since at best they overlap. This is the roofline model:
Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52 (4), 2009.
"""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from ed_lib import check, machine, timing

DTYPES = ("float64", "float32", "bfloat16", "float16")
SIZES = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # n of the products of n × n matrices
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # where Linux says how large they are


@dataclass(frozen=True)
class Ceilings:
    """The best that was seen of a device: ``bandwidth`` of its memory in bytes/s, and ``rate`` in FLOP/s of
    products of matrices of ``dtype``. ``access`` says what reached the bandwidth: "copy", "scale" or "read".
    """

    device: str
    dtype: str
    bandwidth: float
    rate: float
    access: str = "copy"

    def __post_init__(self):
        check.positive("bandwidth", self.bandwidth)
        check.positive("rate", self.rate)

    def __str__(self):
        return (
            f"{self.bandwidth / 1e9:.3g} GB/s ({self.access}), "
            f"{self.rate / 1e9:.3g} GFLOP/s in {self.dtype}: {self.device}"
        )

    def higher(self, other: "Ceilings | None") -> "Ceilings":
        """Of these and others of the same device and dtype, the higher bandwidth and the higher rate."""
        if other is None:
            return self
        best = max(self, other, key=lambda ceilings: ceilings.bandwidth)
        return dataclasses.replace(best, rate=max(self.rate, other.rate))

    def floor(self, bytes: float, flops: float) -> float:
        """Seconds that moving ``bytes`` and doing ``flops`` takes at the least: the longer of the two.

        It holds where the data comes from memory and goes back there; data that stays in a cache between two
        runs can be faster. TypeError for what is no number, ValueError for a negative or infinite one.
        """
        return max(_check_amount("bytes", bytes) / self.bandwidth, _check_amount("flops", flops) / self.rate)


def measure(device: str = "cpu", dtype: str = "float32", *, seconds: float = 2.0) -> Ceilings:
    """The :class:`Ceilings` of "cpu" (all of PyTorch's threads) or "cuda:1", measured in about ``seconds``.

    The bandwidth is the best of three accesses to arrays far larger than the caches: a copy, counted as
    STREAM does (each byte read and written), scaling in place (likewise) and a sum (each byte read). No one
    of them is the fastest everywhere: many CPUs, before they write a part of an array, read it, so that a
    copy moves half as much again as is counted here.

    The rate is the best of square matrix products C = A B, 2 n³ operations each, from small to as large as
    the time allows. float32 is computed in float32, without TF32.

    Each is the fastest of repeated runs, not the median: a ceiling is what has been reached, and a
    disturbance only lowers it. The kernels are PyTorch's; where they leave a few per cent of the machine, a
    better one can come out below the floor by as much.

    ValueError for a device or dtype that does not exist.
    """
    check.choice("dtype", dtype, DTYPES)
    check.positive("seconds", seconds)
    name = machine.name(device)
    bandwidth, access = _bandwidth(device, seconds / 2)
    with true_float32():
        return Ceilings(name, dtype, bandwidth, _rate(device, dtype, seconds / 2), access)


def ceilings(device: str = "cpu", dtype: str = "float32") -> Ceilings:
    """The :class:`Ceilings` of "cpu" or "cuda:1" that are kept: measured once, so that all pages print the
    same. They lie in the user's cache, or in the file that ED_CEILINGS names.
    """
    return _kept(_key(device, dtype)) or raised(device, dtype)


def raised(device: str = "cpu", dtype: str = "float32", *, seconds: float = 2.0) -> Ceilings:
    """Measures a device, on a CPU with all of its threads and with one, and keeps the highest ever seen."""
    import torch

    found, threads = measure(device, dtype, seconds=seconds), torch.get_num_threads()
    for other in {1, machine.threads()} - {threads} if device == "cpu" else ():
        torch.set_num_threads(other)
        found = measure(device, dtype, seconds=seconds).higher(found)
    torch.set_num_threads(threads)
    key = _key(device, dtype)
    found, path = found.higher(_kept(key)), _file()
    beside = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = _all() | {key: dataclasses.asdict(found)}
        beside.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        beside.replace(path)
    except OSError as error:  # a home that is read-only, say
        print(f"This machine's ceilings are not kept: {error}")
        return found
    return _kept(key)


def _key(device, dtype):
    return f"{machine.name(device)}, {dtype}"


def _kept(key):
    """What is kept, with the best bandwidth that was seen of the device: it is that of any dtype."""
    kept = {name: Ceilings(**values) for name, values in _all().items()}
    if mine := kept.get(key):
        memory = max(
            (one for one in kept.values() if one.device == mine.device), key=lambda one: one.bandwidth
        )
        return dataclasses.replace(mine, bandwidth=memory.bandwidth, access=memory.access)
    return None


def _all():
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        return json.loads(_file().read_text())
    return {}


def _file():
    if path := os.environ.get("ED_CEILINGS"):
        return Path(path)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "ed_lib" / "ceilings.json"


def _bandwidth(device, seconds):
    """(bytes/s, which access) of the fastest access to the memory."""
    import torch

    size = _array_bytes(device)
    x = torch.ones(size // 4, device=device)  # float32. Zeros could be a promise only, with no memory behind
    y = torch.ones_like(x)
    accesses = {
        "copy": (2, lambda: y.copy_(x)),
        "scale": (2, lambda: x.mul_(-1)),
        "read": (1, lambda: x.sum()),
    }
    reached = {
        name: times * x.nbytes / _best(access, seconds / len(accesses), device)
        for name, (times, access) in accesses.items()
    }
    return max((speed, name) for name, speed in reached.items())


def _rate(device, dtype, seconds):
    """FLOP/s of the fastest square product. A size that would take longer than its share is left out."""
    sizes, best = SIZES[device.partition(":")[0]], 0.0
    for n in sizes:
        if not best or 2 * n**3 / best <= seconds / len(sizes):
            best = max(best, 2 * n**3 / _best(_product(n, device, dtype), seconds / len(sizes), device))
    return best


def _product(n, device, dtype):
    """A function that multiplies two n × n matrices of numbers drawn at random; zeros would be faster."""
    import torch

    random = torch.Generator(device).manual_seed(0)
    like = {"device": device, "dtype": getattr(torch, dtype)}
    a, b = (torch.rand(n, n, generator=random, **like) for _ in range(2))
    c = torch.empty(n, n, **like)
    return lambda: torch.mm(a, b, out=c)


def _best(function, seconds, device):
    """Seconds of the fastest of the runs, to completion, that fit into ``seconds``; of three at the least. On
    a GPU by its own clock, since waiting for it would count.
    """
    best, runs, end = math.inf, 0, perf_counter() + seconds
    while device != "cpu" and (runs < 3 or perf_counter() < end):
        best, runs = min(best, *timing.elapsed(function, blocks=5)), runs + 5
    while runs < 3 or perf_counter() < end:
        timing.synchronize()
        start = perf_counter()
        function()
        timing.synchronize()
        best, runs = min(best, perf_counter() - start), runs + 1
    return best


def _array_bytes(device):
    """Bytes of an array far larger than the caches; less, where two would take a quarter of the memory."""
    wanted = 2**30 if device != "cpu" else max(2**28, 4 * _last_cache())
    return min(wanted, int(min(machine.memory(device), 2**60)) // 8)


def _last_cache():
    """Bytes of the CPU's largest cache, where Linux tells; else 0."""
    sizes = [path.read_text().strip() for path in CACHES.glob("index*/size")]  # "36608K"
    return max((int(size[:-1]) * 1024 for size in sizes if size.endswith("K")), default=0)


@contextlib.contextmanager
def true_float32() -> Iterator[None]:
    """Products of float32 in float32, neither TF32 nor bfloat16, for as long as this lasts.

    PyTorch 2.9 has settings by library (``fp32_precision``) beside the older one for all, which it refuses
    to tell when the two disagree.
    """
    import torch

    libraries: list = [torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None)]
    libraries = [library for library in libraries if hasattr(library, "fp32_precision")]
    by_library = [library.fp32_precision for library in libraries]
    try:
        for_all = torch.get_float32_matmul_precision()
    except RuntimeError:
        for_all = None
    try:
        if for_all is not None:
            torch.set_float32_matmul_precision("highest")
        for library in libraries:
            library.fp32_precision = "ieee"
        yield
    finally:
        if for_all is not None:
            torch.set_float32_matmul_precision(for_all)
        for library, precision in zip(libraries, by_library, strict=True):
            library.fp32_precision = precision


def _check_amount(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} is {value!r}; wanted a number")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value}; wanted a finite number, at least 0")
    return float(value)
