"""The formats that benchmarks compare: what each is computed in, and the ceilings of its products."""

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from ed_lib import roofline, timing


@dataclass(frozen=True)
class Format:
    """A format of training. ``rate``: whose products it makes, for the floor; ``tolerance``: the relative
    deviation from float64 that it explains; ``float32``: how products of float32 numbers are made, "ieee" or
    "tf32"; ``context``: of the forward pass.
    """

    name: str
    rate: str
    tolerance: float
    float32: str = "ieee"
    context: Callable = contextlib.nullcontext
    scaler: Callable = lambda: None


def formats(device):
    """The :class:`Format`\\ s of "cpu" or "cuda" that this machine has."""
    kind = device.partition(":")[0]
    bfloat16, float16 = (partial(torch.autocast, kind, dtype) for dtype in (torch.bfloat16, torch.float16))
    fixed = {"init_scale": 2.0**14, "growth_interval": 10**9}  # however often a step is repeated
    scaler = partial(torch.amp.GradScaler, kind, **fixed)
    found = [Format("float32", "float32", 1e-4)]
    if kind == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        found += [Format("tf32", "tf32", 1e-2, "tf32")]
    if kind == "cpu" or torch.cuda.get_device_capability(device) >= (8, 0):
        found += [Format("bfloat16", "bfloat16", 5e-2, context=bfloat16)]
    found.append(Format("float16", "float16", 1e-2, context=float16, scaler=scaler))
    return found


@contextlib.contextmanager
def restored():
    """float32 products, those of convolutions and LSTMs too, are exact inside, and as they were after it."""
    backends = torch.backends.cudnn, torch.backends.mkldnn
    libraries = [getattr(backend, part) for backend in backends for part in ("conv", "rnn")]
    before = [library.fp32_precision for library in libraries]
    with roofline.true_float32():
        for library in libraries:
            library.fp32_precision = "ieee"
        try:
            yield
        finally:
            for library, precision in zip(libraries, before, strict=True):
                library.fp32_precision = precision


def set_float32(how):
    """How a GPU multiplies float32 numbers from now on: "ieee", or "tf32". Takes a microsecond."""
    cudnn, torch.backends.cuda.matmul.fp32_precision = torch.backends.cudnn, how
    cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = how


@restored()
def ceilings(device, name):
    """:class:`ed_lib.roofline.Ceilings` of "cpu" or "cuda" in the format of that name, or in its rate."""
    float32 = roofline.ceilings(device, "float32")
    form = {form.name: form for form in formats(device)}.get(name)
    rate = form.rate if form else name
    if rate in roofline.DTYPES:  # what a CPU cannot add in few bits it adds in float32
        mine = roofline.ceilings(device, rate)
        best = max(mine.rate, float32.rate) if device == "cpu" else mine.rate
    else:  # the rate of the fastest product
        mine, best = float32, max(2 * n**3 / product_seconds(form, n, device) for n in roofline.SIZES["cuda"])
    return dataclasses.replace(mine, dtype=rate, rate=best)


def product_seconds(form, n, device):
    """Seconds of a product of n × n matrices in a format that has no ceilings; the lower quartile."""
    draw = torch.Generator(device).manual_seed(n)
    a, b = (torch.randn(n, n, generator=draw, device=device) for _ in range(2))
    set_float32(form.float32)
    return timing.measure(partial(torch.mm, a, b), min_seconds=0.2).q1


def deviation(found, right):
    """The largest deviation of a tensor's numbers relative to its largest number, over all tensors."""
    pairs = zip(found, right, strict=True)
    return max(float((mine.double() - exact).abs().max() / exact.abs().max()) for mine, exact in pairs)
