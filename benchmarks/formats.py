"""The formats that benchmarks compare: what each is computed in, and the ceilings of its products."""

import contextlib
import dataclasses

import torch

from ed_lib import roofline

TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}  # relative, from float64: what each explains


def names(device):
    """The formats of training that "cpu" or "cuda" is asked for; float16 is slow on a CPU."""
    bfloat16 = device == "cpu" or torch.cuda.get_device_capability() >= (8, 0)
    return ["float32"] + ["bfloat16"] * bfloat16 + ["float16"] * (device != "cpu")


def context(device, name):
    """What a forward pass in a format runs in."""
    return contextlib.nullcontext() if name == "float32" else torch.autocast(device, getattr(torch, name))


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


@restored()
def ceilings(device, name):
    """:class:`ed_lib.roofline.Ceilings` of "cpu" or "cuda" in the format of that name. What a CPU cannot add
    in few bits it adds in float32.
    """
    mine = roofline.ceilings(device, name)
    others = [roofline.ceilings(device, "float32").rate] if device == "cpu" else []
    return dataclasses.replace(mine, rate=max(mine.rate, *others))


def deviation(found, right):
    """The largest deviation of a tensor's numbers relative to its largest number, over all tensors."""
    pairs = zip(found, right, strict=True)
    return max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in pairs)
