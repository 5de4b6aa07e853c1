"""The formats that benchmarks compare: what each is computed in, and the ceilings of its
products.
"""

import contextlib
import dataclasses

import torch

from ed_lib import roofline

# What each explains of a deviation from float64, relative
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 5e-2, "float16": 1e-2}


def names(device):
    """The formats of training that "cpu" or "cuda" is asked for; float16 is slow on a CPU."""
    if device == "cpu":
        return ["float32", "bfloat16"]
    # Compute capability 8.0 brought both.
    if torch.cuda.get_device_capability() >= (8, 0):
        return ["float32", "tf32", "bfloat16", "float16"]
    return ["float32", "float16"]


def context(device, name):
    """What a forward pass in a format runs in."""
    sixteen = name in ("bfloat16", "float16")
    return torch.autocast(device, getattr(torch, name)) if sixteen else contextlib.nullcontext()


@contextlib.contextmanager
def products(name):
    """What a whole step in a format runs in: in "tf32" a GPU's float32 products are, the way back's
    too.
    """
    switches = [torch.backends.cuda.matmul, torch.backends.cudnn.conv] if name == "tf32" else []
    try:
        for switch in switches:
            switch.fp32_precision = "tf32"
        yield
    finally:
        for switch in switches:
            switch.fp32_precision = "ieee"


@contextlib.contextmanager
def restored():
    """float32 products, those of convolutions and LSTMs too, are exact inside, and as they were
    after it.
    """
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


@restored()
def ceilings(device, name):
    """:class:`ed_lib.roofline.Ceilings` of "cpu" or "cuda" in the format of that name. What a CPU
    cannot add in few bits it adds in float32; TF32 is no faster than bfloat16.
    """
    mine = roofline.ceilings(device, "bfloat16" if name == "tf32" else name)
    others = [roofline.ceilings(device, "float32").rate] if device == "cpu" else []
    return dataclasses.replace(mine, rate=max([mine.rate, *others]))


def deviation(found, right):
    """The largest deviation of a tensor's numbers relative to its largest number, over all
    tensors.
    """
    pairs = zip(found, right, strict=True)
    return max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in pairs)
